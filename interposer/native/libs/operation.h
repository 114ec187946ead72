// Device work of libraries that have no signature of their own (FFT, dense and sparse solvers). It is an operation of
// kind "library", named library:function, with what is known of its size. The results that it writes are unknown
// values.
#pragma once
#include "core.h"

namespace eidolon {

struct Work {
  int64_t bytes = 0; // device memory read and written
  int64_t flops = 0; // 0: not known
};

// Issues one operation to a stream handle; kInvalidHandle for a stream that is not one.
inline Status launch_library(const char *name, Work work, void *stream_handle, uint16_t call) {
  if (Status status = ensure_context(current_device()))
    return status;
  Stream *stream = stream_of(stream_handle);
  if (stream == nullptr)
    return kInvalidHandle;
  const signatures::Library fields = {.bytes = work.bytes, .flops = work.flops, .op = current_operator()};
  return launch_operation(stream, signature(name, fields), call);
}

} // namespace eidolon
