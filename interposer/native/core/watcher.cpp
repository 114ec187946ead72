// Watchers: background threads that poll events and sleep between their looks, and how they are woken to look at once.
//
// NCCL's watchdog in torch looks at the ends of collectives every 100 ms of real time, and a rank does not issue a
// collective before it has seen those that the rank knows of (progress.cpp). A rank that waited for the watchdog's own
// pace would take 100 ms for each step. So the watchdog's sleep is ended early. It is a wait on a condition variable,
// after which the C++ library reads the clock, and waits again while that is early. Therefore the timed waits of the C
// library and clock_gettime are interposed here:
//
// * A watcher that begins a timed wait notes its condition variable, and tells who waits for watchers that it is back.
// * Who wants a watcher to look broadcasts that variable. Any wait may end so, for no reason: programs expect it.
// * The wait then returns as if its time had run out, and the clock by which the C++ library checks that shows the time
//   at which it would have, once. From then on the thread reads the real clock again, so the next deadline is a real
//   one and nothing adds up. The pretence ends at the thread's next poll or wait even if nobody read a clock.
//
// The C++ library waits on its steady clock with pthread_cond_clockwait and checks by that clock alone. Where it was
// built without (as in stock wheels), it turns the deadline into one of the system's clock, waits with
// pthread_cond_timedwait, and checks by both clocks.
//
// A broadcast may come between a watcher's note and the sleep in which it would be heard. It is then lost, and who
// waits for the watcher repeats it. All other threads are left alone: they pay for one look at a pointer of their own.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "futex.h"
#include "internal.h"

namespace eidolon {

struct Watcher {
  const int tid;
  std::mutex mutex;                                 // nobody broadcasts on a variable that the watcher has left
  std::atomic<pthread_cond_t *> condition{nullptr}; // on which it waits now
  std::atomic<bool> wanted{false};                  // it is to look at once
  std::atomic<bool> acts{false};                    // it has seen an end and has yet to act on it
  std::atomic<bool> waits_here{false};              // its sleep is such a wait, as far as is known
  std::atomic<bool> gone{false};                    // its thread has ended
  int64_t ahead_ns[CLOCK_MONOTONIC + 1] = {}; // by clock: what its next read shows beyond the time; for itself alone
};

namespace {

static_assert(CLOCK_REALTIME == 0 && CLOCK_MONOTONIC == 1);
constexpr int64_t kSecondNs = 1'000'000'000;

// Looked at in each read of a clock and each timed wait of the process: no call, as it is loaded with the program.
__attribute__((tls_model("initial-exec"))) constinit thread_local Watcher *own = nullptr;

std::atomic<uint32_t> bell{0}; // futex word: a watcher began to wait, or ended
std::atomic<int> listeners{0};

void ring_watchers_bell() {
  bell.fetch_add(1);
  if (listeners.load() != 0)
    futex_wake(&bell);
}

// The C library's function behind ours, looked up once. An atomic, for a sanitizer sees no guard of a static inside a
// timed wait, which it interposes too.
template <class Function> Function next(std::atomic<Function> &kept, const char *name) {
  Function found = kept.load(std::memory_order_acquire);
  if (found == nullptr) {
    found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
    kept.store(found, std::memory_order_release);
  }
  return found;
}

int real_clock(clockid_t clock, timespec *time) {
  static constinit std::atomic<int (*)(clockid_t, timespec *)> kept{nullptr};
  return next(kept, "clock_gettime")(clock, time);
}

int real_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *deadline) {
  static constinit std::atomic<int (*)(pthread_cond_t *, pthread_mutex_t *, const timespec *)> kept{nullptr};
  return next(kept, "pthread_cond_timedwait")(condition, mutex, deadline);
}

int64_t nanoseconds(const timespec &time) { return time.tv_sec * kSecondNs + time.tv_nsec; }
timespec time_of(int64_t ns) { return {ns / kSecondNs, ns % kSecondNs}; }

int64_t now_ns(clockid_t clock) {
  timespec now{};
  real_clock(clock, &now);
  return nanoseconds(now);
}

// glibc has it from 2.30 on. Before, the deadline is turned into one of the system's clock. Who calls this waits in a
// loop, so a system clock that is set meanwhile costs one round.
int real_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const timespec *deadline) {
  static constinit std::atomic<int (*)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const timespec *)> kept{nullptr};
  if (const auto real = next(kept, "pthread_cond_clockwait"); real != nullptr)
    return real(condition, mutex, clock, deadline);
  if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC)
    return EINVAL;
  const timespec system = time_of(nanoseconds(*deadline) - now_ns(clock) + now_ns(CLOCK_REALTIME));
  return real_timedwait(condition, mutex, &system);
}

// While it lives, the watcher can be woken from a wait on `condition`.
class Waiting {
public:
  Waiting(Watcher *watcher, pthread_cond_t *condition) : watcher_(watcher) {
    {
      std::lock_guard hold(watcher->mutex);
      watcher->condition = condition;
      watcher->waits_here = true;
      watcher->acts = false;
    }
    ring_watchers_bell();
  }
  ~Waiting() {
    std::lock_guard hold(watcher_->mutex);
    watcher_->condition = nullptr;
  }

private:
  Watcher *watcher_;
};

// A watcher's timed wait: `wait` unless it is wanted already. True in `woken` if its time has not run out, but shall
// seem to have.
template <class Wait> int wait_as_watcher(Watcher *watcher, pthread_cond_t *condition, bool *woken, Wait wait) {
  watcher_polls(watcher);
  int status = 0;
  {
    const Waiting here(watcher, condition);
    if (!watcher->wanted.load())
      status = wait();
  }
  *woken = watcher->wanted.exchange(false);
  return *woken ? ETIMEDOUT : status;
}

} // namespace

Watcher *this_watcher() {
  struct Life {
    Watcher *watcher;
    ~Life() {
      {
        std::lock_guard hold(watcher->mutex);
        watcher->condition = nullptr;
      }
      watcher->acts = false;
      watcher->gone = true;
      own = nullptr;
      ring_watchers_bell();
    }
  };
  static std::mutex mutex;
  static auto *all = new std::vector<Watcher *>; // streams keep pointers to those that are gone
  if (own == nullptr) {
    own = new Watcher{.tid = static_cast<int>(syscall(SYS_gettid)), .mutex = {}};
    std::lock_guard hold(mutex);
    all->push_back(own);
    thread_local Life life{own};
  }
  return own;
}

void watcher_polls(Watcher *watcher) {
  for (int64_t &ahead_ns : watcher->ahead_ns)
    ahead_ns = 0;
}

void watcher_saw(Watcher *watcher) { watcher->acts = true; }

void watcher_let_go(Watcher *watcher) {
  watcher->wanted = false;
  watcher->acts = false;
}

bool watcher_gone(const Watcher *watcher) { return watcher->gone.load(); }

bool watcher_acts(Watcher *watcher, bool silence) {
  if (watcher->acts.load() && (silence || !watcher->waits_here.load()))
    if (const char state = thread_state(watcher->tid); state == 'S' || state == 0)
      watcher->acts = false;
  return watcher->acts.load();
}

void watcher_wake(Watcher *watcher) {
  std::lock_guard hold(watcher->mutex);
  watcher->wanted = true;
  if (pthread_cond_t *condition = watcher->condition.load(); condition != nullptr)
    pthread_cond_broadcast(condition);
}

uint32_t watchers_bell() { return bell.load(); }

bool watchers_wait(uint32_t heard, int64_t limit_us) {
  listeners.fetch_add(1);
  const bool rung = futex_wait(&bell, heard, limit_us);
  listeners.fetch_sub(1);
  return rung;
}

} // namespace eidolon

using namespace eidolon;

extern "C" {

EID_API int clock_gettime(clockid_t clock, timespec *time) noexcept {
  Watcher *watcher = own;
  if (watcher == nullptr)
    return real_clock(clock, time);
  const int status = real_clock(clock, time);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC))
    if (const int64_t ahead_ns = std::exchange(watcher->ahead_ns[clock], 0); ahead_ns != 0)
      *time = time_of(nanoseconds(*time) + ahead_ns);
  return status;
}

EID_API int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *deadline) {
  Watcher *watcher = own;
  if (watcher == nullptr)
    return real_timedwait(condition, mutex, deadline);
  bool woken;
  const int status =
      wait_as_watcher(watcher, condition, &woken, [=] { return real_timedwait(condition, mutex, deadline); });
  if (woken) {
    // By which clock a variable waits cannot be asked for, but the two are decades apart.
    const int64_t until_ns = nanoseconds(*deadline), system_ns = now_ns(CLOCK_REALTIME);
    const bool by_system = until_ns > system_ns / 2;
    const int64_t left_ns = until_ns - (by_system ? system_ns : now_ns(CLOCK_MONOTONIC));
    watcher->ahead_ns[CLOCK_MONOTONIC] = std::max<int64_t>(left_ns, 0);
    watcher->ahead_ns[CLOCK_REALTIME] = by_system ? std::max<int64_t>(left_ns, 0) : 0;
  }
  return status;
}

EID_API int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                                   const timespec *deadline) {
  Watcher *watcher = own;
  if (watcher == nullptr || (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC))
    return real_clockwait(condition, mutex, clock, deadline);
  bool woken;
  const int status =
      wait_as_watcher(watcher, condition, &woken, [=] { return real_clockwait(condition, mutex, clock, deadline); });
  if (woken)
    watcher->ahead_ns[clock] = std::max<int64_t>(nanoseconds(*deadline) - now_ns(clock), 0);
  return status;
}

} // extern "C"
