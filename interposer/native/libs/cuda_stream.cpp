// Driver: streams, events, host callbacks, values written in stream order.
#include "cuda_driver.h"

#include "streams.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

CUcontext context_of_stream(const Stream *on) { return context_of_device(stream_device(on)); }

// A value that the device writes when the stream reaches it. It is a set of one or two words.
Status write_value(CUstream handle, CUdeviceptr to, uint64_t value, size_t bytes, uint16_t call) {
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  if (to == 0 || to % bytes != 0)
    return kInvalidValue;
  for (size_t word = 0; word < bytes / 4; ++word)
    if (Status status = set(pointer(to + 4 * word), static_cast<unsigned>(value >> (32 * word)), 4, 1, on, false, call))
      return status;
  return kSuccess;
}

} // namespace

extern "C" {

// ---- streams ------------------------------------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
  return result(create_stream(kDriver, out, flags, 0, EID_CALL("cuStreamCreate")));
}
CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
  return result(create_stream(kDriver, out, flags, priority, EID_CALL("cuStreamCreate")));
}
CUresult cuStreamDestroy_v2(CUstream handle) {
  return result(destroy_stream(kDriver, handle, EID_CALL("cuStreamDestroy")));
}

CUresult cuStreamSynchronize(CUstream handle) {
  return result(synchronize_stream(kDriver, handle, EID_CALL("cuStreamSynchronize")));
}
EID_PER_THREAD(1, cuStreamSynchronize)

CUresult cuStreamQuery(CUstream handle) { return result(query_stream(kDriver, handle, EID_CALL("cuStreamQuery"))); }
EID_PER_THREAD(1, cuStreamQuery)

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  return result(wait_event(kDriver, handle, event, flags, EID_CALL("cuStreamWaitEvent")));
}
EID_PER_THREAD(3, cuStreamWaitEvent)

CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  return result(stream_property(kDriver, handle, priority, stream_priority));
}
EID_PER_THREAD(2, cuStreamGetPriority)

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  return result(stream_property(kDriver, handle, flags, stream_flags));
}
EID_PER_THREAD(2, cuStreamGetFlags)

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  return result(stream_property(kDriver, handle, id, stream_id));
}
EID_PER_THREAD(2, cuStreamGetId)

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
  return result(stream_property(kDriver, handle, device, stream_device));
}
EID_PER_THREAD(2, cuStreamGetDevice)

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  return result(stream_property(kDriver, handle, context, context_of_stream));
}
EID_PER_THREAD(2, cuStreamGetCtx)

// No stream belongs to a green context.
CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
  if (green != nullptr)
    *green = nullptr;
  return cuStreamGetCtx(handle, context);
}
EID_PER_THREAD(3, cuStreamGetCtx_v2)

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue *value) {
  return result(get_attribute(kDriver, handle, id, value));
}
EID_PER_THREAD(3, cuStreamGetAttribute)

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue *value) {
  return result(set_attribute(kDriver, handle, id, value));
}
EID_PER_THREAD(3, cuStreamSetAttribute)

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  return result(copy_attributes<CUlaunchAttributeValue>(kDriver, to, from));
}
EID_PER_THREAD(2, cuStreamCopyAttributes)

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr at, size_t, unsigned flags) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return result(kInvalidValue);
  return result(pointer_info(pointer(at)).type == PointerInfo::kManaged ? kSuccess : kInvalidValue);
}
EID_PER_THREAD(4, cuStreamAttachMemAsync)

// ---- values in stream order ---------------------------------------------------------------------------------------
// To wait for a value is not modelled, since only a kernel or another process could write it.

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr to, cuuint32_t value, unsigned) {
  return result(write_value(handle, to, value, 4, EID_CALL("cuStreamWriteValue32")));
}
EID_PER_THREAD(4, cuStreamWriteValue32_v2)
CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr to, cuuint64_t value, unsigned) {
  return result(write_value(handle, to, value, 8, EID_CALL("cuStreamWriteValue64")));
}
EID_PER_THREAD(4, cuStreamWriteValue64_v2)

// ---- host callbacks -----------------------------------------------------------------------------------------------

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  return result(launch_host_function(kDriver, handle, function, data, EID_CALL("cuLaunchHostFunc")));
}
EID_PER_THREAD(3, cuLaunchHostFunc)

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data, unsigned flags) {
  return result(add_callback(kDriver, handle, function, data, flags, EID_CALL("cuStreamAddCallback")));
}
EID_PER_THREAD(4, cuStreamAddCallback)

// ---- events -------------------------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent *out, unsigned flags) { return result(create_event(kDriver, out, flags)); }

CUresult cuEventDestroy_v2(CUevent event) { return result(destroy_event(event)); }

CUresult cuEventRecord(CUevent event, CUstream handle) {
  return result(record_event(kDriver, event, handle, CU_EVENT_RECORD_DEFAULT, EID_CALL("cuEventRecord")));
}
EID_PER_THREAD(2, cuEventRecord)
CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
  return result(record_event(kDriver, event, handle, flags, EID_CALL("cuEventRecord")));
}
EID_PER_THREAD(3, cuEventRecordWithFlags)

CUresult cuEventQuery(CUevent event) { return result(query_event(event, EID_CALL("cuEventQuery"))); }

CUresult cuEventSynchronize(CUevent event) { return result(synchronize_event(event, EID_CALL("cuEventSynchronize"))); }

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
  return result(elapsed_time(ms, start, end, EID_CALL("cuEventElapsedTime")));
}
#undef cuEventElapsedTime
EID_EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(ms, start, end);
}

} // extern "C"
