// Driver: streams, events, host callbacks, values written in stream order.
#include "cuda_driver.h"

#include <algorithm>

#include "callbacks.h"
#include "device_state.h"
#include "stream_attributes.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

StreamAttributes<CUlaunchAttributeValue> &attributes() {
  static auto &all = *new StreamAttributes<CUlaunchAttributeValue>;
  return all;
}

Status create_stream(CUstream *out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
    return kInvalidValue;
  if (Status status = current_context())
    return status;
  host_cost(EID_CALL("cuStreamCreate"));
  Stream *made = nullptr;
  if (Status status = stream_create(flags, std::clamp(priority, kGreatestPriority, kLeastPriority), &made))
    return status;
  *out = static_cast<CUstream>(stream_handle(made));
  return kSuccess;
}

Status record(CUevent event, CUstream handle, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  if (flags == CU_EVENT_RECORD_EXTERNAL) {
    if (capture_info(on).status == 0)
      return kIllegalState;
    return event_record_external(event, on);
  }
  return event_record(event, on, EID_CALL("cuEventRecord"));
}

Status wait(CUstream handle, CUevent event, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0)
    return kInvalidValue;
  if (event == nullptr)
    return kInvalidHandle;
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  if (flags == CU_EVENT_WAIT_EXTERNAL) {
    if (capture_info(on).status == 0)
      return kIllegalState;
    return stream_wait_external(on, event);
  }
  return stream_wait(on, event, EID_CALL("cuStreamWaitEvent"));
}

// A value that the device writes when the stream comes to it: a set of one or two words.
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

CUresult cuStreamCreate(CUstream *out, unsigned flags) { return result(create_stream(out, flags, 0)); }
CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
  return result(create_stream(out, flags, priority));
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  if (Status status = initialised())
    return result(status);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) // the default streams
    return result(kInvalidHandle);
  Stream *on = stream_of(handle);
  if (on == nullptr)
    return result(kInvalidHandle);
  host_cost(EID_CALL("cuStreamDestroy"));
  return result(stream_destroy(on));
}

CUresult cuStreamSynchronize(CUstream handle) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  return result(stream_synchronize(on, EID_CALL("cuStreamSynchronize")));
}
EID_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream handle) { return cuStreamSynchronize(per_thread(handle)); }

CUresult cuStreamQuery(CUstream handle) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  return result(stream_query(on, EID_CALL("cuStreamQuery")));
}
EID_EXPORT CUresult cuStreamQuery_ptsz(CUstream handle) { return cuStreamQuery(per_thread(handle)); }

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  return result(wait(handle, event, flags));
}
EID_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream handle, CUevent event, unsigned flags) {
  return result(wait(per_thread(handle), event, flags));
}

CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  Stream *on;
  if (priority == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  *priority = stream_priority(on);
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamGetPriority_ptsz(CUstream handle, int *priority) {
  return cuStreamGetPriority(per_thread(handle), priority);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  Stream *on;
  if (flags == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  *flags = stream_flags(on);
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamGetFlags_ptsz(CUstream handle, unsigned *flags) {
  return cuStreamGetFlags(per_thread(handle), flags);
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  Stream *on;
  if (id == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  *id = stream_id(on);
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamGetId_ptsz(CUstream handle, unsigned long long *id) {
  return cuStreamGetId(per_thread(handle), id);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
  Stream *on;
  if (device == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  *device = stream_device(on);
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamGetDevice_ptsz(CUstream handle, CUdevice *device) {
  return cuStreamGetDevice(per_thread(handle), device);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  Stream *on;
  if (context == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  *context = context_of_device(stream_device(on));
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *context) {
  return cuStreamGetCtx(per_thread(handle), context);
}

// No stream belongs to a green context.
CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
  if (green != nullptr)
    *green = nullptr;
  return cuStreamGetCtx(handle, context);
}
EID_EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream handle, CUcontext *context, CUgreenCtx *green) {
  return cuStreamGetCtx_v2(per_thread(handle), context, green);
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue *value) {
  Stream *on;
  if (value == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  return result(attributes().get(on, id, value));
}
EID_EXPORT CUresult cuStreamGetAttribute_ptsz(CUstream handle, CUstreamAttrID id, CUstreamAttrValue *value) {
  return cuStreamGetAttribute(per_thread(handle), id, value);
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue *value) {
  Stream *on;
  if (value == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  return result(attributes().set(on, id, value));
}
EID_EXPORT CUresult cuStreamSetAttribute_ptsz(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue *value) {
  return cuStreamSetAttribute(per_thread(handle), id, value);
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  Stream *target, *source;
  if (Status status = stream(to, &target))
    return result(status);
  if (Status status = stream(from, &source))
    return result(status);
  attributes().copy(target, source);
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from) {
  return cuStreamCopyAttributes(per_thread(to), per_thread(from));
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr at, size_t, unsigned flags) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return result(status);
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return result(kInvalidValue);
  return result(pointer_info(pointer(at)).type == PointerInfo::kManaged ? kSuccess : kInvalidValue);
}
EID_EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream handle, CUdeviceptr at, size_t bytes, unsigned flags) {
  return cuStreamAttachMemAsync(per_thread(handle), at, bytes, flags);
}

// ---- values in stream order
// ------------------------------------------------------------------------------------------ Waiting for a value is not
// modelled: only a kernel or another process could write it.

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr to, cuuint32_t value, unsigned) {
  return result(write_value(handle, to, value, 4, EID_CALL("cuStreamWriteValue32")));
}
EID_EXPORT CUresult cuStreamWriteValue32_v2_ptsz(CUstream handle, CUdeviceptr to, cuuint32_t value, unsigned flags) {
  return cuStreamWriteValue32_v2(per_thread(handle), to, value, flags);
}
CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr to, cuuint64_t value, unsigned) {
  return result(write_value(handle, to, value, 8, EID_CALL("cuStreamWriteValue64")));
}
EID_EXPORT CUresult cuStreamWriteValue64_v2_ptsz(CUstream handle, CUdeviceptr to, cuuint64_t value, unsigned flags) {
  return cuStreamWriteValue64_v2(per_thread(handle), to, value, flags);
}

// ---- host callbacks -----------------------------------------------------------------------------------------------

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  Stream *on;
  if (function == nullptr)
    return result(kInvalidValue);
  if (Status status = work_stream(handle, &on))
    return result(status);
  return result(stream_callback(on, function, data, EID_CALL("cuLaunchHostFunc")));
}
EID_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream handle, CUhostFn function, void *data) {
  return cuLaunchHostFunc(per_thread(handle), function, data);
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data, unsigned flags) {
  Stream *on;
  if (function == nullptr || flags != 0)
    return result(kInvalidValue);
  if (Status status = work_stream(handle, &on))
    return result(status);
  return result(add_callback(on, handle, function, data, EID_CALL("cuStreamAddCallback")));
}
EID_EXPORT CUresult cuStreamAddCallback_ptsz(CUstream handle, CUstreamCallback function, void *data, unsigned flags) {
  return cuStreamAddCallback(per_thread(handle), function, data, flags);
}

// ---- events -------------------------------------------------------------------------------------------------------

CUresult cuEventCreate(CUevent *out, unsigned flags) {
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (out == nullptr || (flags & ~kKnown) != 0 ||
      ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0))
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  void *event = nullptr;
  Status status = event_create(flags, &event);
  *out = static_cast<CUevent>(event);
  return result(status);
}

CUresult cuEventDestroy_v2(CUevent event) { return result(event != nullptr ? event_destroy(event) : kInvalidHandle); }

CUresult cuEventRecord(CUevent event, CUstream handle) { return result(record(event, handle, 0)); }
EID_EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream handle) {
  return result(record(event, per_thread(handle), 0));
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
  return result(record(event, handle, flags));
}
EID_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream handle, unsigned flags) {
  return result(record(event, per_thread(handle), flags));
}

CUresult cuEventQuery(CUevent event) {
  return result(event != nullptr ? event_query(event, EID_CALL("cuEventQuery")) : kInvalidHandle);
}

CUresult cuEventSynchronize(CUevent event) {
  return result(event != nullptr ? event_synchronize(event, EID_CALL("cuEventSynchronize")) : kInvalidHandle);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
  if (ms == nullptr)
    return result(kInvalidValue);
  if (start == nullptr || end == nullptr)
    return result(kInvalidHandle);
  return result(event_elapsed(start, end, ms, EID_CALL("cuEventElapsedTime")));
}
#undef cuEventElapsedTime
EID_EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(ms, start, end);
}

} // extern "C"
