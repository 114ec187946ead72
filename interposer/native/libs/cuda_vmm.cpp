// Driver: virtual memory management.
//
// The core numbers physical allocations. A handle that is given out carries the device beside that number (in the upper
// byte, plus one), so that its properties can be read from it. Every allocation can be exported as a file descriptor.
// Fabric handles, which cross servers, need the device files of an IMEX daemon, and are refused as where there are
// none. Multicast objects are not modelled.
#include "cuda_driver.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

using Handle = CUmemGenericAllocationHandle;
constexpr int kDeviceShift = 56;
constexpr Handle kNumberMask = (Handle{1} << kDeviceShift) - 1;

Handle pack(uint64_t number, int device) { return number | static_cast<Handle>(device + 1) << kDeviceShift; }
uint64_t number_of(Handle handle) { return handle & kNumberMask; }
int device_of(Handle handle) { return static_cast<int>(handle >> kDeviceShift) - 1; }

Status check_properties(const CUmemAllocationProp *p) {
  if (p == nullptr || p->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return kInvalidValue;
  if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    unmodelled("cuda", "virtual memory management of host memory");
    return kNotSupported;
  }
  return valid_device(p->location.id) ? kSuccess : kInvalidDevice;
}

Status check_access(const CUmemAccessDesc *list, size_t count) {
  if (count == 0 || list == nullptr)
    return kInvalidValue;
  for (size_t i = 0; i < count; ++i)
    if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(list[i].location.id))
      return kInvalidValue;
  return kSuccess;
}

} // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
  if (out == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  if (Status status = check_properties(properties))
    return result(status);
  *out = kVmmGranularity;
  return result(kSuccess);
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  if (out == nullptr || flags != 0 || (alignment & (alignment - 1)) != 0)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  void *at = nullptr;
  Status status = vmm_reserve(bytes, alignment, pointer(hint), &at);
  *out = address(at);
  return result(status);
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) { return result(vmm_unreserve(pointer(at), bytes)); }

CUresult cuMemCreate(Handle *out, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags) {
  if (out == nullptr || flags != 0)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  if (Status status = check_properties(properties))
    return result(status);
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0)
    return result(kNotPermitted);
  host_cost(EID_CALL("cuMemCreate"));
  uint64_t number = 0;
  if (Status status = vmm_create(properties->location.id, bytes, &number))
    return result(status);
  *out = pack(number, properties->location.id);
  return result(kSuccess);
}

CUresult cuMemRelease(Handle handle) {
  host_cost(EID_CALL("cuMemRelease"));
  return result(vmm_release(number_of(handle)));
}

CUresult cuMemRetainAllocationHandle(Handle *out, void *at) {
  if (out == nullptr)
    return result(kInvalidValue);
  uint64_t number = 0;
  if (Status status = vmm_retain(at, &number))
    return result(status);
  *out = pack(number, pointer_info(at).device);
  return result(kSuccess);
}

CUresult cuMemExportToShareableHandle(void *out, Handle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  if (out == nullptr || flags != 0)
    return result(kInvalidValue);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return result(type == CU_MEM_HANDLE_TYPE_FABRIC ? kNotPermitted : kNotSupported);
  host_cost(EID_CALL("cuMemExportToShareableHandle"));
  return result(vmm_export(number_of(handle), static_cast<int *>(out)));
}

CUresult cuMemImportFromShareableHandle(Handle *out, void *shared, CUmemAllocationHandleType type) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return result(type == CU_MEM_HANDLE_TYPE_FABRIC ? kNotPermitted : kNotSupported);
  if (Status status = initialised())
    return result(status);
  host_cost(EID_CALL("cuMemImportFromShareableHandle"));
  uint64_t number = 0;
  int device = 0;
  if (Status status = vmm_import(static_cast<int>(reinterpret_cast<intptr_t>(shared)), &number, &device))
    return result(status);
  *out = pack(number, device);
  return result(kSuccess);
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, Handle handle, unsigned long long flags) {
  if (flags != 0)
    return result(kInvalidValue);
  if (offset != 0)
    return result(kNotSupported); // as the driver
  host_cost(EID_CALL("cuMemMap"));
  return result(vmm_map(pointer(at), bytes, offset, number_of(handle)));
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  host_cost(EID_CALL("cuMemUnmap"));
  return result(vmm_unmap(pointer(at), bytes));
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *list, size_t count) {
  if (Status status = check_access(list, count))
    return result(status);
  host_cost(EID_CALL("cuMemSetAccess"));
  return result(vmm_set_access(pointer(at), bytes));
}

// Every device of a server can reach what another device has mapped.
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at) {
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      !valid_device(location->id) || pointer_info(pointer(at)).type != PointerInfo::kDevice)
    return result(kInvalidValue);
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return result(kSuccess);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, Handle handle) {
  const int device = device_of(handle);
  if (out == nullptr || !valid_device(device))
    return result(kInvalidValue);
  *out = {};
  out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  out->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  out->location.id = device;
  return result(kSuccess);
}

} // extern "C"
