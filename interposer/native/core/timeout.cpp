// The timeouts of torch's process groups, in virtual time.
//
// Each look of torch's NCCL watchdog at a collective that has not ended calls WorkNCCL::checkTimeout. That reads the
// steady clock, subtracts what the clock showed when the collective was enqueued, and compares the result with the
// timeout of the group. If it is over, torch writes what it has to say, aborts its communicators and ends the process.
//
// How long a simulation takes must not decide that. So the function is interposed, and with it the steady clock of the
// C++ library, which reads otherwise in there:
// * It shows zero, as long as the core says nothing. No timeout is over then, however slow the simulation is, and
//   however long a debugger holds the process.
// * The core says in RingHeader::overdue_seq and overdue_ns that a collective of this rank has not ended for so much
//   virtual time (simcore's run/deadlines.py says when). At the watchdog's next look at this collective, the clock
//   shows the first of the program's timeouts after the time at which it was enqueued, then the second, and so on up to
//   what the core said. Torch compares, and decides. The core is told what it decides.
//
// The watchdog asks for the end of a collective after each look at its timeout, by the event behind it. So the first
// look after the core's word tells which work of torch's it is, and the next ones show the time. Meanwhile the end of
// that collective is hidden from background threads, even if it has come, beyond the timeout.
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "internal.h"

// c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::milliseconds>)
#define CHECK_TIMEOUT                                                                                                  \
  "_ZN4c10d16ProcessGroupNCCL8WorkNCCL12checkTimeoutESt8optionalINSt6chrono8durationIlSt5ratioILl1ELl1000EEEEE"

namespace eidolon {

struct Limit { // std::optional<std::chrono::milliseconds>, as it is passed
  int64_t ms;
  bool given;
};

namespace {

// What a thread that looks at timeouts has in hand.
struct Looker {
  const void *work = nullptr;    // torch's work at which it looked last
  bool looks = false;            // it is inside checkTimeout
  const void *overdue = nullptr; // the work of the collective that the core named
  uint64_t seq = 0;              // RingHeader::overdue_seq at that time
  int64_t enqueued_ns = 0;       // of that work
  int64_t shown_ns = 0;          // the timeout that was shown last
};
__attribute__((tls_model("initial-exec"))) constinit thread_local Looker looker;
__attribute__((tls_model("initial-exec"))) constinit thread_local int64_t last_read_ns = 0;

std::mutex timeouts_mutex;
std::vector<int64_t> &timeouts_ns = *new std::vector<int64_t>; // that the program has named, in order

// The first of the program's timeouts beyond the one that was shown last, up to what the core said; 0: there is none.
int64_t next_to_show() {
  const RingHeader *h = ring_header();
  if (h->overdue_seq.load(std::memory_order_acquire) != looker.seq)
    return 0;
  const int64_t most_ns = h->overdue_ns.load(std::memory_order_acquire);
  std::lock_guard hold(timeouts_mutex);
  const auto next = std::upper_bound(timeouts_ns.begin(), timeouts_ns.end(), looker.shown_ns);
  return next == timeouts_ns.end() || *next > most_ns ? 0 : *next;
}

using CheckTimeout = bool (*)(void *work, Limit limit);

// torch's own function; null if this torch has it under no such name, or is not loaded.
CheckTimeout torchs() {
  static std::atomic<CheckTimeout> kept{nullptr};
  CheckTimeout found = kept.load(std::memory_order_acquire);
  if (found != nullptr)
    return found;
  void *library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr)
    return nullptr;
  found = reinterpret_cast<CheckTimeout>(dlsym(library, CHECK_TIMEOUT));
  kept.store(found, std::memory_order_release);
  return found;
}

// While it lives, the calling thread is inside checkTimeout.
struct Looking {
  Looking() { looker.looks = true; }
  ~Looking() { looker.looks = false; }
};

} // namespace

int64_t last_steady_read_ns() { return last_read_ns; }

bool timeout_may_be_over(const Stream *stream, uint64_t key) {
  const uint64_t overdue = ring_header()->overdue_seq.load(std::memory_order_acquire);
  if (overdue == 0)
    return false;
  const auto end = std::find_if(stream->ends.begin(), stream->ends.end(), [=](const CollectiveEnd &e) {
    return e.key == key && e.first_seq < overdue && overdue <= e.after;
  });
  if (end == stream->ends.end())
    return false;
  if (looker.seq != overdue || looker.overdue != looker.work) {
    looker.overdue = looker.work;
    looker.seq = overdue;
    looker.enqueued_ns = end->enqueued_ns;
    looker.shown_ns = 0;
  }
  return true;
}

} // namespace eidolon

using namespace eidolon;

// A process group of NCCL gets this timeout. Returns whether it holds in virtual time: in a torch whose watchdog does
// not look as described above it would hold in real time.
extern "C" EID_API int eidolon_timeout(int64_t ms) {
  constexpr int64_t kMsNs = 1'000'000;
  if (torchs() == nullptr)
    return 0;
  if (ms <= 0 || ms > INT64_MAX / kMsNs)
    return 1;
  std::lock_guard hold(timeouts_mutex);
  const auto at = std::lower_bound(timeouts_ns.begin(), timeouts_ns.end(), ms * kMsNs);
  if (at != timeouts_ns.end() && *at == ms * kMsNs)
    return 1;
  timeouts_ns.insert(at, ms * kMsNs);
  signature("nccl", signatures::Timeout{.ms = ms});
  return 1;
}

EID_API bool check_timeout(void *work, Limit limit) __asm__(CHECK_TIMEOUT);
bool check_timeout(void *work, Limit limit) {
  const CheckTimeout check = torchs(); // the caller is in torch, so it is there
  if (ring_header() == nullptr)
    return check(work, limit);
  Looker &mine = looker;
  mine.work = work;
  const int64_t show_ns = work == mine.overdue ? next_to_show() : 0;
  if (show_ns != 0)
    mine.shown_ns = show_ns;
  bool over;
  {
    const Looking now;
    over = check(work, limit);
  }
  if (work == mine.overdue && (over || next_to_show() == 0)) {
    mine.overdue = nullptr;
    constexpr signatures::Timeout kNone{.ms = 0};
    const uint32_t verdict = over ? signature("over", kNone) : signature("kept", kNone);
    emit({.kind = Kind::kHost, .sig = verdict, .value = mine.seq - 1});
  }
  return over;
}

// std::chrono::steady_clock::now
EID_API int64_t steady_clock_now() noexcept __asm__("_ZNSt6chrono3_V212steady_clock3nowEv");
int64_t steady_clock_now() noexcept {
  if (const Looker &mine = looker; mine.looks)
    return mine.work == mine.overdue ? mine.enqueued_ns + mine.shown_ns : 0;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return last_read_ns = now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}
