// Events: recordings on streams, waits of streams for them, and what the host asks about them.
//
// A recording gets a key that is never used again, so an event that is recorded twice leaves waiters of the first
// recording alone.
#include <atomic>
#include <cstring>

#include "internal.h"

namespace eidolon {
namespace {

constexpr uint64_t kEventMagic = 0x454944455645ULL;
constexpr char kIpcMagic[8] = {'E', 'I', 'D', 'I', 'P', 'C', 'E', '1'}; // begins the handle of an event

std::atomic<uint64_t> event_keys{1};

CudaEvent *event_of(void *handle) {
  auto *event = static_cast<CudaEvent *>(handle);
  return event != nullptr && event->magic == kEventMagic ? event : nullptr;
}

} // namespace

uint64_t next_event_key() { return event_keys.fetch_add(1, std::memory_order_relaxed); }

Status event_create(unsigned flags, void **out) {
  if (Status status = ensure_context(current_device()); status != kSuccess)
    return status;
  *out = new CudaEvent{kEventMagic, flags, current_device()};
  return kSuccess;
}

Status event_destroy(void *handle) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  event->magic = 0;
  delete event;
  return kSuccess;
}

Status event_record(void *handle, Stream *stream, uint16_t call) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  if (in_capture(stream)) {
    capture_event_record(stream, event);
    return kSuccess;
  }
  if (event->device != stream->device)
    return kInvalidHandle;
  event->capture = nullptr;
  event->captured.clear();
  event->key = next_event_key();
  event->stream = stream;
  if (stream->legacy)
    order_with_default(stream);
  emit({.kind = Kind::kEventRecord, .call = call, .stream = stream, .value = event->key});
  progress_recorded(stream, event->key);
  return kSuccess;
}

Status event_record_external(void *handle, Stream *stream) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  auto record = [event](Stream *lane, uint8_t flags) {
    event->key = next_event_key();
    event->stream = lane;
    progress_recorded(lane, event->key);
    emit({.kind = Kind::kEventRecord, .flags = flags, .stream = lane, .value = event->key});
  };
  return capture_node(stream, NodeType::kEventRecord, record) ? kSuccess : kInvalidValue;
}

Status stream_wait_external(Stream *stream, void *handle) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  auto wait = [event](Stream *lane, uint8_t flags) {
    if (event->key != 0)
      emit({.kind = Kind::kStreamWait, .flags = flags, .stream = lane, .value = event->key});
  };
  return capture_node(stream, NodeType::kWaitEvent, wait) ? kSuccess : kInvalidValue;
}

// ---- waits of streams ---------------------------------------------------------------------------------------------

Status stream_wait(Stream *stream, void *handle, uint16_t call) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  if (event->capture != nullptr || in_capture(stream))
    return capture_join(stream, event);
  if (event->key != 0) {
    order_with_default(stream);
    uint64_t seq = emit({.kind = Kind::kStreamWait, .call = call, .stream = stream, .value = event->key});
    stream->last_seq = seq + 1;
    progress_waited(stream, event->stream, event->key);
  }
  return kSuccess;
}

Status stream_follow(Stream *stream, Stream *other) {
  if (in_capture(stream) || in_capture(other)) {
    CudaEvent event{kEventMagic, kEventDisableTiming, other->device};
    capture_event_record(other, &event);
    return capture_join(stream, &event);
  }
  if (stream == other)
    return kSuccess;
  const uint64_t key = next_event_key();
  if (other->legacy)
    order_with_default(other);
  emit({.kind = Kind::kEventRecord, .stream = other, .value = key});
  order_with_default(stream);
  stream->last_seq = emit({.kind = Kind::kStreamWait, .stream = stream, .value = key}) + 1;
  return kSuccess;
}

// ---- what the host asks -------------------------------------------------------------------------------------------

Status event_query(void *handle, uint16_t call) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  if (event->capture != nullptr) {
    capture_invalidate(*event->capture);
    return kCapturedEvent;
  }
  if (event->key == 0 || ring_header() == nullptr)
    return kSuccess;
  if (!foreground_thread())
    return progress_probe(event->stream, event->key, call) ? kSuccess : kNotReady;
  if (progress_has_ended(event->stream, event->key)) {
    emit({.kind = Kind::kQueryEvent, .call = call, .value = event->key});
    return kSuccess;
  }
  if (ask({.kind = Kind::kQueryEvent, .call = call, .value = event->key}).value == 0)
    return kNotReady;
  progress_ended(event->stream, event->key);
  return kSuccess;
}

Status event_synchronize(void *handle, uint16_t call) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  if (event->capture != nullptr) {
    capture_invalidate(*event->capture);
    return kCapturedEvent;
  }
  if (event->key == 0)
    return kSuccess;
  Reply reply = ask({.kind = Kind::kSyncEvent, .call = call, .value = event->key});
  progress_ended(event->stream, event->key);
  value_count_reads();
  return reply.status;
}

Status event_elapsed(void *start, void *end, float *ms, uint16_t call) {
  CudaEvent *a = event_of(start), *b = event_of(end);
  if (a == nullptr || b == nullptr || a->key == 0 || b->key == 0 || ((a->flags | b->flags) & kEventDisableTiming) != 0)
    return kInvalidHandle;
  *ms = 0;
  if (ring_header() == nullptr)
    return kSuccess;
  if (event_query(end, call) != kSuccess || event_query(start, call) != kSuccess)
    return kNotReady;
  int64_t from_ns = ask({.kind = Kind::kEventTime, .value = a->key}).value,
          to_ns = ask({.kind = Kind::kEventTime, .value = b->key}).value;
  *ms = static_cast<float>(static_cast<double>(to_ns - from_ns) * 1e-6);
  return kSuccess;
}

// An event opened from another process is always complete: its owner's timeline is not ours to wait for, and frameworks
// use such events only beside a host-side handshake (torch's CUDA IPC).
Status event_ipc_get(void *handle, unsigned char out[kIpcHandleBytes]) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr || (event->flags & kEventInterprocess) == 0)
    return kInvalidHandle;
  memset(out, 0, kIpcHandleBytes);
  memcpy(out, kIpcMagic, sizeof kIpcMagic);
  memcpy(out + sizeof kIpcMagic, &event->device, sizeof event->device);
  return kSuccess;
}

Status event_ipc_open(const unsigned char handle[kIpcHandleBytes], void **out) {
  if (memcmp(handle, kIpcMagic, sizeof kIpcMagic) != 0)
    return kInvalidHandle;
  return event_create(kEventDisableTiming | kEventInterprocess, out);
}

} // namespace eidolon
