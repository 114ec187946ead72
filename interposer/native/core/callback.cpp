// Host callbacks (cudaLaunchHostFunc): functions that one thread runs when the work before them has ended.
//
// Callbacks of one stream fall due in order, those of several in any. The thread sleeps until the agent answers the
// oldest of all, and looks at the others every millisecond.
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>

#include "internal.h"

namespace eidolon {
namespace {

constexpr int64_t kLookUs = 1000;

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
      const Callback oldest = c->pending.front();
      hold.unlock();
      ring_await_answer(oldest.slot, oldest.seq, kLookUs);
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

} // namespace

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

Status stream_callback(Stream *stream, void (*function)(void *), void *data, uint16_t call) {
  if (capture_node(stream, NodeType::kHost,
                   [=](Stream *lane, uint8_t flags) { issue_callback(lane, function, data, 0, flags); }))
    return kSuccess;
  issue_callback(stream, function, data, call, 0);
  return kSuccess;
}

} // namespace eidolon
