// Private to the driver library (cuda_*.cpp): its view of CUDA's header and of contexts.
//
// Functions are defined under the names that the library exports (cuMemAlloc_v2, not the cuMemAlloc that the header
// turns into it), so that a search finds them and cuGetProcAddress can name them.
#pragma once
#include "cuda_header.h"
#include "library.h"
#include "per_thread.h"

// Exports that the header declares only as macros: older and per-thread-stream variants.
#define EID_EXPORT extern "C" __attribute__((visibility("default")))

namespace eidolon::driver {

// The driver calls a bad pitch an invalid value.
inline CUresult result(Status status) {
  return static_cast<CUresult>(status == kInvalidPitch ? kInvalidValue : status);
}

// The driver counts as initialised where there are emulated devices: the runtime, which initialises it in reality, is
// another library here.
inline Status initialised() { return config().active ? kSuccess : kNotInitialized; }

// Before anything that needs a current context. Makes the process a rank if the context is the primary one of a device
// that nothing was done on yet.
Status current_context();

// The same, and the stream an operation goes to.
inline Status stream(void *handle, Stream **out) {
  if (Status status = current_context())
    return status;
  *out = stream_of(handle);
  return *out != nullptr ? kSuccess : kInvalidHandle;
}

// The same for work on it: a capture that was spoiled takes none.
inline Status work_stream(void *handle, Stream **out) {
  if (Status status = stream(handle, out))
    return status;
  return capture_info(*out).status == CaptureStatus::kInvalidated ? kCaptureInvalidated : kSuccess;
}

// What the bodies that both libraries share need to know of the driver.
inline constexpr Library kDriver{"cuda", "cu", initialised, current_context, stream, work_stream};

// A call that allocates or waits: it breaks a capture.
inline Status unsafe_call() {
  if (Status status = current_context())
    return status;
  return capture_forbids_unsafe_call() ? kCaptureUnsupported : kSuccess;
}

// The context whose memory and streams a device's are.
CUcontext context_of_device(int device);

inline void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }
inline CUdeviceptr address(const void *pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

} // namespace eidolon::driver
