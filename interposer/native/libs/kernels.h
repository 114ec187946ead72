// What is known of a kernel, and what follows from it: its attributes, its occupancy, and which launches are refused.
//
// Facts come from the kernel's image where it can be read (cubin.h) and are kept by the core under the numbers of
// CUfunction_attribute. Code that is compiled into host libraries is compressed and not read: for it we assume
// kAssumedRegisters and no static shared memory, and refuse no launch for want of registers.
//
// The occupancy is CUDA's own arithmetic for sm_90. It agrees with a real H100 on 1,568 combinations of registers,
// block size and shared memory.
#pragma once
#include <algorithm>
#include <climits>

#include "status.h"

namespace eidolon {

enum KernelAttribute { // CUfunction_attribute; from 8 on also cudaFuncAttribute
  kMaxThreads = 0,
  kStaticShared = 1,
  kConstBytes = 2,
  kLocalBytes = 3,
  kRegisters = 4,
  kPtxVersion = 5,
  kBinaryVersion = 6,
  kCacheModeCa = 7,
  kMaxDynamicShared = 8,
  kCarveout = 9,
  kClusterMustBeSet = 10,
  kClusterWidth = 11,
  kClusterHeight = 12,
  kClusterDepth = 13,
  kNonPortableCluster = 14,
  kClusterPolicy = 15,
};

inline constexpr int kAssumedRegisters = 64;                     // per thread
inline constexpr int kPortableCluster = 8, kLargestCluster = 16; // blocks

inline constexpr size_t kRegisterUnit = 256, kPartitions = 4, kSharedUnit = 128;

// The number of warps whose registers fit one multiprocessor. The registers of a warp lie in one of its four
// partitions.
inline size_t resident_warps(int registers) {
  const size_t unit = kRegisterUnit, warp = (static_cast<size_t>(registers) * kWarp + unit - 1) / unit * unit;
  return warp == 0 ? SIZE_MAX : static_cast<size_t>(config().gpu.regs_per_sm) / kPartitions / warp * kPartitions;
}

inline size_t static_shared(const void *kernel) {
  return static_cast<size_t>(kernel_attribute(kernel, kStaticShared, 0));
}

// Gives any attribute as the device's CUfunction answers it. Returns false for a number that is no attribute.
inline bool get_kernel_attribute(const void *kernel, int number, int *value) {
  const Gpu &gpu = config().gpu;
  int otherwise = 0;
  switch (number) {
  case kMaxThreads: // the largest, unless it was compiled with a bound
    otherwise = static_cast<int>(
        std::min<size_t>(kMaxBlockThreads / kWarp, resident_warps(kernel_attribute(kernel, kRegisters, 0))) * kWarp);
    break;
  case kRegisters:
    otherwise = kAssumedRegisters;
    break;
  case kPtxVersion:
  case kBinaryVersion:
    otherwise = gpu.cc_major * 10 + gpu.cc_minor;
    break;
  case kMaxDynamicShared: // what may be asked for without opting in
    otherwise = static_cast<int>(gpu.smem_per_block - std::min(gpu.smem_per_block, static_shared(kernel)));
    break;
  case kCarveout:
    otherwise = -1;
    break;
  default:
    if (number < 0 || number > kClusterPolicy)
      return false;
  }
  *value = kernel_attribute(kernel, number, otherwise);
  return true;
}

inline Status set_kernel_attribute(const void *kernel, int number, int value) {
  switch (number) {
  case kMaxDynamicShared:
    if (value < 0 || static_cast<size_t>(value) + static_shared(kernel) > config().gpu.smem_per_block_optin)
      return kInvalidValue;
    break;
  case kCarveout: // percent, or -1 for the driver's choice
    if (value < -1 || value > 100)
      return kInvalidValue;
    break;
  case kClusterMustBeSet: // fixed when the kernel is compiled
    return kInvalidValue;
  case kClusterWidth:
  case kClusterHeight:
  case kClusterDepth:
    if (value < 0)
      return kInvalidValue;
    break;
  case kNonPortableCluster:
    if (value != 0 && value != 1)
      return kInvalidValue;
    break;
  case kClusterPolicy:
    if (value < 0 || value > 2)
      return kInvalidValue;
    break;
  default:
    return kInvalidValue;
  }
  kernel_set_attribute(kernel, number, value);
  return kSuccess;
}

// Blocks of `threads` threads that fit one multiprocessor at once; 0 if none does.
inline int resident_blocks(const void *kernel, int threads, size_t dynamic_shared) {
  const Gpu &gpu = config().gpu;
  const size_t shared = static_shared(kernel) + dynamic_shared;
  if (threads <= 0 || threads > kMaxBlockThreads || shared > gpu.smem_per_block_optin)
    return 0;
  auto round_up = [](size_t value, size_t unit) { return (value + unit - 1) / unit * unit; };
  const size_t warps = (static_cast<size_t>(threads) + kWarp - 1) / kWarp;
  size_t blocks = static_cast<size_t>(gpu.max_threads_per_sm) / kWarp / warps;
  blocks = std::min(blocks, static_cast<size_t>(gpu.max_blocks_per_sm));
  blocks = std::min(blocks, resident_warps(kernel_attribute(kernel, kRegisters, kAssumedRegisters)) / warps);
  const size_t block_shared = round_up(shared + gpu.reserved_smem_per_block, kSharedUnit);
  blocks = std::min(blocks, gpu.smem_per_sm / block_shared);
  return static_cast<int>(blocks);
}

// Dynamic shared memory per block that leaves room for `blocks` of them on a multiprocessor, as far as the kernel may
// have it.
inline Status dynamic_shared_for(const void *kernel, int blocks, int threads, size_t *bytes) {
  *bytes = 0;
  if (blocks <= 0 || threads <= 0 || resident_blocks(kernel, threads, 0) < blocks)
    return kInvalidValue;
  const size_t share = config().gpu.smem_per_sm / static_cast<size_t>(blocks) / kSharedUnit * kSharedUnit;
  int allowed = 0;
  get_kernel_attribute(kernel, kMaxDynamicShared, &allowed);
  *bytes = std::min(share - std::min(share, static_shared(kernel)), static_cast<size_t>(allowed));
  return kSuccess;
}

// The largest cluster that can be launched. It is the portable one, unless more was allowed.
inline int largest_cluster(const void *kernel) {
  if (config().gpu.cc_major < 9)
    return 1;
  return kernel_attribute(kernel, kNonPortableCluster, 0) != 0 ? kLargestCluster : kPortableCluster;
}

// The number of clusters that are resident on the device at once. A real cluster stays within a GPC. The sizes of GPCs
// are not in the configuration, so all multiprocessors of the device are divided into clusters.
inline int resident_clusters(const void *kernel, Dim3 cluster, int threads, size_t dynamic_shared) {
  const int per_sm = resident_blocks(kernel, threads, dynamic_shared);
  const int size = static_cast<int>(std::max(1U, cluster.x) * std::max(1U, cluster.y) * std::max(1U, cluster.z));
  return per_sm * config().gpu.sm_count / size;
}

// The status that CUDA returns for a launch before it reaches the device.
inline Status check_launch(const void *kernel, Dim3 grid, Dim3 block, size_t dynamic_shared, Dim3 cluster,
                           bool cooperative) {
  constexpr unsigned kMaxGridYZ = 65535, kMaxBlockZ = 64;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT_MAX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ)
    return kInvalidValue;
  if (block.x > kMaxBlockThreads || block.y > kMaxBlockThreads || block.z > kMaxBlockZ || threads == 0 ||
      threads > kMaxBlockThreads)
    return kInvalidValue;
  if (dynamic_shared != 0) {
    int allowed = 0;
    get_kernel_attribute(kernel, kMaxDynamicShared, &allowed);
    if (dynamic_shared > static_cast<size_t>(allowed))
      return kInvalidValue;
  }
  if (threads > static_cast<uint64_t>(kernel_attribute(kernel, kMaxThreads, kMaxBlockThreads)))
    return kInvalidValue; // its launch bound
  if ((threads + kWarp - 1) / kWarp > resident_warps(kernel_attribute(kernel, kRegisters, 0)))
    return kOutOfResources;
  const uint64_t blocks = uint64_t{cluster.x} * cluster.y * cluster.z;
  if (blocks != 1 && (blocks == 0 || blocks > static_cast<uint64_t>(largest_cluster(kernel)) ||
                      grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0))
    return kInvalidCluster;
  if (cooperative && uint64_t{grid.x} * grid.y * grid.z >
                         static_cast<uint64_t>(resident_blocks(kernel, static_cast<int>(threads), dynamic_shared)) *
                             static_cast<uint64_t>(config().gpu.sm_count))
    return kCooperativeTooLarge;
  return kSuccess;
}

} // namespace eidolon
