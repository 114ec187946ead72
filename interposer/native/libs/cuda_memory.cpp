// Driver: allocation of device, managed and pinned memory, what a pointer is, stream-ordered allocation, IPC.
#include "cuda_driver.h"

#include <cstring>
#include <map>
#include <mutex>

#include "pools.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

constexpr size_t kPitchAlignment = 512;

std::mutex flags_mutex;
std::map<const void *, unsigned> host_flags; // by the start of the range; only flags that are not the default

void remember_flags(const void *range, unsigned flags) {
  std::lock_guard hold(flags_mutex);
  if (flags != 0)
    host_flags[range] = flags;
  else
    host_flags.erase(range);
}

Status allocate(CUdeviceptr *out, size_t bytes) {
  if (out == nullptr || bytes == 0)
    return kInvalidValue;
  if (Status status = unsafe_call())
    return status;
  host_cost(EID_CALL("cuMemAlloc"));
  void *at = nullptr;
  Status status = mem_alloc(current_device(), bytes, &at);
  *out = address(at);
  return status;
}

// Whether an address is that of a mapping (virtual memory management).
bool mapped(const void *at) {
  uint64_t handle = 0;
  if (vmm_retain(const_cast<void *>(at), &handle) != kSuccess)
    return false;
  vmm_release(handle);
  return true;
}

template <class T> void put(void *out, T value) { std::memcpy(out, &value, sizeof(T)); }

// One attribute of a pointer that is registered with CUDA in some way.
Status pointer_attribute(void *out, CUpointer_attribute attribute, const PointerInfo &info) {
  const bool device = info.type == PointerInfo::kDevice, managed = info.type == PointerInfo::kManaged;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    put(out, context_of_device(info.device));
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    put(out, static_cast<unsigned>(device || managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    put(out, address(info.device_pointer));
    break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    put(out, info.host_pointer);
    return info.host_pointer != nullptr ? kSuccess : kInvalidValue;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    put(out, static_cast<unsigned>(device || managed));
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    put(out, static_cast<unsigned long long>(info.buffer_id));
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    put(out, static_cast<unsigned>(managed));
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    put(out, info.device);
    break;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: // memory of cudaMalloc is capable, mappings are not
    put(out, static_cast<unsigned>(device && !mapped(info.base)));
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    put(out, address(info.base));
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    put(out, info.bytes);
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    put(out, (info.bytes + kVmmGranularity - 1) / kVmmGranularity * kVmmGranularity);
    break;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    put(out, 1U);
    break;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: // nothing can be exported
    put(out, 0ULL);
    break;
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
  case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    put(out, 0U);
    break;
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    put(out, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    break;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    put(out, static_cast<void *>(nullptr));
    break;
  default:
    return kInvalidValue;
  }
  return kSuccess;
}

// The bytes that an attribute takes. For a pointer that CUDA does not know they are cleared.
size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_MAPPED:
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
  case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    return 4;
  default:
    return 8;
  }
}

CUmemoryPool handle_of(PoolHandle *pool) { return reinterpret_cast<CUmemoryPool>(pool); }

Status device_pool(CUmemoryPool *out, CUdevice device, bool current) {
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = initialised())
    return status;
  if (!valid_device(device))
    return kInvalidDevice;
  *out = handle_of(current ? current_pool(device) : default_pool(device));
  return kSuccess;
}

Status allocate_async(CUdeviceptr *out, size_t bytes, PoolHandle *pool, Stream *on) {
  if (out == nullptr || pool == nullptr || bytes == 0)
    return kInvalidValue;
  if (captures(on)) { // this would be an allocation node
    unmodelled("cuda", "cuMemAllocAsync in a capture");
    return kNotSupported;
  }
  host_cost(EID_CALL("cuMemAllocAsync"));
  void *at = nullptr;
  Status status = mem_alloc_async(pool->device, bytes, on, &at);
  *out = address(at);
  return status;
}

} // namespace

extern "C" {

// ---- device memory ------------------------------------------------------------------------------------------------

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return result(allocate(out, bytes)); }

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element_bytes) {
  if (pitch == nullptr || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
    return result(kInvalidValue);
  *pitch = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  return result(allocate(out, *pitch * height));
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
  if (out == nullptr || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return result(kInvalidValue);
  if (Status status = unsafe_call())
    return result(status);
  host_cost(EID_CALL("cuMemAllocManaged"));
  void *at = nullptr;
  Status status = managed_alloc(bytes, &at);
  *out = address(at);
  return result(status);
}

CUresult cuMemFree_v2(CUdeviceptr at) {
  if (Status status = unsafe_call())
    return result(status);
  if (at == 0)
    return result(kSuccess);
  host_cost(EID_CALL("cuMemFree"));
  return result(mem_free(pointer(at)));
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  if (Status status = current_context())
    return result(status);
  return result(mem_info(current_device(), free_bytes, total_bytes));
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
  if (Status status = current_context())
    return result(status);
  PointerInfo info = pointer_info(pointer(at));
  if (info.type == PointerInfo::kUnregistered)
    return result(kNotFound);
  if (base != nullptr)
    *base = address(info.base);
  if (bytes != nullptr)
    *bytes = info.bytes;
  return result(kSuccess);
}

// ---- pinned host memory -------------------------------------------------------------------------------------------

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (out == nullptr || bytes == 0 || (flags & ~kKnown) != 0)
    return result(kInvalidValue);
  if (Status status = unsafe_call())
    return result(status);
  host_cost(EID_CALL("cuMemHostAlloc"));
  Status status = host_alloc(bytes, out);
  if (status == kSuccess)
    remember_flags(*out, flags);
  return result(status);
}

CUresult cuMemAllocHost_v2(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

CUresult cuMemFreeHost(void *host) {
  if (Status status = unsafe_call())
    return result(status);
  if (pointer_info(host).type != PointerInfo::kHost)
    return result(kInvalidValue);
  host_cost(EID_CALL("cuMemFreeHost"));
  if (Status status = device_synchronize(current_device(), EID_CALL("cuMemFreeHost")))
    return result(status);
  remember_flags(host, 0);
  return result(host_free(host));
}

CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |
                              CU_MEMHOSTREGISTER_READ_ONLY;
  if (host == nullptr || bytes == 0 || (flags & ~kKnown) != 0)
    return result(kInvalidValue);
  if (Status status = unsafe_call())
    return result(status);
  host_cost(EID_CALL("cuMemHostRegister"));
  Status status = host_register(host, bytes);
  if (status == kSuccess)
    remember_flags(host, flags & CU_MEMHOSTREGISTER_PORTABLE);
  return result(status);
}

CUresult cuMemHostUnregister(void *host) {
  if (host == nullptr)
    return result(kInvalidValue);
  if (Status status = unsafe_call())
    return result(status);
  host_cost(EID_CALL("cuMemHostUnregister"));
  Status status = host_unregister(host);
  if (status == kSuccess)
    remember_flags(host, 0);
  return result(status);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *host, unsigned flags) {
  if (out == nullptr || flags != 0)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  PointerInfo info = pointer_info(host);
  if (info.type != PointerInfo::kHost && info.type != PointerInfo::kManaged)
    return result(kInvalidValue);
  *out = address(info.device_pointer);
  return result(kSuccess);
}

CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
  if (flags == nullptr)
    return result(kInvalidValue);
  PointerInfo info = pointer_info(host);
  if (info.type != PointerInfo::kHost)
    return result(kInvalidValue);
  std::lock_guard hold(flags_mutex);
  auto found = host_flags.find(info.base);
  *flags = CU_MEMHOSTALLOC_DEVICEMAP | (found != host_flags.end() ? found->second : 0);
  return result(kSuccess);
}

// ---- what a pointer is --------------------------------------------------------------------------------------------

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr at) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  PointerInfo info = pointer_info(pointer(at));
  return result(info.type != PointerInfo::kUnregistered ? pointer_attribute(out, attribute, info) : kInvalidValue);
}

// Unlike the form for one attribute, this one answers zeros for a pointer that CUDA does not know.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr at) {
  if (count == 0 || attributes == nullptr || out == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  PointerInfo info = pointer_info(pointer(at));
  for (unsigned i = 0; i < count; ++i) {
    std::memset(out[i], 0, attribute_bytes(attributes[i]));
    if (info.type != PointerInfo::kUnregistered)
      pointer_attribute(out[i], attributes[i], info);
    else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      put(out[i], CU_DEVICE_INVALID);
  }
  return result(kSuccess);
}

// The only attribute that can be set asks for synchronous memory operations, and every copy here is ordered in that
// way.
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr at) {
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  return result(pointer_info(pointer(at)).type == PointerInfo::kDevice ? kSuccess : kInvalidValue);
}

// ---- stream-ordered allocation and pools
// -----------------------------------------------------------------------------

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  return result(allocate_async(out, bytes, current_pool(stream_device(on)), on));
}
EID_PER_THREAD(3, cuMemAllocAsync)

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream handle) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  return result(allocate_async(out, bytes, pool_of(pool), on));
}
EID_PER_THREAD(4, cuMemAllocFromPoolAsync)

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  if (at == 0)
    return result(kInvalidValue);
  if (captures(on)) { // this would be a free node
    unmodelled("cuda", "cuMemFreeAsync in a capture");
    return result(kNotSupported);
  }
  host_cost(EID_CALL("cuMemFreeAsync"));
  return result(mem_free_async(pointer(at), on));
}
EID_PER_THREAD(2, cuMemFreeAsync)

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  return result(device_pool(out, device, false));
}
CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) { return result(device_pool(out, device, true)); }

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  PoolHandle *pool = pool_of(handle);
  if (pool == nullptr || pool->device != device)
    return result(kInvalidValue);
  pools().current[device].store(pool);
  return result(kSuccess);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
  if (out == nullptr || properties == nullptr || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return result(kInvalidValue);
  if (!valid_device(properties->location.id))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return result(kNotSupported);
  if (Status status = ensure_context(properties->location.id))
    return result(status);
  *out = handle_of(create_pool(properties->location.id));
  return result(kSuccess);
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  PoolHandle *pool = pool_of(handle);
  return result(pool != nullptr ? destroy_pool(pool) : kInvalidValue);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes) {
  PoolHandle *pool = pool_of(handle);
  if (pool == nullptr)
    return result(kInvalidValue);
  pool_trim(pool->device, keep_bytes);
  return result(kSuccess);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  PoolHandle *pool = pool_of(handle);
  return result(pool != nullptr && value != nullptr ? pool_get(pool, attribute, value) : kInvalidValue);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  PoolHandle *pool = pool_of(handle);
  return result(pool != nullptr && value != nullptr ? pool_set(pool, attribute, value) : kInvalidValue);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list, size_t count) {
  PoolHandle *pool = pool_of(handle);
  if (pool == nullptr || (count != 0 && list == nullptr))
    return result(kInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return result(kInvalidValue);
    if (!valid_device(list[i].location.id))
      return result(kInvalidDevice);
    if (list[i].location.id == pool->device && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return result(kInvalidValue); // access cannot be taken from the owner
  }
  return result(kSuccess);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location) {
  if (flags == nullptr || location == nullptr || pool_of(handle) == nullptr ||
      location->type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(location->id))
    return result(kInvalidValue);
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return result(kSuccess);
}

// ---- between processes --------------------------------------------------------------------------------------------

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
  if (handle == nullptr || at == 0)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  static_assert(sizeof *handle == kIpcHandleBytes);
  return result(ipc_get(pointer(at), reinterpret_cast<unsigned char *>(handle)));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return result(kInvalidValue);
  if (Status status = unsafe_call())
    return result(status);
  host_cost(EID_CALL("cuIpcOpenMemHandle"));
  void *at = nullptr;
  Status status = ipc_open(reinterpret_cast<const unsigned char *>(&handle), &at);
  *out = address(at);
  return result(status);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
  if (Status status = unsafe_call())
    return result(status);
  host_cost(EID_CALL("cuIpcCloseMemHandle"));
  return result(ipc_close(pointer(at)));
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
  if (handle == nullptr)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  static_assert(sizeof *handle == kIpcHandleBytes);
  return result(event_ipc_get(event, reinterpret_cast<unsigned char *>(handle)));
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
  if (event == nullptr)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  void *opened = nullptr;
  Status status = event_ipc_open(reinterpret_cast<const unsigned char *>(&handle), &opened);
  *event = static_cast<CUevent>(opened);
  return result(status);
}

} // extern "C"
