// What the runtime (cudart_*.cpp) and the driver (cuda_*.cpp) share: argument checks that come before the core.
//
// cudaError_t and CUresult use the same numbers for what both can say. The few that differ stand here under their
// meaning.
#pragma once
#include "core.h"

namespace eidolon {

inline constexpr Status kInvalidConfiguration = 9, kInvalidPitch = 12, kInvalidSymbol = 13, kInvalidDirection = 21,
                        kInvalidFunction = 98, kNoDevice = 100, kInvalidImage = 200, kInvalidContext = 201,
                        kUnsupportedLimit = 215, kFileNotFound = 301, kOperatingSystem = 304, kPeerUnsupported = 217,
                        kOutOfResources = 701, kPeerAlreadyEnabled = 704, kPeerNotEnabled = 705, kIllegalState = 401,
                        kPrimaryActive = 708, kAlreadyRegistered = 712, kNotRegistered = 713,
                        kCooperativeTooLarge = 720, kNotPermitted = 800, kUpdateFailure = 910, kInvalidCluster = 912;

inline constexpr int kCudaVersion = EIDOLON_CUDA == 12 ? 12080 : 13000; // of the toolkit that these libraries belong to
inline constexpr int kDriverCudaVersion = 13000;                        // the newest that the driver (580) runs
inline constexpr int kWarp = 32, kMaxBlockThreads = 1024;

inline bool valid_device(int device) { return config().active && device >= 0 && device < device_count(); }

// Comes before anything that needs a device but no context.
inline Status present() { return config().active && device_count() > 0 ? kSuccess : kNoDevice; }

// Comes before anything that needs a context. It makes this process a rank with a context on the thread's device.
inline Status context() {
  if (Status status = present())
    return status;
  return ensure_context(current_device());
}

// The same, and gives the stream that an operation goes to.
inline Status resolve(void *handle, Stream **out) {
  if (Status status = context())
    return status;
  *out = stream_of(handle);
  return *out != nullptr ? kSuccess : kInvalidHandle;
}

// The same for work on the stream, which a spoiled capture refuses.
inline Status resolve_work(void *handle, Stream **out) {
  if (Status status = resolve(handle, out))
    return status;
  return capture_info(*out).status == CaptureStatus::kInvalidated ? kCaptureInvalidated : kSuccess;
}

// Counts a call that takes noticeable time on the host alone.
inline void host_cost(uint16_t call) {
  if (is_rank())
    host(call);
}

// Switches the thread's device for one scope.
class DeviceScope {
public:
  explicit DeviceScope(int device) : before_(current_device()) {
    if (device != before_)
      set_current_device(device);
  }
  ~DeviceScope() {
    if (current_device() != before_)
      set_current_device(before_);
  }
  DeviceScope(const DeviceScope &) = delete;
  DeviceScope &operator=(const DeviceScope &) = delete;

private:
  int before_;
};

} // namespace eidolon
