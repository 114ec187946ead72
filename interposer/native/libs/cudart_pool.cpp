// Runtime: stream-ordered allocation and memory pools.
#include "cudart.h"

#include "pools.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

cudaMemPool_t handle_of(PoolHandle *pool) { return reinterpret_cast<cudaMemPool_t>(pool); }

Status allocate(void **out, size_t bytes, PoolHandle *pool, cudaStream_t handle, uint16_t call) {
  if (out == nullptr || pool == nullptr)
    return kInvalidValue;
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return status;
  if (captures(stream)) { // this would be an allocation node
    unmodelled("cudart", "cudaMallocAsync in a capture");
    return kNotSupported;
  }
  host_cost(call);
  return mem_alloc_async(pool->device, bytes, stream, out);
}

Status device_pool(int device, cudaMemPool_t *out, bool current) {
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = present())
    return status;
  if (!valid_device(device))
    return kInvalidDevice;
  *out = handle_of(current ? current_pool(device) : default_pool(device));
  return kSuccess;
}

} // namespace

extern "C" {

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream) {
  if (Status status = context())
    return report(status);
  Stream *resolved = stream_of(stream);
  if (resolved == nullptr)
    return report(kInvalidHandle);
  PoolHandle *pool = current_pool(stream_device(resolved));
  return report(allocate(out, bytes, pool, stream, EID_CALL("cudaMallocAsync")));
}

cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return report(allocate(out, bytes, pool_of(pool), stream, EID_CALL("cudaMallocFromPoolAsync")));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t handle) {
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return report(status);
  if (pointer == nullptr)
    return cudaSuccess;
  if (captures(stream)) { // this would be a free node
    unmodelled("cudart", "cudaFreeAsync in a capture");
    return report(kNotSupported);
  }
  host_cost(EID_CALL("cudaFreeAsync"));
  return report(mem_free_async(pointer, stream));
}

EID_PER_THREAD(3, cudaMallocAsync)
EID_PER_THREAD(4, cudaMallocFromPoolAsync)
EID_PER_THREAD(2, cudaFreeAsync)

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  return report(device_pool(device, pool, false));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) { return report(device_pool(device, pool, true)); }

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  if (Status status = present())
    return report(status);
  PoolHandle *pool = pool_of(handle);
  if (!valid_device(device))
    return report(kInvalidDevice);
  if (pool == nullptr || pool->device != device)
    return report(kInvalidValue);
  pools().current[device].store(pool);
  return cudaSuccess;
}

cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t *pool, cudaMemLocation *location, cudaMemAllocationType type) {
  if (location == nullptr || location->type != cudaMemLocationTypeDevice || type != cudaMemAllocationTypePinned)
    return report(kInvalidValue);
  return report(device_pool(location->id, pool, false));
}

cudaError_t cudaMemGetMemPool(cudaMemPool_t *pool, cudaMemLocation *location, cudaMemAllocationType type) {
  if (location == nullptr || location->type != cudaMemLocationTypeDevice || type != cudaMemAllocationTypePinned)
    return report(kInvalidValue);
  return report(device_pool(location->id, pool, true));
}

cudaError_t cudaMemSetMemPool(cudaMemLocation *location, cudaMemAllocationType type, cudaMemPool_t pool) {
  if (location == nullptr || location->type != cudaMemLocationTypeDevice || type != cudaMemAllocationTypePinned)
    return report(kInvalidValue);
  return cudaDeviceSetMemPool(location->id, pool);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const cudaMemPoolProps *properties) {
  if (out == nullptr || properties == nullptr || properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  if (!valid_device(properties->location.id))
    return report(kInvalidDevice);
  if (properties->handleTypes != cudaMemHandleTypeNone) // cudaDevAttrMemoryPoolSupportedHandleTypes says so too
    return report(kNotSupported);
  if (Status status = ensure_context(properties->location.id))
    return report(status);
  *out = handle_of(create_pool(properties->location.id));
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  PoolHandle *pool = pool_of(handle);
  return report(pool != nullptr ? destroy_pool(pool) : kInvalidValue);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep_bytes) {
  PoolHandle *pool = pool_of(handle);
  if (pool == nullptr)
    return report(kInvalidValue);
  pool_trim(pool->device, keep_bytes);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void *value) {
  PoolHandle *pool = pool_of(handle);
  return report(pool != nullptr && value != nullptr ? pool_get(pool, attribute, value) : kInvalidValue);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void *value) {
  PoolHandle *pool = pool_of(handle);
  return report(pool != nullptr && value != nullptr ? pool_set(pool, attribute, value) : kInvalidValue);
}

// Every device of a server reaches every other's memory, so access is never refused and cannot be taken from the owner.
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc *list, size_t count) {
  PoolHandle *pool = pool_of(handle);
  if (pool == nullptr || (count != 0 && list == nullptr))
    return report(kInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    if (list[i].location.type != cudaMemLocationTypeDevice)
      return report(kInvalidValue);
    if (!valid_device(list[i].location.id))
      return report(kInvalidDevice);
    if (list[i].location.id == pool->device && list[i].flags != cudaMemAccessFlagsProtReadWrite)
      return report(kInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags *flags, cudaMemPool_t handle, cudaMemLocation *location) {
  if (flags == nullptr || location == nullptr || pool_of(handle) == nullptr ||
      location->type != cudaMemLocationTypeDevice || !valid_device(location->id))
    return report(kInvalidValue);
  *flags = cudaMemAccessFlagsProtReadWrite;
  return cudaSuccess;
}

// ---- memory of graphs: no graph owns any (allocation nodes are not modelled)
// -----------------------------------------

cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void *value) {
  if (Status status = present())
    return report(status);
  if (!valid_device(device))
    return report(kInvalidDevice);
  if (value == nullptr || attribute < cudaGraphMemAttrUsedMemCurrent || attribute > cudaGraphMemAttrReservedMemHigh)
    return report(kInvalidValue);
  const uint64_t none = 0;
  std::memcpy(value, &none, sizeof none);
  return cudaSuccess;
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void *value) {
  if (Status status = present())
    return report(status);
  if (!valid_device(device))
    return report(kInvalidDevice);
  if (value == nullptr || (attribute != cudaGraphMemAttrUsedMemHigh && attribute != cudaGraphMemAttrReservedMemHigh))
    return report(kInvalidValue);
  return cudaSuccess;
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  if (Status status = present())
    return report(status);
  return report(valid_device(device) ? kSuccess : kInvalidDevice);
}

} // extern "C"
