// What the runtime and the driver do with streams and events.
#pragma once
#include <algorithm>

#include "device_state.h"
#include "library.h"
#include "stream_attributes.h"

namespace eidolon {

// Calls `operation(stream)` on the stream of a handle.
template <class Operation> Status on_stream(const Library &library, CUstream_st *handle, Operation operation) {
  Stream *stream;
  if (Status status = library.stream(handle, &stream))
    return status;
  return operation(stream);
}

// The same for work on the stream, which a spoiled capture refuses.
template <class Operation> Status on_work_stream(const Library &library, CUstream_st *handle, Operation operation) {
  Stream *stream;
  if (Status status = library.work_stream(handle, &stream))
    return status;
  return operation(stream);
}

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
  return on_stream(library, handle, [call](Stream *stream) { return stream_synchronize(stream, call); });
}

// A query of a stream that captures is an error, and it spoils the capture.
inline Status query_stream(const Library &library, CUstream_st *handle, uint16_t call) {
  return on_stream(library, handle, [call](Stream *stream) { return stream_query(stream, call); });
}

// Fills `out` with what `property(stream)` returns.
template <class T, class Property>
Status stream_property(const Library &library, CUstream_st *handle, T *out, Property property) {
  if (out == nullptr)
    return kInvalidValue;
  return on_stream(library, handle, [&](Stream *stream) {
    *out = property(stream);
    return kSuccess;
  });
}

template <class Value> Status get_attribute(const Library &library, CUstream_st *handle, int id, Value *value) {
  if (value == nullptr)
    return kInvalidValue;
  return on_stream(library, handle,
                   [&](Stream *stream) { return StreamAttributes<Value>::all().get(stream, id, value); });
}

template <class Value> Status set_attribute(const Library &library, CUstream_st *handle, int id, const Value *value) {
  if (value == nullptr)
    return kInvalidValue;
  return on_stream(library, handle,
                   [&](Stream *stream) { return StreamAttributes<Value>::all().set(stream, id, value); });
}

template <class Value> Status copy_attributes(const Library &library, CUstream_st *to, CUstream_st *from) {
  return on_stream(library, to, [&](Stream *target) {
    return on_stream(library, from, [&](Stream *source) {
      StreamAttributes<Value>::all().copy(target, source);
      return kSuccess;
    });
  });
}

// ---- host callbacks -----------------------------------------------------------------------------------------------

inline Status launch_host_function(const Library &library, CUstream_st *handle, void (*function)(void *), void *data,
                                   uint16_t call) {
  if (function == nullptr)
    return kInvalidValue;
  return on_work_stream(library, handle, [&](Stream *stream) { return stream_callback(stream, function, data, call); });
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

inline Status destroy_event(CUevent_st *event) { return event != nullptr ? event_destroy(event) : kInvalidHandle; }

inline Status query_event(CUevent_st *event, uint16_t call) {
  return event != nullptr ? event_query(event, call) : kInvalidHandle;
}

inline Status synchronize_event(CUevent_st *event, uint16_t call) {
  return event != nullptr ? event_synchronize(event, call) : kInvalidHandle;
}

// Records an event or waits for one. `plain(stream)` does it, and `external(stream)` makes a node of the stream's
// capture for the flag cudaEventRecordExternal, cudaEventWaitExternal or the driver's for the same.
template <class Plain, class External>
Status use_event(const Library &library, CUevent_st *event, CUstream_st *handle, unsigned flags, Plain plain,
                 External external) {
  constexpr unsigned kExternal = 1;
  if ((flags & ~kExternal) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  return on_work_stream(library, handle, [&](Stream *stream) {
    if (flags != kExternal)
      return plain(stream);
    return captures(stream) ? external(stream) : kIllegalState;
  });
}

inline Status record_event(const Library &library, CUevent_st *event, CUstream_st *handle, unsigned flags,
                           uint16_t call) {
  return use_event(
      library, event, handle, flags, [&](Stream *stream) { return event_record(event, stream, call); },
      [&](Stream *stream) { return event_record_external(event, stream); });
}

inline Status wait_event(const Library &library, CUstream_st *handle, CUevent_st *event, unsigned flags,
                         uint16_t call) {
  return use_event(
      library, event, handle, flags, [&](Stream *stream) { return stream_wait(stream, event, call); },
      [&](Stream *stream) { return stream_wait_external(stream, event); });
}

inline Status elapsed_time(float *ms, CUevent_st *start, CUevent_st *end, uint16_t call) {
  if (ms == nullptr)
    return kInvalidValue;
  if (start == nullptr || end == nullptr)
    return kInvalidHandle;
  return event_elapsed(start, end, ms, call);
}

} // namespace eidolon
