// Runtime: launches, functions and their attributes, occupancy.
#include "cudart.h"

#include <cstring>

#include "kernels.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

Dim3 plain(dim3 d) { return {d.x, d.y, d.z}; }

// Reads the attributes of an extended launch that change what is launched. The others are hints, or an order that a
// stream keeps anyway.
struct LaunchOptions {
  dim3 cluster{1, 1, 1};
  bool cooperative = false;
  Status status = kSuccess;
};
LaunchOptions options_of(const cudaLaunchConfig_t *config) {
  LaunchOptions out;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute &a = config->attrs[i];
    switch (a.id) {
    case cudaLaunchAttributeClusterDimension:
      out.cluster = {a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z};
      break;
    case cudaLaunchAttributeCooperative:
      out.cooperative = a.val.cooperative != 0;
      break;
    case cudaLaunchAttributeProgrammaticEvent:
    case cudaLaunchAttributeLaunchCompletionEvent: // recorded from inside the kernel
      unmodelled("cudart", "cudaLaunchKernelExC with an event");
      out.status = kNotSupported;
      break;
    default:
      break;
    }
  }
  return out;
}

Status extended(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
    return kInvalidValue;
  LaunchOptions options = options_of(config);
  if (options.status != kSuccess)
    return options.status;
  return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream,
                EID_CALL("cudaLaunchKernelExC"), options.cluster, options.cooperative);
}

// Finds a function whose attributes are asked for, which is a registered host function or any handle.
Status known(const void *function) {
  if (Status status = context())
    return status;
  return kernel_name(function) != nullptr ? kSuccess : kInvalidHandle;
}

} // namespace

namespace eidolon::runtime {

Status launch(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t handle,
              uint16_t call, dim3 cluster, bool cooperative) {
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  const char *name = kernel_name(function);
  if (name == nullptr)
    return kInvalidHandle;
  if (Status status = check_launch(function, plain(grid), plain(block), shared_bytes, plain(cluster), cooperative))
    return status;
  return launch_kernel(
      {name, plain(grid), plain(block), shared_bytes, arguments, stream, call, plain(cluster), function});
}

} // namespace eidolon::runtime

// ---- launches -----------------------------------------------------------------------------------------------------

extern "C" {

EID_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                          size_t shared_bytes, cudaStream_t stream) {
  return report(launch(kernel, grid, block, arguments, shared_bytes, stream, EID_CALL("cudaLaunchKernel")));
}
EID_PER_THREAD(6, __cudaLaunchKernel)

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return report(launch(function, grid, block, arguments, shared_bytes, stream, EID_CALL("cudaLaunchKernel")));
}
EID_PER_THREAD(6, cudaLaunchKernel)

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  return report(launch(function, grid, block, arguments, shared_bytes, stream, EID_CALL("cudaLaunchCooperativeKernel"),
                       dim3{1, 1, 1}, true));
}
EID_PER_THREAD(6, cudaLaunchCooperativeKernel)

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  return report(extended(config, function, arguments));
}
EID_EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function,
                                                void **arguments) {
  if (config == nullptr)
    return report(kInvalidValue);
  cudaLaunchConfig_t own = *config;
  own.stream = per_thread(own.stream);
  return cudaLaunchKernelExC(&own, function, arguments);
}

// ---- functions ----------------------------------------------------------------------------------------------------

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *function) {
  if (out == nullptr)
    return report(kInvalidValue);
  if (Status status = known(function))
    return report(status);
  auto at = [function](int number) {
    int value = 0;
    get_kernel_attribute(function, number, &value);
    return value;
  };
  *out = {};
  out->sharedSizeBytes = static_cast<size_t>(at(kStaticShared));
  out->constSizeBytes = static_cast<size_t>(at(kConstBytes));
  out->localSizeBytes = static_cast<size_t>(at(kLocalBytes));
  out->maxThreadsPerBlock = at(kMaxThreads);
  out->numRegs = at(kRegisters);
  out->ptxVersion = at(kPtxVersion);
  out->binaryVersion = at(kBinaryVersion);
  out->cacheModeCA = at(kCacheModeCa);
  out->maxDynamicSharedSizeBytes = at(kMaxDynamicShared);
  out->preferredShmemCarveout = at(kCarveout);
  out->clusterDimMustBeSet = at(kClusterMustBeSet);
  out->requiredClusterWidth = at(kClusterWidth);
  out->requiredClusterHeight = at(kClusterHeight);
  out->requiredClusterDepth = at(kClusterDepth);
  out->clusterSchedulingPolicyPreference = at(kClusterPolicy);
  out->nonPortableClusterSizeAllowed = at(kNonPortableCluster);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
  if (Status status = known(function))
    return report(status);
  return report(set_kernel_attribute(function, attribute, value));
}

// The attributes are the same on all devices, which are of one model.
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value, int device) {
  if (Status status = known(kernel))
    return report(status);
  if (!valid_device(device))
    return report(kInvalidDevice);
  return report(set_kernel_attribute(kernel, attribute, value));
}

// The hint has no effect.
cudaError_t cudaFuncSetCacheConfig(const void *function, cudaFuncCache value) {
  if (value < cudaFuncCachePreferNone || value > cudaFuncCachePreferEqual)
    return report(kInvalidValue);
  return report(known(function));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
cudaError_t cudaFuncSetSharedMemConfig(const void *function, cudaSharedMemConfig) { return report(known(function)); }
#pragma GCC diagnostic pop

cudaError_t cudaFuncGetName(const char **name, const void *function) {
  if (name == nullptr)
    return report(kInvalidValue);
  if (Status status = known(function))
    return report(status);
  *name = kernel_name(function);
  return cudaSuccess;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *function) {
  if (out == nullptr)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  if (kernel_name(function) == nullptr)
    return report(kInvalidFunction);
  *out = static_cast<cudaFunction_t>(const_cast<void *>(function));
  return cudaSuccess;
}

cudaError_t cudaGetKernel(cudaKernel_t *out, const void *function) {
  if (out == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  if (kernel_name(function) == nullptr)
    return report(kInvalidFunction);
  *out = static_cast<cudaKernel_t>(const_cast<void *>(function));
  return cudaSuccess;
}

// ---- occupancy ----------------------------------------------------------------------------------------------------

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t dynamic_shared, unsigned flags) {
  if (blocks == nullptr || threads <= 0 || (flags & ~cudaOccupancyDisableCachingOverride) != 0)
    return report(kInvalidValue);
  if (Status status = known(function))
    return report(status);
  *blocks = resident_blocks(function, threads, dynamic_shared);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_shared,
                                                                cudaOccupancyDefault);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int threads) {
  if (bytes == nullptr)
    return report(kInvalidValue);
  if (Status status = known(function))
    return report(status);
  return report(dynamic_shared_for(function, blocks, threads, bytes));
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const cudaLaunchConfig_t *config) {
  if (size == nullptr || config == nullptr)
    return report(kInvalidValue);
  if (Status status = known(function))
    return report(status);
  const int threads = static_cast<int>(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  *size = resident_blocks(function, threads, config->dynamicSmemBytes) > 0 ? largest_cluster(function) : 0;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config) {
  if (clusters == nullptr || config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
    return report(kInvalidValue);
  if (Status status = known(function))
    return report(status);
  const int threads = static_cast<int>(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  *clusters = resident_clusters(function, plain(options_of(config).cluster), threads, config->dynamicSmemBytes);
  return cudaSuccess;
}

} // extern "C"
