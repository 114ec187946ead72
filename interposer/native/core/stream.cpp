// Streams, events, copies and host callbacks, with CUDA's ordering rules.
//
// The engine knows plain lanes; what CUDA adds is turned into recordings and waits here: the legacy default stream
// waits for all blocking streams of its device and they wait for it. A recording gets a key that is never used again,
// so an event that is recorded twice leaves waiters of the first recording alone.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
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

std::atomic<uint64_t> event_keys{1};

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

// The default stream's rule, before work on `stream` is issued.
void order_with_default(Stream *stream) {
  if ((stream->flags & 1) != 0)
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

// ---- host callbacks -----------------------------------------------------------------------------------------------

struct Callback {
  void (*function)(void *);
  void *data;
  int slot;
  uint64_t seq;
};
struct Callbacks {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Callback> pending; // in the order of issue
  bool started = false;
};
Callbacks *callbacks() {
  static Callbacks *all = new Callbacks;
  return all;
}

// One thread runs callbacks as they fall due, like the driver's own.
void *callback_thread(void *) {
  Callbacks *c = callbacks();
  std::unique_lock hold(c->mutex);
  for (;;) {
    if (c->pending.empty()) {
      c->changed.wait(hold);
      continue;
    }
    auto due = std::find_if(c->pending.begin(), c->pending.end(),
                            [](const Callback &one) { return ring_answered(one.slot, one.seq); });
    if (due == c->pending.end()) {
      hold.unlock();
      usleep(500);
      hold.lock();
      continue;
    }
    Callback one = *due;
    hold.unlock();
    ring_drain_inbox();
    one.function(one.data);
    callback_slot_give(one.slot);
    hold.lock();
    c->pending.erase(std::find_if(c->pending.begin(), c->pending.end(),
                                  [&](const Callback &other) { return other.seq == one.seq; }));
    c->changed.notify_all();
  }
}

void issue_callback(Stream *stream, void (*function)(void *), void *data, uint16_t call, uint8_t flags) {
  if (ring_header() == nullptr) { // null core: everything has ended already
    function(data);
    return;
  }
  Callbacks *c = callbacks();
  int slot = callback_slot_take();
  order_with_default(stream);
  Thread &thread = this_thread();
  thread.foreground = true;
  std::lock_guard hold(c->mutex);
  uint64_t seq = ring_emit({.kind = Kind::kCallback, .call = call, .stream = stream},
                           static_cast<uint8_t>(kForeground | kBlocking | flags), slot);
  stream->last_seq = seq + 1;
  c->pending.push_back({function, data, slot, seq});
  if (!c->started) {
    pthread_t runner;
    if (pthread_create(&runner, nullptr, callback_thread, nullptr) != 0)
      fatal("cannot start the host callback thread");
    pthread_detach(runner);
    c->started = true;
  }
  c->changed.notify_all();
}

CudaEvent *event_of(void *handle) {
  auto *event = static_cast<CudaEvent *>(handle);
  return event != nullptr && event->magic == kEventMagic ? event : nullptr;
}

bool pinned(const void *pointer) {
  PointerInfo::Type type = pointer_info(pointer).type;
  return type == PointerInfo::kHost || type == PointerInfo::kManaged;
}

// Whole pages go a faster way within the device (measured).
uint32_t copy_signature(const char *name, bool is_pinned, bool pages) {
  Attribute attributes[] = {{"pinned", is_pinned}, {"pages", pages}};
  return signature("copy", name, attributes, 2);
}

} // namespace

uint64_t next_event_key() { return event_keys.fetch_add(1, std::memory_order_relaxed); }

uint64_t emit_work(const Event &event) {
  order_with_default(event.stream);
  uint64_t seq = emit(event);
  event.stream->last_seq = seq + 1;
  progress_launched(event.stream->device);
  return seq;
}

void run_callbacks_before(uint64_t seq) {
  Callbacks *c = callbacks();
  std::unique_lock hold(c->mutex);
  if (c->pending.empty())
    return;
  bool ran = c->changed.wait_for(hold, std::chrono::seconds(60), [&] {
    return std::none_of(c->pending.begin(), c->pending.end(), [&](const Callback &one) { return one.seq < seq; });
  });
  if (!ran)
    fatal("a host callback (cudaLaunchHostFunc) did not return within 60 s");
}

// ---- streams ------------------------------------------------------------------------------------------------------

Stream *make_stream(int device, unsigned flags, int priority) {
  Streams *s = streams();
  std::lock_guard hold(s->mutex);
  return new Stream{kStreamMagic, s->next_id++, device, flags, priority};
}

Stream *stream_of(void *handle) {
  uintptr_t number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1)
    return default_stream(current_device());
  if (number == 2)
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
    if ((flags & 1) == 0)
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
  return reply.status;
}

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
    CudaEvent event{kEventMagic, 2, other->device};
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

Status stream_callback(Stream *stream, void (*function)(void *), void *data, uint16_t call) {
  if (capture_node(stream, 3, [=](Stream *lane, uint8_t flags) { issue_callback(lane, function, data, 0, flags); }))
    return kSuccess;
  issue_callback(stream, function, data, call, 0);
  return kSuccess;
}

// ---- events -------------------------------------------------------------------------------------------------------

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
  return capture_node(stream, 7, record) ? kSuccess : kInvalidValue;
}

Status stream_wait_external(Stream *stream, void *handle) {
  CudaEvent *event = event_of(handle);
  if (event == nullptr)
    return kInvalidHandle;
  auto wait = [event](Stream *lane, uint8_t flags) {
    if (event->key != 0)
      emit({.kind = Kind::kStreamWait, .flags = flags, .stream = lane, .value = event->key});
  };
  return capture_node(stream, 6, wait) ? kSuccess : kInvalidValue;
}

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
  return reply.status;
}

Status event_elapsed(void *start, void *end, float *ms, uint16_t call) {
  CudaEvent *a = event_of(start), *b = event_of(end);
  if (a == nullptr || b == nullptr || a->key == 0 || b->key == 0 || ((a->flags | b->flags) & 2) != 0)
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
  if (event == nullptr || (event->flags & 4) == 0)
    return kInvalidHandle;
  memset(out, 0, kIpcHandleBytes);
  memcpy(out, "EIDIPCE1", 8);
  memcpy(out + 8, &event->device, sizeof event->device);
  return kSuccess;
}

Status event_ipc_open(const unsigned char handle[kIpcHandleBytes], void **out) {
  if (memcmp(handle, "EIDIPCE1", 8) != 0)
    return kInvalidHandle;
  return event_create(2 | 4, out);
}

// ---- operations ---------------------------------------------------------------------------------------------------

Status launch_operation(Stream *stream, uint32_t sig, uint16_t call) {
  if (capture_node(stream, 0, [=](Stream *lane, uint8_t flags) {
        emit_work({.kind = Kind::kKernel, .flags = flags, .stream = lane, .sig = sig});
      }))
    return kSuccess;
  count_library_call();
  emit_work({.kind = Kind::kKernel, .call = call, .stream = stream, .sig = sig});
  return kSuccess;
}

struct Turn {
  std::mutex mutex;
  uint64_t lane = 0; // the stream that had it last
  uint64_t key = 0;  // recorded behind what had it; 0: nothing yet
};

Turn *turn_create() {
  static std::mutex mutex;
  static auto *all = new std::vector<Turn *>; // stay reachable
  std::lock_guard hold(mutex);
  return all->emplace_back(new Turn);
}

namespace {

void take_turn(Turn *turn, Stream *lane, uint8_t flags) {
  std::lock_guard hold(turn->mutex);
  if (turn->key != 0 && turn->lane != lane->id)
    emit({.kind = Kind::kStreamWait, .flags = flags, .stream = lane, .value = turn->key});
  turn->lane = lane->id;
}

void pass_turn(Turn *turn, Stream *lane, uint8_t flags) {
  std::lock_guard hold(turn->mutex);
  turn->key = next_event_key();
  emit({.kind = Kind::kEventRecord, .flags = flags, .stream = lane, .value = turn->key});
}

} // namespace

Status launch_collective(const Collective &c) {
  const bool moves = c.small && c.send_bytes + c.receive_bytes > 0;
  auto issue = [=](Stream *lane, uint8_t flags, uint16_t call) {
    order_with_default(lane);
    if (c.turn != nullptr)
      take_turn(c.turn, lane, flags);
    const uint8_t plain = flags;
    if (c.group_more)
      flags |= kGroupMore;
    if (moves)
      flags |= kPayload;
    uint64_t seq = emit({.kind = Kind::kCollective,
                         .flags = flags,
                         .call = call,
                         .stream = lane,
                         .sig = c.sig,
                         .value = c.position->fetch_add(1)});
    lane->last_seq = seq + 1;
    if (c.turn != nullptr && !c.group_more)
      pass_turn(c.turn, lane, plain);
    progress_launched(lane->device);
    if (ring_header() == nullptr) { // null core: every other rank is taken to have sent what this one did
      const size_t part = moves ? c.send_bytes : 0;
      if (part == 0 || c.receive_bytes % part != 0) {
        value_unknown(c.receive, c.receive_bytes);
        return;
      }
      for (size_t at = 0; at < c.receive_bytes; at += part)
        if (char *to = static_cast<char *>(c.receive) + at; to != c.send)
          value_copy(to, c.send, part);
      return;
    }
    if (moves && c.send_bytes != 0)
      value_send(seq, c.send, c.send_bytes);
    if (moves && c.receive_bytes != 0)
      value_receive(seq, c.receive, c.receive_bytes);
    else if (c.receive_bytes != 0)
      value_unknown(c.receive, c.receive_bytes);
  };
  if (capture_node(c.stream, 0, [=](Stream *lane, uint8_t flags) { issue(lane, flags, 0); }))
    return kSuccess;
  progress_collective(c.stream);
  count_library_call();
  issue(c.stream, 0, c.call);
  return kSuccess;
}

namespace {

// Moves (or forgets) the bytes of one row.
void move_bytes(void *to, const void *from, size_t bytes, int kind) {
  switch (kind) {
  case 1:
    if (bytes <= config().known_limit)
      value_write(to, bytes, from);
    else
      value_unknown(to, bytes);
    break;
  case 2:
    value_read_ordered(from, bytes, to);
    break;
  case 3:
    value_copy(to, from, bytes);
    break;
  default:
    memmove(to, from, bytes);
  }
}

} // namespace

Status copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
               Stream *stream, bool synchronous, uint16_t call) {
  if (width == 0 || height == 0)
    return kSuccess;
  if (to == nullptr || from == nullptr)
    return kInvalidValue;
  bool to_device = is_device(to), from_device = is_device(from);
  int seen = to_device ? (from_device ? 3 : 1) : (from_device ? 2 : 0);
  if (kind != 4 && kind != seen)
    return kInvalidValue; // what the driver answers to a direction that contradicts the addresses
  kind = seen;
  static const char *const kNames[] = {"h2h", "h2d", "d2h", "d2d"};
  const char *name = kNames[kind];
  if (kind == 3 && pointer_info(to).device != pointer_info(from).device)
    name = "p2p";
  const void *host = kind == 1 ? from : kind == 2 ? to : nullptr;
  const bool is_pinned = host != nullptr && pinned(host);
  const size_t bytes = width * height;
  const uint32_t sig = copy_signature(name, is_pinned, kind == 3 && bytes % 4096 == 0);
  auto rows = [=] {
    for (size_t row = 0; row < height; ++row)
      move_bytes(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width,
                 kind);
  };
  if (in_capture(stream)) {
    if (synchronous)
      return kCaptureUnsupported;
    capture_node(stream, 1, [=](Stream *lane, uint8_t flags) {
      emit_work({.kind = Kind::kCopy, .flags = flags, .stream = lane, .sig = sig, .value = bytes});
      rows();
    });
    return kSuccess;
  }
  count_launch();
  emit_work({.kind = Kind::kCopy, .call = call, .stream = stream, .sig = sig, .value = bytes});
  // CUDA programming guide, "API synchronization behavior": copies from device to pageable memory return once the copy
  // has completed; those to the device once the bytes are staged, which for more than 64 KiB is a stream's wait.
  constexpr size_t kStaged = 64 << 10;
  const bool waits =
      (synchronous && kind != 3) || (!is_pinned && (kind == 2 || (kind == 1 && bytes > kStaged))) || kind == 0;
  if (waits)
    stream_synchronize(stream, 0);
  if (waits && kind == 2)
    for (size_t row = 0; row < height; ++row)
      value_settle(static_cast<const char *>(from) + row * from_pitch, width);
  rows();
  return kSuccess;
}

Status copy(void *to, const void *from, size_t bytes, int kind, Stream *stream, bool synchronous, uint16_t call) {
  return copy_2d(to, bytes, from, bytes, bytes, 1, kind, stream, synchronous, call);
}

Status set(void *to, unsigned value, size_t element_bytes, size_t count, Stream *stream, bool synchronous,
           uint16_t call) {
  const size_t bytes = element_bytes * count;
  if (bytes == 0)
    return kSuccess;
  if (!is_device(to)) {
    if (!pinned(to))
      return kInvalidValue;
    fill_bytes(to, bytes, value, element_bytes);
    return kSuccess;
  }
  auto fill = [=] {
    if (bytes <= config().known_limit)
      value_fill(to, bytes, value, element_bytes);
    else
      value_unknown(to, bytes);
  };
  const uint32_t sig = signature("set", "set");
  if (in_capture(stream)) {
    if (synchronous)
      return kCaptureUnsupported;
    capture_node(stream, 2, [=](Stream *lane, uint8_t flags) {
      emit_work({.kind = Kind::kSet, .flags = flags, .stream = lane, .sig = sig, .value = bytes});
      fill();
    });
    return kSuccess;
  }
  count_launch();
  emit_work({.kind = Kind::kSet, .call = call, .stream = stream, .sig = sig, .value = bytes});
  fill();
  return kSuccess;
}

} // namespace eidolon
