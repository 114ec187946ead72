// Driver: launches, occupancy, tensor maps.
#include "cuda_launch.h"

#include <array>
#include <cstring>
#include <vector>

#include "modules.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

struct LaunchOptions {
  Dim3 cluster{1, 1, 1};
  bool cooperative = false;
  Status status = kSuccess;
};
// Reads the attributes that change what is launched. The others are hints, or an order that a stream keeps anyway.
LaunchOptions options_of(const CUlaunchConfig *config) {
  LaunchOptions out;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute &a = config->attrs[i];
    switch (a.id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      out.cluster = {a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z};
      break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      out.cooperative = a.value.cooperative != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: // recorded from inside the kernel
      unmodelled("cuda", "cuLaunchKernelEx with an event");
      out.status = kNotSupported;
      break;
    default:
      break;
    }
  }
  return out;
}

// Returns pointers to the parameters in a packed buffer, or none if the kernel's image did not say where they lie.
std::vector<void *> unpack(const void *kernel, void **extra) {
  std::vector<void *> arguments;
  char *buffer = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2)
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = static_cast<char *>(extra[1]);
  size_t offset, bytes;
  for (size_t i = 0; buffer != nullptr && modules().parameter(kernel, i, &offset, &bytes) == kSuccess; ++i)
    arguments.push_back(buffer + offset);
  return arguments;
}

Status known(const void *kernel) {
  if (Status status = current_context())
    return status;
  return kernel_name(kernel) != nullptr ? kSuccess : kInvalidHandle;
}

int threads_of(const CUlaunchConfig *config) {
  return static_cast<int>(config->blockDimX * config->blockDimY * config->blockDimZ);
}

// A tensor map is 128 opaque bytes. Only kernels read it, and no kernel runs here.
Status encode(CUtensorMap *map, cuuint32_t rank, const void *address, const cuuint64_t *dimensions) {
  constexpr cuuint32_t kMaxRank = 5;
  constexpr uintptr_t kAlignment = 16;
  if (map == nullptr || address == nullptr || dimensions == nullptr || rank == 0 || rank > kMaxRank ||
      reinterpret_cast<uintptr_t>(address) % kAlignment != 0)
    return kInvalidValue;
  for (cuuint32_t i = 0; i < rank; ++i)
    if (dimensions[i] == 0 || dimensions[i] > (cuuint64_t{1} << 32))
      return kInvalidValue;
  std::memset(map, 0, sizeof *map);
  return kSuccess;
}

} // namespace

namespace eidolon::driver {

Status launch(const void *kernel, Dim3 grid, Dim3 block, size_t shared_bytes, CUstream handle, void **arguments,
              void **extra, uint16_t call, Dim3 cluster, bool cooperative) {
  if (arguments != nullptr && extra != nullptr)
    return kInvalidValue;
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  const char *name = kernel_name(kernel);
  if (name == nullptr)
    return kInvalidHandle;
  if (Status status = check_launch(kernel, grid, block, shared_bytes, cluster, cooperative))
    return status;
  std::vector<void *> unpacked;
  if (extra != nullptr) {
    unpacked = unpack(kernel, extra);
    arguments = unpacked.empty() ? nullptr : unpacked.data();
  }
  return launch_kernel({name, grid, block, shared_bytes, arguments, on, call, cluster, kernel});
}

} // namespace eidolon::driver

extern "C" {

// ---- launches -----------------------------------------------------------------------------------------------------

CUresult cuLaunchKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared_bytes, CUstream handle, void **arguments, void **extra) {
  return result(
      launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared_bytes, handle, arguments, extra, EID_CALL("cuLaunchKernel")));
}
EID_PER_THREAD(11, cuLaunchKernel)

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction kernel, void **arguments, void **extra) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
    return result(kInvalidValue);
  LaunchOptions options = options_of(config);
  if (options.status != kSuccess)
    return result(options.status);
  return result(launch(kernel, {config->gridDimX, config->gridDimY, config->gridDimZ},
                       {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                       config->hStream, arguments, extra, EID_CALL("cuLaunchKernelEx"), options.cluster,
                       options.cooperative));
}
EID_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction kernel, void **arguments,
                                          void **extra) {
  if (config == nullptr)
    return result(kInvalidValue);
  CUlaunchConfig own = *config;
  own.hStream = per_thread(own.hStream);
  return cuLaunchKernelEx(&own, kernel, arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared_bytes, CUstream handle, void **arguments) {
  return result(launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared_bytes, handle, arguments, nullptr,
                       EID_CALL("cuLaunchCooperativeKernel"), {1, 1, 1}, true));
}
EID_PER_THREAD(10, cuLaunchCooperativeKernel)

// ---- occupancy ----------------------------------------------------------------------------------------------------

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction kernel, int threads,
                                                              size_t dynamic_shared, unsigned flags) {
  if (blocks == nullptr || threads <= 0 || (flags & ~static_cast<unsigned>(CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)) != 0)
    return result(kInvalidValue);
  if (Status status = known(kernel))
    return result(status);
  *blocks = resident_blocks(kernel, threads, dynamic_shared);
  return result(kSuccess);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction kernel, int threads,
                                                     size_t dynamic_shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, dynamic_shared, 0);
}

// The block size that fills a multiprocessor best. Of those with the most resident threads it is the largest.
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction kernel,
                                                   CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit,
                                                   unsigned) {
  if (grid == nullptr || block == nullptr)
    return result(kInvalidValue);
  if (Status status = known(kernel))
    return result(status);
  int largest = kMaxBlockThreads;
  get_kernel_attribute(kernel, kMaxThreads, &largest);
  if (limit > 0)
    largest = std::min(largest, limit);
  int best_threads = 0;
  *grid = *block = 0;
  for (int threads = largest; threads > 0; threads = (threads - 1) / kWarp * kWarp) {
    const int blocks = resident_blocks(kernel, threads, shared_of != nullptr ? shared_of(threads) : dynamic_shared);
    if (blocks * threads > best_threads) {
      best_threads = blocks * threads;
      *grid = blocks * config().gpu.sm_count;
      *block = threads;
    }
  }
  return result(kSuccess);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction kernel, CUoccupancyB2DSize shared_of,
                                          size_t dynamic_shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, kernel, shared_of, dynamic_shared, limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction kernel, int blocks, int threads) {
  if (bytes == nullptr)
    return result(kInvalidValue);
  if (Status status = known(kernel))
    return result(status);
  return result(dynamic_shared_for(kernel, blocks, threads, bytes));
}

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction kernel, const CUlaunchConfig *config) {
  if (size == nullptr || config == nullptr)
    return result(kInvalidValue);
  if (Status status = known(kernel))
    return result(status);
  *size = resident_blocks(kernel, threads_of(config), config->sharedMemBytes) > 0 ? largest_cluster(kernel) : 0;
  return result(kSuccess);
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction kernel, const CUlaunchConfig *config) {
  if (clusters == nullptr || config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
    return result(kInvalidValue);
  if (Status status = known(kernel))
    return result(status);
  *clusters = resident_clusters(kernel, options_of(config).cluster, threads_of(config), config->sharedMemBytes);
  return result(kSuccess);
}

// ---- tensor maps --------------------------------------------------------------------------------------------------

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *address,
                                const cuuint64_t *dimensions, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  return result(encode(map, rank, address, dimensions));
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *address,
                                 const cuuint64_t *dimensions, const cuuint64_t *, const int *, const int *, cuuint32_t,
                                 cuuint32_t, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return result(encode(map, rank, address, dimensions));
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
  return result(map != nullptr && address != nullptr ? kSuccess : kInvalidValue);
}

} // extern "C"
