// Runtime: streams, events, host callbacks.
//
// The core decides by virtual time whether a query answers "ready". For cudaGetLastError a query that is not ready is
// an error like any other, as in CUDA, and frameworks clear it.
#include "cudart.h"

#include "streams.h"

using namespace eidolon;
using namespace eidolon::runtime;

extern "C" {

// ---- streams ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t *out) {
  return report(create_stream(kRuntime, out, cudaStreamDefault, 0, EID_CALL("cudaStreamCreate")));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return report(create_stream(kRuntime, out, flags, 0, EID_CALL("cudaStreamCreate")));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  return report(create_stream(kRuntime, out, flags, priority, EID_CALL("cudaStreamCreate")));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return report(destroy_stream(kRuntime, stream, EID_CALL("cudaStreamDestroy")));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return report(synchronize_stream(kRuntime, stream, EID_CALL("cudaStreamSynchronize")));
}
EID_PER_THREAD(1, cudaStreamSynchronize)

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return report(query_stream(kRuntime, stream, EID_CALL("cudaStreamQuery")));
}
EID_PER_THREAD(1, cudaStreamQuery)

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return report(wait_event(kRuntime, stream, event, flags, EID_CALL("cudaStreamWaitEvent")));
}
EID_PER_THREAD(3, cudaStreamWaitEvent)

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  return report(stream_property(kRuntime, stream, priority, stream_priority));
}
EID_PER_THREAD(2, cudaStreamGetPriority)

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  return report(stream_property(kRuntime, stream, flags, stream_flags));
}
EID_PER_THREAD(2, cudaStreamGetFlags)

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
  return report(stream_property(kRuntime, stream, id, stream_id));
}
EID_PER_THREAD(2, cudaStreamGetId)

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
  return report(stream_property(kRuntime, stream, device, stream_device));
}
EID_PER_THREAD(2, cudaStreamGetDevice)

cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID id, cudaStreamAttrValue *value) {
  return report(get_attribute(kRuntime, stream, id, value));
}
EID_PER_THREAD(3, cudaStreamGetAttribute)

cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID id, const cudaStreamAttrValue *value) {
  return report(set_attribute(kRuntime, stream, id, value));
}
EID_PER_THREAD(3, cudaStreamSetAttribute)

cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  return report(copy_attributes<cudaLaunchAttributeValue>(kRuntime, to, from));
}
EID_PER_THREAD(2, cudaStreamCopyAttributes)

// ---- host callbacks -----------------------------------------------------------------------------------------------

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return report(launch_host_function(kRuntime, stream, function, data, EID_CALL("cudaLaunchHostFunc")));
}
EID_PER_THREAD(3, cudaLaunchHostFunc)

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
  return report(add_callback(kRuntime, stream, function, data, flags, EID_CALL("cudaStreamAddCallback")));
}
EID_PER_THREAD(4, cudaStreamAddCallback)

// ---- events -------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreate(cudaEvent_t *out) { return report(create_event(kRuntime, out, cudaEventDefault)); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  return report(create_event(kRuntime, out, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return report(destroy_event(event)); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return report(record_event(kRuntime, event, stream, cudaEventRecordDefault, EID_CALL("cudaEventRecord")));
}
EID_PER_THREAD(2, cudaEventRecord)
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return report(record_event(kRuntime, event, stream, flags, EID_CALL("cudaEventRecord")));
}
EID_PER_THREAD(3, cudaEventRecordWithFlags)

cudaError_t cudaEventQuery(cudaEvent_t event) { return report(query_event(event, EID_CALL("cudaEventQuery"))); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return report(synchronize_event(event, EID_CALL("cudaEventSynchronize")));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return report(elapsed_time(ms, start, end, EID_CALL("cudaEventElapsedTime")));
}

} // extern "C"
