// cudaStreamAddCallback and cuStreamAddCallback: callbacks with a stream and a status, on the core's plain ones.
#pragma once
#include "status.h"

namespace eidolon {

template <class Handle, class Function>
Status add_callback(Stream *stream, Handle handle, Function function, void *data, uint16_t call) {
  struct Pending {
    Handle handle;
    Function function;
    void *data;
  };
  if (capture_info(stream).status != 0) // only cudaLaunchHostFunc can be captured
    return kCaptureUnsupported;
  auto *pending = new Pending{handle, function, data};
  auto run = [](void *opaque) {
    auto *one = static_cast<Pending *>(opaque);
    one->function(one->handle, {}, one->data); // {}: success
    delete one;
  };
  Status status = stream_callback(stream, run, pending, call);
  if (status != kSuccess)
    delete pending;
  return status;
}

} // namespace eidolon
