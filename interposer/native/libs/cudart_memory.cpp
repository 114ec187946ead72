// Runtime: allocation of device, managed and pinned memory, what a pointer is, memory shared between processes.
//
// Calls that CUDA forbids while a stream of the thread captures are refused here, before the core is asked.
#include "cudart.h"

#include <map>
#include <mutex>

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

constexpr size_t kPitchAlignment = 512;

// Flags that were asked for with pinned memory, by the start of the range. Only flags that are not the default stand
// here.
std::mutex flags_mutex;
std::map<const void *, unsigned> host_flags;

void remember_flags(const void *pointer, unsigned flags) {
  std::lock_guard hold(flags_mutex);
  if (flags != 0)
    host_flags[pointer] = flags;
  else
    host_flags.erase(pointer);
}

// Comes before a call that waits for the device or allocates. Such a call needs a context and breaks a capture.
Status unsafe_call() {
  if (Status status = context())
    return status;
  return capture_forbids_unsafe_call() ? kCaptureUnsupported : kSuccess;
}

size_t pitch_of(size_t width) { return (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment; }

Status allocate(void **out, size_t bytes, uint16_t call) {
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = unsafe_call())
    return status;
  host_cost(call);
  return mem_alloc(current_device(), bytes, out);
}

bool on_host(const PointerInfo &info) { return info.type == PointerInfo::kHost || info.type == PointerInfo::kManaged; }

} // namespace

extern "C" {

cudaError_t cudaMalloc(void **out, size_t bytes) { return report(allocate(out, bytes, EID_CALL("cudaMalloc"))); }

cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
  if (pitch == nullptr)
    return report(kInvalidValue);
  *pitch = pitch_of(width);
  return report(allocate(out, *pitch * height, EID_CALL("cudaMalloc")));
}

cudaError_t cudaMalloc3D(cudaPitchedPtr *out, cudaExtent extent) {
  if (out == nullptr)
    return report(kInvalidValue);
  void *pointer = nullptr;
  const size_t pitch = pitch_of(extent.width);
  if (Status status = allocate(&pointer, pitch * extent.height * extent.depth, EID_CALL("cudaMalloc")))
    return report(status);
  *out = {pointer, pitch, extent.width, extent.height};
  return cudaSuccess;
}

// Managed memory is one copy on the host. It takes no device memory, as pages take none that only the host has touched.
cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags) {
  if (out == nullptr || bytes == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost))
    return report(kInvalidValue);
  if (Status status = unsafe_call())
    return report(status);
  host_cost(EID_CALL("cudaMallocManaged"));
  return report(managed_alloc(bytes, out));
}

// Programs free a null pointer in order to create a context.
cudaError_t cudaFree(void *pointer) {
  if (Status status = unsafe_call())
    return report(status);
  if (pointer == nullptr)
    return cudaSuccess;
  host_cost(EID_CALL("cudaFree"));
  return report(mem_free(pointer));
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if (out == nullptr || (flags & ~kKnown) != 0)
    return report(kInvalidValue);
  if (Status status = unsafe_call())
    return report(status);
  host_cost(EID_CALL("cudaHostAlloc"));
  Status status = host_alloc(bytes, out);
  if (status == kSuccess)
    remember_flags(*out, flags);
  return report(status);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *pointer) {
  if (Status status = unsafe_call())
    return report(status);
  if (pointer == nullptr)
    return cudaSuccess;
  if (pointer_info(pointer).type != PointerInfo::kHost)
    return report(kInvalidValue);
  host_cost(EID_CALL("cudaFreeHost"));
  if (Status status = device_synchronize(current_device(), EID_CALL("cudaFreeHost")))
    return report(status);
  remember_flags(pointer, 0);
  return report(host_free(pointer));
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown =
      cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
  if (pointer == nullptr || bytes == 0 || (flags & ~kKnown) != 0)
    return report(kInvalidValue);
  if (Status status = unsafe_call())
    return report(status);
  host_cost(EID_CALL("cudaHostRegister"));
  Status status = host_register(pointer, bytes);
  if (status == kSuccess)
    remember_flags(pointer, flags & cudaHostRegisterPortable);
  return report(status);
}

cudaError_t cudaHostUnregister(void *pointer) {
  if (pointer == nullptr)
    return report(kInvalidValue);
  if (Status status = unsafe_call())
    return report(status);
  host_cost(EID_CALL("cudaHostUnregister"));
  Status status = host_unregister(pointer);
  if (status == kSuccess)
    remember_flags(pointer, 0);
  return report(status);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags) {
  if (out == nullptr || flags != 0)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  PointerInfo info = pointer_info(host);
  if (!on_host(info))
    return report(kInvalidValue);
  *out = info.device_pointer;
  return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *host) {
  if (flags == nullptr)
    return report(kInvalidValue);
  PointerInfo info = pointer_info(host);
  if (info.type != PointerInfo::kHost)
    return report(kInvalidValue);
  std::lock_guard hold(flags_mutex);
  auto found = host_flags.find(info.base);
  *flags = cudaHostAllocMapped | (found != host_flags.end() ? found->second : 0); // mapped: unified addressing
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  if (Status status = context())
    return report(status);
  return report(mem_info(current_device(), free_bytes, total_bytes));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *pointer) {
  if (out == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  PointerInfo info = pointer_info(pointer);
  *out = {};
  out->type = static_cast<cudaMemoryType>(info.type);
  out->device = info.type == PointerInfo::kUnregistered ? cudaInvalidDeviceId : info.device;
  out->devicePointer = info.device_pointer;
  out->hostPointer = info.host_pointer;
  return cudaSuccess;
}

// ---- managed memory: placement is advice, and there is one place --------------------------------------------------

cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, cudaMemoryAdvise, cudaMemLocation) {
  if (bytes == 0 || pointer_info(pointer).type != PointerInfo::kManaged)
    return report(kInvalidValue);
  return report(context());
}

cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, cudaMemLocation, unsigned flags,
                                 cudaStream_t handle) {
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return report(status);
  if (bytes == 0 || flags != 0 || pointer_info(pointer).type != PointerInfo::kManaged)
    return report(kInvalidValue);
  // its effect is right, but its migration takes no time, so it is counted
  unmodelled("cudart", "cudaMemPrefetchAsync");
  return cudaSuccess;
}
EID_PER_THREAD(5, cudaMemPrefetchAsync)

cudaError_t cudaStreamAttachMemAsync(cudaStream_t handle, void *pointer, size_t, unsigned flags) {
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return report(status);
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost && flags != cudaMemAttachSingle)
    return report(kInvalidValue);
  return report(pointer_info(pointer).type == PointerInfo::kManaged ? kSuccess : kInvalidValue);
}
EID_PER_THREAD(4, cudaStreamAttachMemAsync)

// ---- between processes --------------------------------------------------------------------------------------------

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  if (handle == nullptr || pointer == nullptr)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  static_assert(sizeof *handle == kIpcHandleBytes);
  return report(ipc_get(pointer, reinterpret_cast<unsigned char *>(handle)));
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) {
  if (out == nullptr || flags != cudaIpcMemLazyEnablePeerAccess)
    return report(kInvalidValue);
  if (Status status = unsafe_call())
    return report(status);
  host_cost(EID_CALL("cudaIpcOpenMemHandle"));
  return report(ipc_open(reinterpret_cast<const unsigned char *>(&handle), out));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
  if (Status status = unsafe_call())
    return report(status);
  host_cost(EID_CALL("cudaIpcCloseMemHandle"));
  return report(ipc_close(pointer));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  if (handle == nullptr)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  static_assert(sizeof *handle == kIpcHandleBytes);
  return report(event_ipc_get(event, reinterpret_cast<unsigned char *>(handle)));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
  if (event == nullptr)
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  void *opened = nullptr;
  Status status = event_ipc_open(reinterpret_cast<const unsigned char *>(&handle), &opened);
  *event = static_cast<cudaEvent_t>(opened);
  return report(status);
}

} // extern "C"
