// Settings of a device that both libraries answer in the same way: limits, flags and peers.
//
// They have no effect on the emulation. Each library keeps what was set through it, so that asking gives it back.
#pragma once
#include <array>
#include <atomic>
#include <cstdio>

#include "device_attributes.h"

namespace eidolon {

inline constexpr int kLeastPriority = 0, kGreatestPriority = -5;

// ---- limits (cudaLimit and CUlimit have the same numbers) -----------------------------------------------------------

inline constexpr int kLimits = 9;
// The limits that an H100 answers before any is set. It has no limit 3 (device runtime sync depth), and answers 0.
inline constexpr size_t kDefaultLimits[kLimits] = {1024, 8650752, 8388608, 0, 2048, 64, 9830400, 232448, 0};
inline std::atomic<size_t> *limit_word(int device, int limit) {
  static std::array<std::array<std::atomic<size_t>, kLimits>, kMaxDevices> set{}; // value + 1, 0 not set
  return &set[static_cast<size_t>(device)][static_cast<size_t>(limit)];
}
inline Status get_limit(int device, int limit, size_t *value) {
  if (limit < 0 || limit >= kLimits || limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)
    return kUnsupportedLimit;
  size_t set = limit_word(device, limit)->load();
  *value = set != 0 ? set - 1 : kDefaultLimits[limit];
  return kSuccess;
}
inline Status set_limit(int device, int limit, size_t value) {
  if (limit < 0 || limit >= kLimits)
    return kInvalidValue;
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit >= CU_LIMIT_SHMEM_SIZE)
    return kUnsupportedLimit;
  limit_word(device, limit)->store(value + 1);
  return kSuccess;
}

// ---- flags: how the host waits (no difference here) -----------------------------------------------------------------

inline std::atomic<unsigned> *flags_word(int device) {
  static std::array<std::atomic<unsigned>, kMaxDevices> flags{};
  return &flags[static_cast<size_t>(device)];
}
inline unsigned device_flags(int device) { return flags_word(device)->load(); }
inline bool set_device_flags(int device, unsigned flags) {
  constexpr unsigned kSchedule = 0x07, kMapHost = 0x08, kResizeToMax = 0x10, kSyncMemops = 0x80;
  if ((flags & ~(kSchedule | kMapHost | kResizeToMax | kSyncMemops)) != 0)
    return false;
  const unsigned schedule = flags & kSchedule; // one of auto, spin, yield, blocking
  if ((schedule & (schedule - 1)) != 0)
    return false;
  flags_word(device)->store(flags);
  return true;
}

// ---- peers and the bus ----------------------------------------------------------------------------------------------

// `number` is one of CUdevice_P2PAttribute, whose numbers are those of cudaDeviceP2PAttr.
inline Status peer_attribute(int number, int source, int target, int *value) {
  if (source == target)
    return kInvalidDevice;
  constexpr int kOnlyPartialAtomics = 5; // since CUDA 13
  switch (number) {
  case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
  case kOnlyPartialAtomics:
    *value = 0;
    return kSuccess;
  case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
  case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
    *value = 1;
    return kSuccess;
  case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: // over NVLink only
    *value = config().gpu.nvlinks > 0 ? 1 : 0;
    return kSuccess;
  default:
    return kInvalidValue;
  }
}

// Reads a bus address: "DDDD:BB:dd.f", "BB:dd.f", or either without the function.
inline bool device_of_pci(const char *id, int *device) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = kPciDomain;
    if (std::sscanf(id, "%x:%x", &bus, &slot) != 2)
      return false;
  }
  for (int d = 0; d < device_count(); ++d)
    if (domain == kPciDomain && bus == static_cast<unsigned>(kPciBusOfDevice0 + server_device(d)) &&
        slot == kPciDevice) {
      *device = d;
      return true;
    }
  return false;
}

} // namespace eidolon
