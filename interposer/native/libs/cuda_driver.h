// Private to the driver library (cuda_*.cpp): its view of CUDA's header and of contexts.
//
// Functions are defined under the names that the library exports (cuMemAlloc_v2, not the cuMemAlloc that the header
// turns into it), so that a search finds them and cuGetProcAddress can name them.
#pragma once
#include "cuda_header.h"
#include "library.h"
#include "per_thread.h"

// Marks exports that the header declares only as macros: older forms, and those for per-thread streams.
#define EID_EXPORT extern "C" __attribute__((visibility("default")))

namespace eidolon::driver {

// The driver calls a bad pitch an invalid value.
inline CUresult result(Status status) {
  return static_cast<CUresult>(status == kInvalidPitch ? kInvalidValue : status);
}

// The driver counts as initialised wherever there are emulated devices. In reality the runtime initialises it, but here
// the runtime is another library.
inline Status initialised() { return config().active ? kSuccess : kNotInitialized; }

// Comes before anything that needs a current context. The process becomes a rank here if the context is the primary one
// of a device that nothing was done on yet.
Status current_context();

// The same, and gives the stream that an operation goes to.
inline Status stream(void *handle, Stream **out) {
  if (Status status = current_context())
    return status;
  *out = stream_of(handle);
  return *out != nullptr ? kSuccess : kInvalidHandle;
}

// The same for work on the stream, which a spoiled capture refuses.
inline Status work_stream(void *handle, Stream **out) {
  if (Status status = stream(handle, out))
    return status;
  return capture_info(*out).status == CaptureStatus::kInvalidated ? kCaptureInvalidated : kSuccess;
}

// What the shared bodies need to know of the driver.
inline constexpr Library kDriver{"cuda", "cu", initialised, current_context, stream, work_stream};

// Comes before a call that allocates or waits, which breaks a capture.
inline Status unsafe_call() {
  if (Status status = current_context())
    return status;
  return capture_forbids_unsafe_call() ? kCaptureUnsupported : kSuccess;
}

// The context that owns the memory and the streams of a device.
CUcontext context_of_device(int device);

inline void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }
inline CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

} // namespace eidolon::driver
