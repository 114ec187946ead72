// CUPTI, as far as torch.profiler (Kineto) starts, flushes and stops it.
//
// Tracing succeeds and gives no records: the times of kernels are known to the simulation core alone. One line on
// standard error says so, and where they are to be found, which is the run's own timeline. Callbacks are accepted and
// never called, since no real driver is called either. Profiling proper (counters, sampling, ranges) is not modelled,
// and its generated stubs say so.
#include <cupti.h>

#include "core.h"

using namespace eidolon;

namespace {

int subscriber; // its address is the handle; CUPTI allows one
bool subscribed = false;

CUptiResult accepted() { return config().active ? CUPTI_SUCCESS : CUPTI_ERROR_NOT_INITIALIZED; }

// The nested external correlation ids of this thread, per kind. A pop gives back what was pushed.
constexpr int kKinds = 16, kDepth = 64;
thread_local uint64_t correlation[kKinds][kDepth];
thread_local int correlation_depth[kKinds];

} // namespace

extern "C" {

EID_API CUptiResult cuptiGetVersion(uint32_t *version) {
  if (!version)
    return CUPTI_ERROR_INVALID_PARAMETER;
  *version = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
EID_API CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
  if (!text)
    return CUPTI_ERROR_INVALID_PARAMETER;
  switch (result) {
  case CUPTI_SUCCESS:
    *text = "CUPTI_SUCCESS";
    break;
  case CUPTI_ERROR_INVALID_PARAMETER:
    *text = "CUPTI_ERROR_INVALID_PARAMETER";
    break;
  case CUPTI_ERROR_NOT_INITIALIZED:
    *text = "CUPTI_ERROR_NOT_INITIALIZED";
    break;
  case CUPTI_ERROR_MAX_LIMIT_REACHED:
    *text = "CUPTI_ERROR_MAX_LIMIT_REACHED";
    break;
  case CUPTI_ERROR_QUEUE_EMPTY:
    *text = "CUPTI_ERROR_QUEUE_EMPTY";
    break;
  case CUPTI_ERROR_NOT_SUPPORTED:
    *text = "CUPTI_ERROR_NOT_SUPPORTED (not modelled by eidolon)";
    break;
  default:
    *text = "CUPTI error";
  }
  return CUPTI_SUCCESS;
}

// ---- callbacks ---------------------------------------------------------------------------------------------------

EID_API CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *out, CUpti_CallbackFunc, void *) {
  if (CUptiResult status = accepted())
    return status;
  if (!out)
    return CUPTI_ERROR_INVALID_PARAMETER;
  if (__atomic_exchange_n(&subscribed, true, __ATOMIC_ACQ_REL))
    return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  *out = reinterpret_cast<CUpti_SubscriberHandle>(&subscriber);
  return CUPTI_SUCCESS;
}
EID_API CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
  if (handle != reinterpret_cast<CUpti_SubscriberHandle>(&subscriber))
    return CUPTI_ERROR_INVALID_PARAMETER;
  __atomic_store_n(&subscribed, false, __ATOMIC_RELEASE);
  return CUPTI_SUCCESS;
}
EID_API CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
  return accepted();
}
EID_API CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) { return accepted(); }
EID_API CUptiResult cuptiEnableAllDomains(uint32_t, CUpti_SubscriberHandle) { return accepted(); }
EID_API CUptiResult cuptiFinalize() {
  __atomic_store_n(&subscribed, false, __ATOMIC_RELEASE);
  return accepted();
}

// ---- activities --------------------------------------------------------------------------------------------------

EID_API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (config().active && (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || kind == CUPTI_ACTIVITY_KIND_KERNEL))
    warn_once("torch.profiler has no CUDA events here: its tables and traces show the host alone. For the kernels and "
              "their times run with `eidolon run --record`, then `eidolon trace RUN`");
  return accepted();
}
EID_API CUptiResult cuptiActivityDisable(CUpti_ActivityKind) { return accepted(); }
EID_API CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return accepted(); }
EID_API CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) { return accepted(); }
EID_API CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return accepted(); }
EID_API CUptiResult cuptiActivityEnableLatencyTimestamps(uint8_t) { return accepted(); }
EID_API CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t *, void *) { return accepted(); }
EID_API CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc) { return accepted(); }
EID_API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                                   CUpti_BuffersCallbackCompleteFunc completed) {
  return requested && completed ? accepted() : CUPTI_ERROR_INVALID_PARAMETER;
}
// No buffer was ever asked for, so there is none to hand back.
EID_API CUptiResult cuptiActivityFlushAll(uint32_t) { return accepted(); }
EID_API CUptiResult cuptiActivityFlushPeriod(uint32_t) { return accepted(); }
EID_API CUptiResult cuptiActivityGetNextRecord(uint8_t *, size_t, CUpti_Activity **record) {
  if (record)
    *record = nullptr;
  return CUPTI_ERROR_MAX_LIMIT_REACHED; // "no further record"
}
EID_API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped) {
  if (!dropped)
    return CUPTI_ERROR_INVALID_PARAMETER;
  *dropped = 0;
  return accepted();
}
EID_API CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  if (static_cast<unsigned>(kind) >= kKinds)
    return CUPTI_ERROR_INVALID_PARAMETER;
  int &depth = correlation_depth[kind];
  if (depth < kDepth)
    correlation[kind][depth] = id;
  depth++;
  return accepted();
}
EID_API CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *id) {
  if (static_cast<unsigned>(kind) >= kKinds)
    return CUPTI_ERROR_INVALID_PARAMETER;
  int &depth = correlation_depth[kind];
  if (depth == 0)
    return CUPTI_ERROR_QUEUE_EMPTY;
  depth--;
  if (id)
    *id = depth < kDepth ? correlation[kind][depth] : 0;
  return accepted();
}
} // extern "C"
