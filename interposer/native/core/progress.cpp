// What this rank knows to have ended, so that queries seldom need the core; and what its background threads see of it.
//
// Recordings on one stream end in the order in which they were made, and behind all that the stream waited for before.
// Each answer (a synchronise that returned, a query that said yes) therefore tells of all earlier recordings of its
// stream and of the streams it waited for, and what ended at or before the clock of one answer has ended for every
// later one. A foreground query that is settled so still costs its host time, told to the core without waiting for an
// answer. Hosts run ahead of a device by its launch queue at most, so what lies two queues back has ended as well.
//
// Background threads (NCCL's watchdog in torch) poll the events of all outstanding collectives, in real time and
// holding locks that the main thread needs. They affect no timeline, but memory: torch keeps the tensors of a
// collective that nobody waited for (DDP waits for a future instead) until the watchdog, in one of its rounds of 100
// ms, has seen the end; the next call of the process group then frees them. How much memory a step takes must not
// follow from how fast this machine is, so
// * a background thread sees what foreground threads know, and no more;
// * before a rank issues a collective, background threads have seen the ends of collectives that it knows of, and have
//   acted on them: it wakes them (watcher.cpp) and waits for them in real time, unless a stream waits for the end
//   itself, as Work.wait() does, which frees the tensors at once. A real rank is in that state when its steps are long
//   against a round, as first steps are.
// Where foreground threads rest (idle, or no launch for a second), background threads may be what they wait for, as in
// destroy_process_group, and the core is asked: about a stream at most every 20 ms, searching by halving for its newest
// recording that has ended. How long that takes is up to the core; for four times as long it is not asked again, or a
// watchdog with a hundred collectives to look at would hold its lock most of the time. A program that ends may wait for
// ends that lie beyond its clock, with nobody left for whom time goes on: a rank that has been idle for five seconds in
// which background threads asked is told that they have come. That moves no clock.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "internal.h"

namespace eidolon {
namespace {

constexpr int64_t kProbeNs = 20'000'000, kRests = 4;
constexpr int64_t kRestNs = 1'000'000'000;  // without a launch: foreground threads may wait for background threads
constexpr int64_t kStuckNs = 5'000'000'000; // the same, idle: they do
constexpr uint64_t kQueue = 2048, kReview = 4096; // launches: ended for sure; looked at so often
constexpr int64_t kShownNs = 3'000'000'000;       // a watcher that has not looked by then is gone
constexpr int64_t kUnknownShownNs = 500'000'000;  // the same if nobody was ever seen to look
constexpr size_t kEndsKept = 64;                  // of collectives that have ended, for threads that look late
constexpr int64_t kSilentUs = 500;                // for so long a watcher is waited for before it is woken once more

struct Progress {
  std::mutex mutex;
  std::vector<Stream *> streams[kMaxDevices]; // with a log, per device
  std::atomic<uint64_t> launches[kMaxDevices] = {};
  uint64_t polled_launches = 0; // of all devices, when a background thread last asked
  int64_t polled_ns = 0;        // when it had last changed
};
Progress *progress() {
  static Progress *all = new Progress;
  return all;
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// The functions up to the end of the namespace want the mutex held.

void note(Stream *stream, uint64_t key) {
  stream->ended_key = std::max(stream->ended_key, key);
  while (!stream->recorded.empty() && stream->recorded.front().key <= key) {
    const Recording entry = stream->recorded.front();
    stream->recorded.pop_front();
    if (entry.waited != nullptr && entry.waited->ended_key < entry.waited_key)
      note(entry.waited, entry.waited_key);
  }
}

void append(Stream *stream, const Recording &entry) {
  if (!stream->has_recordings) {
    stream->has_recordings = true;
    progress()->streams[stream->device].push_back(stream);
  }
  stream->recorded.push_back(entry);
}

// Whether foreground threads launch nothing, for whatever reason.
bool resting(int64_t now) {
  Progress *p = progress();
  uint64_t launches = 0;
  for (const std::atomic<uint64_t> &of_device : p->launches)
    launches += of_device.load(std::memory_order_relaxed);
  if (launches != p->polled_launches || p->polled_ns == 0) {
    p->polled_launches = launches;
    p->polled_ns = now;
  }
  return ring_header()->idle.load() != 0 || now - p->polled_ns >= kRestNs;
}

bool stuck(int64_t now) { return ring_header()->idle.load() != 0 && now - progress()->polled_ns >= kStuckNs; }

bool hides(const Stream *stream) { return !stream->unseen.empty() && stream->unseen.front() <= stream->ended_key; }

// Waits until the stream's watcher, which was woken, has seen the ends that foreground threads know and acted on them.
void await_watcher(Stream *stream, std::unique_lock<std::mutex> &hold) {
  const InsideCall inside;
  const RealWait waits(ring_header()->watcher_wait_ns);
  const int64_t until_ns = now_ns() + (stream->watcher != nullptr ? kShownNs : kUnknownShownNs);
  for (bool rung = true; now_ns() < until_ns;) {
    const uint32_t heard = watchers_bell(); // before we look: what it does afterwards ends the wait
    Watcher *watcher = stream->watcher;
    const bool hidden = hides(stream);
    if (watcher == nullptr ? !hidden : hidden ? watcher_gone(watcher) : !watcher_acts(watcher, !rung))
      break;
    hold.unlock();
    if (watcher != nullptr && hidden && !rung)
      watcher_wake(watcher);
    rung = watchers_wait(heard, kSilentUs);
    hold.lock();
  }
  if (stream->watcher != nullptr)
    watcher_let_go(stream->watcher);
  if (hides(stream)) {
    stream->watched = false;
    stream->unseen.clear();
  }
}

} // namespace

void progress_launched(int device) {
  Progress *p = progress();
  const uint64_t launches = p->launches[device].fetch_add(1, std::memory_order_relaxed) + 1;
  if (launches % kReview != 0)
    return;
  std::lock_guard hold(p->mutex);
  for (Stream *stream : p->streams[device]) {
    const auto after = std::find_if(stream->recorded.begin(), stream->recorded.end(),
                                    [=](const Recording &entry) { return entry.launches + kQueue > launches; });
    if (after != stream->recorded.begin())
      note(stream, std::prev(after)->key);
  }
}

void progress_recorded(Stream *stream, uint64_t key) {
  Progress *p = progress();
  std::lock_guard hold(p->mutex);
  append(stream, {.key = key, .launches = p->launches[stream->device].load(std::memory_order_relaxed)});
  if (!std::exchange(stream->after_collective, false))
    return;
  if (stream->watched)
    stream->unseen.push_back(key);
  stream->ends.push_back({key, stream->collective_seq, stream->last_seq, last_steady_read_ns()});
  while (stream->ends.size() > kEndsKept && stream->ends.front().key <= stream->ended_key)
    stream->ends.pop_front();
}

void progress_waited(Stream *stream, Stream *other, uint64_t key) {
  Progress *p = progress();
  std::lock_guard hold(p->mutex);
  std::erase(other->unseen, key);
  if (stream == other || key <= other->ended_key)
    return;
  append(stream, {.key = next_event_key(),
                  .launches = p->launches[stream->device].load(std::memory_order_relaxed),
                  .waited = other,
                  .waited_key = key});
}

void progress_collective(Stream *stream) {
  if (ring_header() == nullptr)
    return;
  Progress *p = progress();
  std::unique_lock hold(p->mutex);
  const auto &streams = p->streams[stream->device]; // grows while the mutex is not held
  for (Stream *other : streams)                     // all at once
    if (other->watcher != nullptr && hides(other))
      watcher_wake(other->watcher);
  for (size_t i = 0; i < streams.size(); ++i)
    if (Stream *other = streams[i]; hides(other) || (other->watcher != nullptr && watcher_acts(other->watcher, false)))
      await_watcher(other, hold);
  if (!std::exchange(stream->after_collective, true))
    stream->collective_seq = ring_next_seq();
}

uint64_t progress_newest(Stream *stream) {
  std::lock_guard hold(progress()->mutex);
  return stream->recorded.empty() ? stream->ended_key : stream->recorded.back().key;
}

std::vector<std::pair<Stream *, uint64_t>> progress_newest_of(int device) {
  Progress *p = progress();
  std::lock_guard hold(p->mutex);
  std::vector<std::pair<Stream *, uint64_t>> out;
  for (Stream *stream : p->streams[device])
    if (!stream->recorded.empty())
      out.emplace_back(stream, stream->recorded.back().key);
  return out;
}

void progress_ended(Stream *stream, uint64_t key) {
  std::lock_guard hold(progress()->mutex);
  note(stream, key);
}

bool progress_has_ended(const Stream *stream, uint64_t key) {
  std::lock_guard hold(progress()->mutex);
  return key <= stream->ended_key;
}

bool progress_probe(Stream *stream, uint64_t key, uint16_t call) {
  std::vector<uint64_t> open;
  const int64_t begin = now_ns();
  std::unique_lock hold(progress()->mutex);
  Watcher *watcher = stream->watcher = this_watcher();
  watcher_polls(watcher);
  stream->watched = true;
  if (key > stream->ended_key && resting(begin) && begin >= stream->probe_after_ns) {
    stream->probe_after_ns = begin + kProbeNs;
    for (const Recording &entry : stream->recorded)
      if (entry.waited == nullptr)
        open.push_back(entry.key);
    hold.unlock();
    size_t ended = 0, unsure = open.size(); // open[0, ended) have ended; open[unsure, ...) have not
    for (size_t probe = open.size(); ended < unsure; probe = ended + (unsure - ended + 1) / 2) {
      const uint64_t asked = open[probe - 1];
      if (ask({.kind = Kind::kQueryEvent, .call = call, .stream = stream, .value = asked}).value != 0)
        ended = probe;
      else
        unsure = probe - 1;
    }
    hold.lock();
    const int64_t over = now_ns();
    stream->probe_after_ns = over + std::max(kProbeNs, kRests * (over - begin));
    if (ended > 0)
      note(stream, open[ended - 1]);
  }
  if (timeout_may_be_over(stream, key))
    return false;
  if (key > stream->ended_key && stuck(begin))
    note(stream, key);
  const bool seen = key <= stream->ended_key;
  if (seen && std::erase(stream->unseen, key) != 0)
    watcher_saw(watcher);
  return seen;
}

} // namespace eidolon
