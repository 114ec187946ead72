// A background thread that polls events between timed waits is woken for a rank that waits for it, whatever its period.
// That changes nothing else: not its clocks after the wait, nor other threads on the same condition variable.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <vector>

#include "agent.h"

using namespace eidolon;
using std::chrono::steady_clock, std::chrono::system_clock;

namespace {

constexpr std::chrono::hours kPeriod{1}; // whoever has to wait for its end fails
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int kTurns = 20;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true; // a sanitizer's own waits and clock stand in front of ours, which nobody calls then
#else
constexpr bool kSanitized = false;
#endif

// How far the calling thread's clocks are from the kernel's.
int64_t clocks_off_ns() {
  int64_t worst = 0;
  for (const clockid_t clock : {CLOCK_REALTIME, CLOCK_MONOTONIC}) {
    timespec shown, real;
    clock_gettime(clock, &shown);
    syscall(SYS_clock_gettime, clock, &real);
    worst = std::max<int64_t>(worst, std::abs((shown.tv_sec - real.tv_sec) * kSecondNs + shown.tv_nsec - real.tv_nsec));
  }
  return worst;
}

// ---- ways to wait for a period; true: it is over -------------------------------------------------------------------

using Lock = std::unique_lock<std::mutex>;
using Wait = bool (*)(std::condition_variable &, Lock &);

bool by_steady_clock(std::condition_variable &variable, Lock &lock) {
  return variable.wait_for(lock, kPeriod) == std::cv_status::timeout;
}

// As `by_steady_clock` in a C++ library that was built without pthread_cond_clockwait, like that of stock wheels.
bool by_two_clocks(std::condition_variable &variable, Lock &lock) {
  const steady_clock::time_point deadline = steady_clock::now() + kPeriod, entry = steady_clock::now();
  const system_clock::time_point until = system_clock::now() + (deadline - entry);
  const int64_t until_ns = std::chrono::nanoseconds(until.time_since_epoch()).count();
  const timespec time{until_ns / kSecondNs, until_ns % kSecondNs};
  pthread_cond_timedwait(variable.native_handle(), lock.mutex()->native_handle(), &time);
  return system_clock::now() >= until && steady_clock::now() >= deadline;
}

bool by_system_clock(std::condition_variable &variable, Lock &lock) {
  return variable.wait_until(lock, system_clock::now() + kPeriod) == std::cv_status::timeout;
}

// Believes what the wait returns.
bool by_no_clock(std::condition_variable &variable, Lock &lock) {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  time.tv_sec += std::chrono::seconds(kPeriod).count();
  return pthread_cond_timedwait(variable.native_handle(), lock.mutex()->native_handle(), &time) == ETIMEDOUT;
}

// ---- a background thread -------------------------------------------------------------------------------------------

struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<void *> events = {};
  bool ending = false;
};

// Like torch's watchdog, looks at the events once in a period, and when it is told to end.
struct Watchdog {
  Shared &shared;
  const Wait wait;
  const bool polls;           // if not, it looks at no event, and is no watcher
  int wakes = 0, periods = 0; // how often its wait ended, and how often because the period was over
  int64_t off_ns = 0;         // the most that a clock was off between two waits
  std::atomic<int> done{0};   // events that it has seen and acted on
  std::thread thread{[this] { run(); }};

  void run() {
    Lock lock(shared.mutex);
    look();
    while (!shared.ending) {
      for (bool over = false; !shared.ending && !over; periods += over) {
        over = wait(shared.changed, lock);
        ++wakes;
        if (wait == by_steady_clock || wait == by_two_clocks) // torch reads clocks before it looks
          off_ns = std::max(off_ns, clocks_off_ns());
      }
      look();
      off_ns = std::max(off_ns, clocks_off_ns());
    }
  }

  void look() {
    size_t seen = static_cast<size_t>(done.load());
    while (polls && seen < shared.events.size() && event_query(shared.events[seen], 0) == kSuccess)
      ++seen;
    if (seen != static_cast<size_t>(done.load()))
      for (const clock_t until = clock() + CLOCKS_PER_SEC / 200; clock() < until;) // at work, not asleep
        ;
    done = static_cast<int>(seen);
  }

  // Wakes it, and returns once it has woken, or after some seconds.
  void wake() {
    for (int i = 0; i < 5000; ++i) {
      shared.changed.notify_all();
      usleep(1000);
      if (std::lock_guard hold(shared.mutex); wakes > 0)
        return;
    }
  }
};

void end(Shared &shared) {
  {
    std::lock_guard hold(shared.mutex);
    shared.ending = true;
  }
  shared.changed.notify_all();
}

// ---- a rank --------------------------------------------------------------------------------------------------------

struct Rank {
  Stream *stream = nullptr;
  void *device = nullptr;
  std::atomic<uint64_t> position{0};

  Rank() {
    CHECK_EQUAL(stream_create(kStreamNonBlocking, 0, &stream), kSuccess);
    CHECK_EQUAL(mem_alloc(0, 4096, &device), kSuccess);
  }
  ~Rank() { mem_free(device); }

  void issue_collective() {
    launch_collective({.sig = signature("all_reduce", signatures::Collective{}),
                       .position = &position,
                       .stream = stream,
                       .call = EID_CALL("ncclAllReduce"),
                       .group_more = false,
                       .send = device,
                       .send_bytes = 0,
                       .receive = device,
                       .receive_bytes = 0});
  }

  // Records the end of the collective, and hands the event to who looks at events.
  void hand_over(Shared &shared) {
    void *event;
    event_create(kEventDisableTiming, &event);
    event_record(event, stream, 0);
    std::lock_guard hold(shared.mutex);
    shared.events.push_back(event);
  }
};

void woken(Wait wait) {
  Rank rank;
  Shared shared;
  rank.issue_collective();
  rank.hand_over(shared);
  Watchdog watchdog{.shared = shared, .wait = wait, .polls = true};
  Watchdog other{.shared = shared, .wait = by_steady_clock, .polls = false};
  // A wake for no reason is none: the period is not over.
  watchdog.wake();
  other.wake();
  CHECK(watchdog.wakes > 0);
  CHECK(other.wakes > 0);
  CHECK_EQUAL(watchdog.periods, 0);
  CHECK_EQUAL(watchdog.done.load(), 0);
  // Before each collective the watchdog has seen the end of the one before and has acted on it.
  for (int turn = 1; turn <= kTurns; ++turn) {
    device_synchronize(0, 0);
    rank.issue_collective();
    CHECK_EQUAL(watchdog.done.load(), turn);
    rank.hand_over(shared);
  }
  // Told to end, both end, though their periods are not over.
  end(shared);
  watchdog.thread.join();
  other.thread.join();
  CHECK(watchdog.periods >= kTurns);
  CHECK_EQUAL(other.periods, 0);
  CHECK(watchdog.off_ns < kSecondNs);
  CHECK(other.off_ns < kSecondNs);
  // Nobody looks any more, and a rank does not wait for nobody.
  device_synchronize(0, 0);
  rank.issue_collective();
}

} // namespace

int main() {
  test::directory = test::enter_server("mode=core\ndevices=1\nring.records=1024\nring.defs_bytes=65536\n"
                                       "ring.inbox_bytes=65536\ngpu.context_bytes=104857600\n"
                                       "host.function=64 512 8192 460 970 6800 15400\n"
                                       "host.operator=64 512 8192 1730 7100 13600 13600\nhost.ages=5 60 10000\n");
  static test::Agent agent;
  agent.make_page();
  CHECK_EQUAL(ensure_context(0), kSuccess);
  for (const Wait wait : {by_steady_clock, by_two_clocks, by_system_clock, by_no_clock})
    if (!kSanitized)
      woken(wait);
  agent.stop = true;
  agent.thread.join();
  int failed = test::result();
  fflush(nullptr);
  _exit(failed); // the exit handler would wait for an agent
}
