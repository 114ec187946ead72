// Runtime: streams, events, host callbacks.
//
// Whether a query answers "ready" is the core's to say, by virtual time. A query that is not ready is an error like any
// other to cudaGetLastError, as in CUDA: frameworks clear it.
#include "cudart.h"

#include "callbacks.h"
#include "device_state.h"
#include "stream_attributes.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

StreamAttributes<cudaLaunchAttributeValue> &attributes() {
  static auto &all = *new StreamAttributes<cudaLaunchAttributeValue>;
  return all;
}

Status create_stream(cudaStream_t *out, unsigned flags, int priority, uint16_t call) {
  if (out == nullptr || (flags & ~cudaStreamNonBlocking) != 0)
    return kInvalidValue;
  if (Status status = context())
    return status;
  host_cost(call);
  Stream *stream = nullptr;
  if (Status status = stream_create(flags, std::clamp(priority, kGreatestPriority, kLeastPriority), &stream))
    return status;
  *out = static_cast<cudaStream_t>(stream_handle(stream));
  return kSuccess;
}

Status create_event(cudaEvent_t *out, unsigned flags) {
  constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (out == nullptr || (flags & ~kKnown) != 0)
    return kInvalidValue;
  if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0)
    return kInvalidValue;
  if (Status status = context())
    return status;
  void *event = nullptr;
  Status status = event_create(flags, &event);
  *out = static_cast<cudaEvent_t>(event);
  return status;
}

// What CUDA says of a query while the stream captures: an error that spoils the capture.
Status query(cudaStream_t handle, uint16_t call) {
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return status;
  return stream_query(stream, call);
}

Status record(cudaEvent_t event, cudaStream_t handle, unsigned flags, uint16_t call) {
  if ((flags & ~cudaEventRecordExternal) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  if ((flags & cudaEventRecordExternal) != 0) {
    if (capture_info(stream).status == 0)
      return kIllegalState;
    return event_record_external(event, stream);
  }
  return event_record(event, stream, call);
}

Status wait(cudaStream_t handle, cudaEvent_t event, unsigned flags, uint16_t call) {
  if ((flags & ~cudaEventWaitExternal) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  if ((flags & cudaEventWaitExternal) != 0) {
    if (capture_info(stream).status == 0)
      return kIllegalState;
    return stream_wait_external(stream, event);
  }
  return stream_wait(stream, event, call);
}

} // namespace

extern "C" {

// ---- streams ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t *out) {
  return report(create_stream(out, cudaStreamDefault, 0, EID_CALL("cudaStreamCreate")));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return report(create_stream(out, flags, 0, EID_CALL("cudaStreamCreate")));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  return report(create_stream(out, flags, priority, EID_CALL("cudaStreamCreate")));
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if (present() != kSuccess)
    return report(kNoDevice);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) // the default streams
    return report(kInvalidHandle);
  Stream *stream = stream_of(handle);
  if (stream == nullptr)
    return report(kInvalidHandle);
  host_cost(EID_CALL("cudaStreamDestroy"));
  return report(stream_destroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return report(status);
  return report(stream_synchronize(stream, EID_CALL("cudaStreamSynchronize")));
}
EID_EXPORT cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) {
  return cudaStreamSynchronize(per_thread(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return report(query(stream, EID_CALL("cudaStreamQuery"))); }
EID_EXPORT cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream) { return cudaStreamQuery(per_thread(stream)); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return report(wait(stream, event, flags, EID_CALL("cudaStreamWaitEvent")));
}
EID_EXPORT cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(per_thread(stream), event, flags);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
  Stream *stream;
  if (priority == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  *priority = stream_priority(stream);
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamGetPriority_ptsz(cudaStream_t stream, int *priority) {
  return cudaStreamGetPriority(per_thread(stream), priority);
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
  Stream *stream;
  if (flags == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  *flags = stream_flags(stream);
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamGetFlags_ptsz(cudaStream_t stream, unsigned *flags) {
  return cudaStreamGetFlags(per_thread(stream), flags);
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id) {
  Stream *stream;
  if (id == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  *id = stream_id(stream);
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long *id) {
  return cudaStreamGetId(per_thread(stream), id);
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device) {
  Stream *stream;
  if (device == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  *device = stream_device(stream);
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamGetDevice_ptsz(cudaStream_t stream, int *device) {
  return cudaStreamGetDevice(per_thread(stream), device);
}

cudaError_t cudaStreamGetAttribute(cudaStream_t handle, cudaStreamAttrID id, cudaStreamAttrValue *value) {
  Stream *stream;
  if (value == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  return report(attributes().get(stream, id, value));
}
EID_EXPORT cudaError_t cudaStreamGetAttribute_ptsz(cudaStream_t stream, cudaStreamAttrID id,
                                                   cudaStreamAttrValue *value) {
  return cudaStreamGetAttribute(per_thread(stream), id, value);
}

cudaError_t cudaStreamSetAttribute(cudaStream_t handle, cudaStreamAttrID id, const cudaStreamAttrValue *value) {
  Stream *stream;
  if (value == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  return report(attributes().set(stream, id, value));
}
EID_EXPORT cudaError_t cudaStreamSetAttribute_ptsz(cudaStream_t stream, cudaStreamAttrID id,
                                                   const cudaStreamAttrValue *value) {
  return cudaStreamSetAttribute(per_thread(stream), id, value);
}

cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  Stream *target, *source;
  if (Status status = resolve(to, &target))
    return report(status);
  if (Status status = resolve(from, &source))
    return report(status);
  attributes().copy(target, source);
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamCopyAttributes_ptsz(cudaStream_t to, cudaStream_t from) {
  return cudaStreamCopyAttributes(per_thread(to), per_thread(from));
}

// ---- host callbacks -----------------------------------------------------------------------------------------------

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  Stream *stream;
  if (function == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve_work(handle, &stream))
    return report(status);
  return report(stream_callback(stream, function, data, EID_CALL("cudaLaunchHostFunc")));
}
EID_EXPORT cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return cudaLaunchHostFunc(per_thread(stream), function, data);
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void *data, unsigned flags) {
  Stream *stream;
  if (function == nullptr || flags != 0)
    return report(kInvalidValue);
  if (Status status = resolve_work(handle, &stream))
    return report(status);
  return report(add_callback(stream, handle, function, data, EID_CALL("cudaStreamAddCallback")));
}
EID_EXPORT cudaError_t cudaStreamAddCallback_ptsz(cudaStream_t stream, cudaStreamCallback_t function, void *data,
                                                  unsigned flags) {
  return cudaStreamAddCallback(per_thread(stream), function, data, flags);
}

// ---- events -------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreate(cudaEvent_t *out) { return report(create_event(out, cudaEventDefault)); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) { return report(create_event(out, flags)); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return report(event != nullptr ? event_destroy(event) : kInvalidHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return report(record(event, stream, cudaEventRecordDefault, EID_CALL("cudaEventRecord")));
}
EID_EXPORT cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecord(event, per_thread(stream));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return report(record(event, stream, flags, EID_CALL("cudaEventRecord")));
}
EID_EXPORT cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecordWithFlags(event, per_thread(stream), flags);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return report(event != nullptr ? event_query(event, EID_CALL("cudaEventQuery")) : kInvalidHandle);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return report(event != nullptr ? event_synchronize(event, EID_CALL("cudaEventSynchronize")) : kInvalidHandle);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  if (ms == nullptr)
    return report(kInvalidValue);
  if (start == nullptr || end == nullptr)
    return report(kInvalidHandle);
  return report(event_elapsed(start, end, ms, EID_CALL("cudaEventElapsedTime")));
}

} // extern "C"
