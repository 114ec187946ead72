// Private to the NVML library (nvml*.cpp): handles, and what several of its files say of a device.
#pragma once
#define NVML_NO_UNVERSIONED_FUNC_DEFS // declares the old, unversioned functions under their own names
#include <atomic>
#include <cstdio>
#include <cstring>
#include <nvml.h>

#include "api/gauges.h"
#include "core.h"

namespace eidolon::nvml {

inline std::atomic<int> users{0}; // calls of nvmlInit without their nvmlShutdown

// A device handle is its ordinal plus one.
inline nvmlDevice_t handle_of(int device) { return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(device) + 1); }

// Checks that NVML is initialised and the handle is one of ours.
inline nvmlReturn_t resolve(nvmlDevice_t handle, int *device) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  auto ordinal = static_cast<int64_t>(reinterpret_cast<uintptr_t>(handle)) - 1;
  if (ordinal < 0 || ordinal >= config().server_devices)
    return NVML_ERROR_INVALID_ARGUMENT;
  *device = static_cast<int>(ordinal);
  return NVML_SUCCESS;
}

// Gives one value of a device: out = value(device).
template <class T, class F> nvmlReturn_t answer(nvmlDevice_t handle, T *out, F value) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  *out = static_cast<T>(value(device));
  return NVML_SUCCESS;
}

inline nvmlReturn_t copy_text(char *out, unsigned capacity, const char *text) {
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  size_t length = std::strlen(text);
  if (length >= capacity)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text, length + 1);
  return NVML_SUCCESS;
}

inline uint8_t pci_bus(int device) { return static_cast<uint8_t>(0x10 + device); }

inline void fill_pci(nvmlPciInfo_t *out, uint8_t bus, bool gpu) {
  *out = {};
  out->bus = bus;
  out->pciDeviceId = gpu ? 0x233010DEu : 0x22A310DEu; // device and vendor id of an H100 SXM, of its NVSwitch
  std::snprintf(out->busId, sizeof out->busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0u, bus, 0u);
  std::snprintf(out->busIdLegacy, sizeof out->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, 0u, bus, 0u);
}

inline size_t used_bytes(int device) {
  size_t free_bytes = 0, total_bytes = 0;
  if (server_memory(device, &free_bytes, &total_bytes) != kSuccess)
    return 0;
  return total_bytes - free_bytes;
}

} // namespace eidolon::nvml
