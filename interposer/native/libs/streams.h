// What the runtime and the driver do with streams and events.
#pragma once
#include <algorithm>

#include "device_state.h"
#include "library.h"

namespace eidolon {

// ---- streams ------------------------------------------------------------------------------------------------------

inline Status create_stream(const Library &library, CUstream_st **out, unsigned flags, int priority, uint16_t call) {
  if (out == nullptr || (flags & ~kStreamNonBlocking) != 0)
    return kInvalidValue;
  if (Status status = library.context())
    return status;
  host_cost(call);
  Stream *stream = nullptr;
  if (Status status = stream_create(flags, std::clamp(priority, kGreatestPriority, kLeastPriority), &stream))
    return status;
  *out = static_cast<CUstream_st *>(stream_handle(stream));
  return kSuccess;
}

inline Status destroy_stream(const Library &library, CUstream_st *handle, uint16_t call) {
  if (Status status = library.present())
    return status;
  Stream *stream = is_default_handle(handle) ? nullptr : stream_of(handle);
  if (stream == nullptr)
    return kInvalidHandle;
  host_cost(call);
  return stream_destroy(stream);
}

inline Status synchronize_stream(const Library &library, CUstream_st *handle, uint16_t call) {
  Stream *stream;
  if (Status status = library.stream(handle, &stream))
    return status;
  return stream_synchronize(stream, call);
}

// A query of a stream that captures is an error, and it spoils the capture.
inline Status query_stream(const Library &library, CUstream_st *handle, uint16_t call) {
  Stream *stream;
  if (Status status = library.stream(handle, &stream))
    return status;
  return stream_query(stream, call);
}

// Fills `out` with what `property(stream)` returns.
template <class T, class Property>
Status stream_property(const Library &library, CUstream_st *handle, T *out, Property property) {
  Stream *stream;
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  *out = property(stream);
  return kSuccess;
}

// `attributes` are the library's StreamAttributes.
template <class Attributes, class Value>
Status get_attribute(const Library &library, Attributes &attributes, CUstream_st *handle, int id, Value *value) {
  Stream *stream;
  if (value == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  return attributes.get(stream, id, value);
}

template <class Attributes, class Value>
Status set_attribute(const Library &library, Attributes &attributes, CUstream_st *handle, int id, const Value *value) {
  Stream *stream;
  if (value == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  return attributes.set(stream, id, value);
}

template <class Attributes>
Status copy_attributes(const Library &library, Attributes &attributes, CUstream_st *to, CUstream_st *from) {
  Stream *target, *source;
  if (Status status = library.stream(to, &target))
    return status;
  if (Status status = library.stream(from, &source))
    return status;
  attributes.copy(target, source);
  return kSuccess;
}

// ---- host callbacks -----------------------------------------------------------------------------------------------

inline Status launch_host_function(const Library &library, CUstream_st *handle, void (*function)(void *), void *data,
                                   uint16_t call) {
  Stream *stream;
  if (function == nullptr)
    return kInvalidValue;
  if (Status status = library.work_stream(handle, &stream))
    return status;
  return stream_callback(stream, function, data, call);
}

// The older form, whose callback gets the stream and a status. Only the newer form above can be captured.
template <class Function>
Status add_callback(const Library &library, CUstream_st *handle, Function function, void *data, unsigned flags,
                    uint16_t call) {
  struct Pending {
    CUstream_st *handle;
    Function function;
    void *data;
  };
  Stream *stream;
  if (function == nullptr || flags != 0)
    return kInvalidValue;
  if (Status status = library.work_stream(handle, &stream))
    return status;
  if (captures(stream))
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

// ---- events -------------------------------------------------------------------------------------------------------

inline Status create_event(const Library &library, CUevent_st **out, unsigned flags) {
  constexpr unsigned kKnown = kEventBlockingSync | kEventDisableTiming | kEventInterprocess;
  if (out == nullptr || (flags & ~kKnown) != 0 ||
      ((flags & kEventInterprocess) != 0 && (flags & kEventDisableTiming) == 0))
    return kInvalidValue;
  if (Status status = library.context())
    return status;
  void *event = nullptr;
  Status status = event_create(flags, &event);
  *out = static_cast<CUevent_st *>(event);
  return status;
}

// cudaEventRecordExternal, cudaEventWaitExternal and their like in the driver: a node of a capture.
inline constexpr unsigned kExternal = 1;

inline Status record_event(const Library &library, CUevent_st *event, CUstream_st *handle, unsigned flags,
                           uint16_t call) {
  if ((flags & ~kExternal) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  Stream *stream;
  if (Status status = library.work_stream(handle, &stream))
    return status;
  if (flags != kExternal)
    return event_record(event, stream, call);
  return captures(stream) ? event_record_external(event, stream) : kIllegalState;
}

inline Status wait_event(const Library &library, CUstream_st *handle, CUevent_st *event, unsigned flags,
                         uint16_t call) {
  if ((flags & ~kExternal) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  Stream *stream;
  if (Status status = library.work_stream(handle, &stream))
    return status;
  if (flags != kExternal)
    return stream_wait(stream, event, call);
  return captures(stream) ? stream_wait_external(stream, event) : kIllegalState;
}

inline Status elapsed_time(float *ms, CUevent_st *start, CUevent_st *end, uint16_t call) {
  if (ms == nullptr)
    return kInvalidValue;
  if (start == nullptr || end == nullptr)
    return kInvalidHandle;
  return event_elapsed(start, end, ms, call);
}

} // namespace eidolon
