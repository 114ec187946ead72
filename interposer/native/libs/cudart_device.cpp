// Runtime: devices, their properties and limits, peer access, device-wide synchronisation.
//
// A process becomes a rank by cudaSetDevice and cudaInitDevice, which initialise the primary context since CUDA 12. To
// count devices or to ask for their properties does not make a rank.
#include "cudart.h"

#include <cstring>
#include <mutex>
#include <set>

#include "device_attributes.h"
#include "device_state.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

// Answers the attributes of one device, by the numbers of cudaDeviceAttr.
class Attributes {
public:
  explicit Attributes(int device) : device_(device) {}
  int operator()(int number) const {
    int value = 0;
    device_attribute(number, device_, &value);
    return value;
  }
  size_t size(int number) const { return static_cast<size_t>((*this)(number)); }

private:
  int device_;
};

// The limits on the sizes of blocks, grids, textures and surfaces.
void fill_extents(cudaDeviceProp *p, const Attributes &at) {
  for (int i = 0; i < 3; ++i) {
    p->maxThreadsDim[i] = at(cudaDevAttrMaxBlockDimX + i);
    p->maxGridSize[i] = at(cudaDevAttrMaxGridDimX + i);
    p->maxTexture3D[i] = at(cudaDevAttrMaxTexture3DWidth + i);
    p->maxTexture3DAlt[i] = at(cudaDevAttrMaxTexture3DWidthAlt + i);
    p->maxTexture2DLayered[i] = at(cudaDevAttrMaxTexture2DLayeredWidth + i);
    p->maxTexture2DLinear[i] = at(cudaDevAttrMaxTexture2DLinearWidth + i);
    p->maxSurface3D[i] = at(cudaDevAttrMaxSurface3DWidth + i);
    p->maxSurface2DLayered[i] = at(cudaDevAttrMaxSurface2DLayeredWidth + i);
  }
  for (int i = 0; i < 2; ++i) {
    p->maxTexture2D[i] = at(cudaDevAttrMaxTexture2DWidth + i);
    p->maxTexture2DMipmap[i] = at(cudaDevAttrMaxTexture2DMipmappedWidth + i);
    p->maxTexture2DGather[i] = at(cudaDevAttrMaxTexture2DGatherWidth + i);
    p->maxTexture1DLayered[i] = at(cudaDevAttrMaxTexture1DLayeredWidth + i);
    p->maxTextureCubemapLayered[i] = at(cudaDevAttrMaxTextureCubemapLayeredWidth + i);
    p->maxSurface2D[i] = at(cudaDevAttrMaxSurface2DWidth + i);
    p->maxSurface1DLayered[i] = at(cudaDevAttrMaxSurface1DLayeredWidth + i);
    p->maxSurfaceCubemapLayered[i] = at(cudaDevAttrMaxSurfaceCubemapLayeredWidth + i);
  }
  p->textureAlignment = at.size(cudaDevAttrTextureAlignment);
  p->texturePitchAlignment = at.size(cudaDevAttrTexturePitchAlignment);
  p->maxTexture1D = at(cudaDevAttrMaxTexture1DWidth);
  p->maxTexture1DMipmap = at(cudaDevAttrMaxTexture1DMipmappedWidth);
  p->maxTextureCubemap = at(cudaDevAttrMaxTextureCubemapWidth);
  p->maxSurface1D = at(cudaDevAttrMaxSurface1DWidth);
  p->maxSurfaceCubemap = at(cudaDevAttrMaxSurfaceCubemapWidth);
  p->surfaceAlignment = at.size(cudaDevAttrSurfaceAlignment);
}

void fill_features(cudaDeviceProp *p, const Attributes &at) {
  p->integrated = at(cudaDevAttrIntegrated);
  p->canMapHostMemory = at(cudaDevAttrCanMapHostMemory);
  p->concurrentKernels = at(cudaDevAttrConcurrentKernels);
  p->ECCEnabled = at(cudaDevAttrEccEnabled);
  p->pciBusID = at(cudaDevAttrPciBusId);
  p->pciDeviceID = at(cudaDevAttrPciDeviceId);
  p->pciDomainID = at(cudaDevAttrPciDomainId);
  p->tccDriver = at(cudaDevAttrTccDriver);
  p->asyncEngineCount = at(cudaDevAttrAsyncEngineCount);
  p->unifiedAddressing = at(cudaDevAttrUnifiedAddressing);
  p->memoryBusWidth = at(cudaDevAttrGlobalMemoryBusWidth);
  p->l2CacheSize = at(cudaDevAttrL2CacheSize);
  p->persistingL2CacheMaxSize = at(cudaDevAttrMaxPersistingL2CacheSize);
  p->maxThreadsPerMultiProcessor = at(cudaDevAttrMaxThreadsPerMultiProcessor);
  p->streamPrioritiesSupported = at(cudaDevAttrStreamPrioritiesSupported);
  p->globalL1CacheSupported = at(cudaDevAttrGlobalL1CacheSupported);
  p->localL1CacheSupported = at(cudaDevAttrLocalL1CacheSupported);
  p->sharedMemPerMultiprocessor = at.size(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->regsPerMultiprocessor = at(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->managedMemory = at(cudaDevAttrManagedMemory);
  p->isMultiGpuBoard = at(cudaDevAttrIsMultiGpuBoard);
  p->multiGpuBoardGroupID = at(cudaDevAttrMultiGpuBoardGroupID);
  p->hostNativeAtomicSupported = at(cudaDevAttrHostNativeAtomicSupported);
  p->pageableMemoryAccess = at(cudaDevAttrPageableMemoryAccess);
  p->concurrentManagedAccess = at(cudaDevAttrConcurrentManagedAccess);
  p->computePreemptionSupported = at(cudaDevAttrComputePreemptionSupported);
  p->canUseHostPointerForRegisteredMem = at(cudaDevAttrCanUseHostPointerForRegisteredMem);
  p->cooperativeLaunch = at(cudaDevAttrCooperativeLaunch);
  p->sharedMemPerBlockOptin = at.size(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->pageableMemoryAccessUsesHostPageTables = at(cudaDevAttrPageableMemoryAccessUsesHostPageTables);
  p->directManagedMemAccessFromHost = at(cudaDevAttrDirectManagedMemAccessFromHost);
  p->maxBlocksPerMultiProcessor = at(cudaDevAttrMaxBlocksPerMultiprocessor);
  p->accessPolicyMaxWindowSize = at(cudaDevAttrMaxAccessPolicyWindowSize);
  p->reservedSharedMemPerBlock = at.size(cudaDevAttrReservedSharedMemoryPerBlock);
  p->hostRegisterSupported = at(cudaDevAttrHostRegisterSupported);
  p->sparseCudaArraySupported = at(cudaDevAttrSparseCudaArraySupported);
  p->hostRegisterReadOnlySupported = at(cudaDevAttrHostRegisterReadOnlySupported);
  p->timelineSemaphoreInteropSupported = at(cudaDevAttrTimelineSemaphoreInteropSupported);
  p->memoryPoolsSupported = at(cudaDevAttrMemoryPoolsSupported);
  p->gpuDirectRDMASupported = at(cudaDevAttrGPUDirectRDMASupported);
  p->gpuDirectRDMAFlushWritesOptions = static_cast<unsigned>(at(cudaDevAttrGPUDirectRDMAFlushWritesOptions));
  p->gpuDirectRDMAWritesOrdering = at(cudaDevAttrGPUDirectRDMAWritesOrdering);
  p->memoryPoolSupportedHandleTypes = static_cast<unsigned>(at(cudaDevAttrMemoryPoolSupportedHandleTypes));
  p->deferredMappingCudaArraySupported = at(cudaDevAttrDeferredMappingCudaArraySupported);
  p->ipcEventSupported = at(cudaDevAttrIpcEventSupport);
  p->clusterLaunch = at(cudaDevAttrClusterLaunch);
  p->unifiedFunctionPointers = at(cudaDevAttrReserved129); // CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS
#if EIDOLON_CUDA == 12                                     // each version has fields that the other does not have
  p->clockRate = at(cudaDevAttrClockRate);
  p->deviceOverlap = at(cudaDevAttrGpuOverlap);
  p->kernelExecTimeoutEnabled = at(cudaDevAttrKernelExecTimeout);
  p->computeMode = at(cudaDevAttrComputeMode);
  p->maxTexture1DLinear = at(cudaDevAttrMaxTexture1DLinearWidth);
  p->memoryClockRate = at(cudaDevAttrMemoryClockRate);
  p->singleToDoublePrecisionPerfRatio = at(cudaDevAttrSingleToDoublePrecisionPerfRatio);
  p->cooperativeMultiDeviceLaunch = at(cudaDevAttrCooperativeMultiDeviceLaunch);
#else
  p->deviceNumaConfig = at(cudaDevAttrNumaConfig);
  p->deviceNumaId = at(cudaDevAttrNumaId);
  p->mpsEnabled = at(cudaDevAttrMpsEnabled);
  p->hostNumaId = at(cudaDevAttrHostNumaId);
  p->gpuPciDeviceID = static_cast<unsigned>(at(cudaDevAttrGpuPciDeviceId));
  p->gpuPciSubsystemID = static_cast<unsigned>(at(cudaDevAttrGpuPciSubsystemId));
  p->hostNumaMultinodeIpcSupported = at(cudaDevAttrHostNumaMultinodeIpcSupported);
#endif
}

void fill(cudaDeviceProp *p, int device) {
  const Gpu &gpu = config().gpu;
  const Attributes at(device);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "%s", gpu.name);
  device_uuid(device, p->uuid.bytes);
  p->totalGlobalMem = gpu.memory_bytes;
  p->sharedMemPerBlock = at.size(cudaDevAttrMaxSharedMemoryPerBlock);
  p->regsPerBlock = at(cudaDevAttrMaxRegistersPerBlock);
  p->warpSize = at(cudaDevAttrWarpSize);
  p->memPitch = at.size(cudaDevAttrMaxPitch);
  p->maxThreadsPerBlock = at(cudaDevAttrMaxThreadsPerBlock);
  p->totalConstMem = at.size(cudaDevAttrTotalConstantMemory);
  p->major = gpu.cc_major;
  p->minor = gpu.cc_minor;
  p->multiProcessorCount = gpu.sm_count;
  fill_extents(p, at);
  fill_features(p, at);
}

// These hints have no effect on the emulation. They are kept so that asking gives back what was set.
std::mutex hints_mutex;
cudaFuncCache cache_config = cudaFuncCachePreferNone;
std::set<std::pair<int, int>> peers; // (current device, peer) with access enabled

Status check_device(int device) {
  if (Status status = present())
    return status;
  return valid_device(device) ? kSuccess : kInvalidDevice;
}

} // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
  if (count == nullptr)
    return report(kInvalidValue);
  *count = config().active ? device_count() : 0;
  return report(present());
}

cudaError_t cudaGetDevice(int *device) {
  if (device == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (Status status = check_device(device))
    return report(status);
  int before = current_device();
  set_current_device(device);
  Status status = ensure_context(device);
  if (status != kSuccess)
    set_current_device(before);
  return report(status);
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  if (Status status = check_device(device))
    return report(status);
  if ((flags & ~cudaInitDeviceFlagsAreValid) != 0)
    return report(kInvalidValue);
  if ((flags & cudaInitDeviceFlagsAreValid) != 0 && !set_device_flags(device, device_flags))
    return report(kInvalidValue);
  return report(ensure_context(device));
}

cudaError_t cudaSetValidDevices(int *devices, int count) {
  if (count < 0 || (count > 0 && devices == nullptr))
    return report(kInvalidValue);
  for (int i = 0; i < count; ++i)
    if (Status status = check_device(devices[i]))
      return report(status);
  return report(present());
}

// All devices are of one model, so the first fits as well as any.
cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *wanted) {
  if (device == nullptr || wanted == nullptr)
    return report(kInvalidValue);
  *device = 0;
  return report(present());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  if (properties == nullptr)
    return report(kInvalidValue);
  if (Status status = check_device(device))
    return report(status);
  fill(properties, device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr number, int device) {
  if (value == nullptr)
    return report(kInvalidValue);
  if (Status status = check_device(device))
    return report(status);
  return report(device_attribute(number, device, value) ? kSuccess : kInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device) {
  if (out == nullptr || size < 13)
    return report(kInvalidValue);
  if (Status status = check_device(device))
    return report(status);
  device_pci(device, out, static_cast<size_t>(size));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
  if (device == nullptr || id == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  return report(device_of_pci(id, device) ? kSuccess : kInvalidValue);
}

cudaError_t cudaGetDeviceFlags(unsigned *flags) {
  if (flags == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  *flags = device_flags(current_device()) | cudaDeviceMapHost; // always on with unified addressing
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  if (Status status = present())
    return report(status);
  return report(set_device_flags(current_device(), flags) ? kSuccess : kInvalidValue);
}

cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit limit) {
  if (value == nullptr)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  return report(get_limit(current_device(), limit, value));
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  if (Status status = context())
    return report(status);
  return report(set_limit(current_device(), limit, value));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (Status status = context())
    return report(status);
  if (least != nullptr)
    *least = kLeastPriority;
  if (greatest != nullptr)
    *greatest = kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache *value) {
  if (value == nullptr)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  std::lock_guard hold(hints_mutex);
  *value = cache_config;
  return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache value) {
  if (value < cudaFuncCachePreferNone || value > cudaFuncCachePreferEqual)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  std::lock_guard hold(hints_mutex);
  cache_config = value;
  return cudaSuccess;
}

// Banks have had one fixed width since sm_50. Asking gives that width, and setting has no effect.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig *value) {
  if (value == nullptr)
    return report(kInvalidValue);
  *value = cudaSharedMemBankSizeFourByte;
  return report(context());
}

cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig value) {
  if (value < cudaSharedMemBankSizeDefault || value > cudaSharedMemBankSizeEightByte)
    return report(kInvalidValue);
  return report(context());
}
#pragma GCC diagnostic pop

cudaError_t cudaDeviceSynchronize() {
  if (Status status = context())
    return report(status);
  return report(device_synchronize(current_device(), EID_CALL("cudaDeviceSynchronize")));
}

// The primary context lives as long as the process, because a reset would take memory and streams from libraries that
// go on using them. The call waits for all work, as the real one does.
cudaError_t cudaDeviceReset() {
  if (Status status = present())
    return report(status);
  if (!has_context(current_device()))
    return cudaSuccess;
  warn_once("cudaDeviceReset waits for the device but keeps its memory and streams");
  return report(device_synchronize(current_device(), EID_CALL("cudaDeviceReset")));
}

cudaError_t cudaCtxResetPersistingL2Cache() { return report(context()); }

// There is nothing to flush, since all writes of emulated work are visible when the work has ended.
cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget, cudaFlushGPUDirectRDMAWritesScope) {
  return report(kNotSupported); // cudaDevAttrGPUDirectRDMAFlushWritesOptions says so too
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (can == nullptr)
    return report(kInvalidValue);
  if (Status status = check_device(device))
    return report(status);
  if (Status status = check_device(peer))
    return report(status);
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr number, int source, int target) {
  if (value == nullptr)
    return report(kInvalidValue);
  if (Status status = check_device(source))
    return report(status);
  if (Status status = check_device(target))
    return report(status);
  return report(peer_attribute(number, source, target, value));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (Status status = check_device(peer))
    return report(status);
  if (flags != 0)
    return report(kInvalidValue);
  if (peer == current_device())
    return report(kPeerUnsupported);
  if (Status status = context())
    return report(status);
  if (Status status = ensure_context(peer))
    return report(status);
  std::lock_guard hold(hints_mutex);
  return report(peers.insert({current_device(), peer}).second ? kSuccess : kPeerAlreadyEnabled);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  if (Status status = check_device(peer))
    return report(status);
  std::lock_guard hold(hints_mutex);
  return report(peers.erase({current_device(), peer}) != 0 ? kSuccess : kPeerNotEnabled);
}

} // extern "C"
