// Streams, their waits by the host, and the ordering rules of CUDA's default stream.
//
// The engine knows plain lanes; what CUDA adds is turned into recordings and waits here: the legacy default stream
// waits for all blocking streams of its device and they wait for it.
#include <set>

#include "internal.h"

namespace eidolon {
namespace {

constexpr uint64_t kStreamMagic = 0x45494453545245ULL, kEventMagic = 0x454944455645ULL;

struct Streams {
  std::mutex mutex;
  std::set<const void *> live;                 // created streams
  std::vector<Stream *> destroyed;             // kept: see stream_destroy
  std::vector<Stream *> blocking[kMaxDevices]; // streams per device that order themselves with the default stream
  Stream *legacy[kMaxDevices] = {};
  uint32_t next_id = 1;
};
Streams *streams() {
  static Streams *all = new Streams;
  return all;
}

Stream *default_stream(int device) {
  Streams *s = streams();
  std::lock_guard hold(s->mutex);
  if (s->legacy[device] == nullptr) {
    s->legacy[device] = new Stream{kStreamMagic, s->next_id++, device, 0, 0};
    s->legacy[device]->legacy = true;
  }
  return s->legacy[device];
}

Stream *per_thread_stream(int device) {
  thread_local Stream *mine[kMaxDevices] = {};
  if (mine[device] == nullptr) {
    mine[device] = make_stream(device, 0, 0);
    Streams *s = streams();
    std::lock_guard hold(s->mutex);
    s->blocking[device].push_back(mine[device]);
  }
  return mine[device];
}

// `later` waits for all work of `earlier`.
void order(Stream *earlier, Stream *later) {
  uint64_t key = next_event_key();
  emit({.kind = Kind::kEventRecord, .flags = kInGraph, .stream = earlier, .value = key});
  emit({.kind = Kind::kStreamWait, .flags = kInGraph, .stream = later, .value = key});
}

} // namespace

void order_with_default(Stream *stream) {
  if ((stream->flags & kStreamNonBlocking) != 0)
    return;
  Streams *s = streams();
  std::vector<std::pair<Stream *, Stream *>> orders;
  {
    std::lock_guard hold(s->mutex);
    if (stream->legacy) {
      for (Stream *other : s->blocking[stream->device])
        if (other->last_seq > other->default_joined) {
          other->default_joined = other->last_seq;
          orders.emplace_back(other, stream);
        }
    } else if (Stream *legacy = s->legacy[stream->device];
               legacy != nullptr && legacy->last_seq > stream->joined_default) {
      stream->joined_default = legacy->last_seq;
      orders.emplace_back(legacy, stream);
    }
  }
  for (auto [earlier, later] : orders) {
    order(earlier, later);
    progress_waited(later, earlier, progress_newest(earlier));
  }
}

uint64_t emit_work(const Event &event) {
  order_with_default(event.stream);
  uint64_t seq = emit(event);
  event.stream->last_seq = seq + 1;
  progress_launched(event.stream->device);
  return seq;
}

// ---- streams ------------------------------------------------------------------------------------------------------

Stream *make_stream(int device, unsigned flags, int priority) {
  Streams *s = streams();
  std::lock_guard hold(s->mutex);
  return new Stream{kStreamMagic, s->next_id++, device, flags, priority};
}

Stream *stream_of(void *handle) {
  uintptr_t number = reinterpret_cast<uintptr_t>(handle);
  if (number <= kLegacyHandle)
    return default_stream(current_device());
  if (number == kPerThreadHandle)
    return per_thread_stream(current_device());
  Streams *s = streams();
  std::lock_guard hold(s->mutex);
  return s->live.contains(handle) ? static_cast<Stream *>(handle) : nullptr;
}

void *stream_handle(Stream *stream) { return stream->legacy ? nullptr : stream; }

Status stream_create(unsigned flags, int priority, Stream **out) {
  int device = current_device();
  if (Status status = ensure_context(device); status != kSuccess)
    return status;
  Stream *stream = make_stream(device, flags, priority);
  {
    Streams *s = streams();
    std::lock_guard hold(s->mutex);
    s->live.insert(stream);
    if ((flags & kStreamNonBlocking) == 0)
      s->blocking[device].push_back(stream);
  }
  emit({.kind = Kind::kStreamCreate, .stream = stream});
  *out = stream;
  return kSuccess;
}

Status stream_destroy(Stream *stream) {
  if (stream->legacy)
    return kInvalidHandle;
  Streams *s = streams();
  std::lock_guard hold(s->mutex);
  if (s->live.erase(stream) == 0)
    return kInvalidHandle;
  s->destroyed.push_back(stream);
  // Work on it goes on; the default stream still waits for it, so a blocking stream keeps its place and both keep the
  // object: a few words, and its id is never used again.
  return kSuccess;
}

unsigned stream_flags(const Stream *stream) { return stream->flags; }
int stream_priority(const Stream *stream) { return stream->priority; }
int stream_device(const Stream *stream) { return stream->device; }
uint64_t stream_id(const Stream *stream) { return stream->id; }

Status stream_synchronize(Stream *stream, uint16_t call) {
  if (in_capture(stream)) {
    capture_invalidate(*stream->capture);
    return kCaptureUnsupported;
  }
  if (capture_forbids_unsafe_call())
    return kCaptureUnsupported;
  if (stream->legacy)
    order_with_default(stream);
  const uint64_t newest = progress_newest(stream);
  Reply reply = ask({.kind = Kind::kSyncStream, .call = call, .stream = stream});
  progress_ended(stream, newest);
  run_callbacks_before(reply.seq);
  value_count_reads();
  return reply.status;
}

Status stream_query(Stream *stream, uint16_t call) {
  if (in_capture(stream)) {
    capture_invalidate(*stream->capture);
    return kCaptureUnsupported;
  }
  if (ring_header() == nullptr)
    return kSuccess;
  if (stream->legacy)
    order_with_default(stream);
  return ask({.kind = Kind::kQueryStream, .call = call, .stream = stream}).value != 0 ? kSuccess : kNotReady;
}

Status device_synchronize(int device, uint16_t call) {
  if (capture_forbids_unsafe_call())
    return kCaptureUnsupported;
  if (!is_rank())
    return kSuccess;
  int before = current_device();
  set_current_device(device);
  const auto newest = progress_newest_of(device);
  Reply reply = ask({.kind = Kind::kSyncDevice, .call = call});
  count_device_wait();
  for (auto [stream, key] : newest)
    progress_ended(stream, key);
  set_current_device(before);
  run_callbacks_before(reply.seq);
  value_count_reads();
  return reply.status;
}

} // namespace eidolon
