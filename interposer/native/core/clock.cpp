// The C functions that the Python hook calls: the rank's clock, sleep, step marks, reported metrics.
//
// A foreground thread's clock read asks the core: the time of the record before it plus the cost of the read. Between
// two records nothing but reads can move the clock, so repeated reads are answered here, one microsecond apart, and
// told to the core before the thread's next record: a loop that polls the clock ends, and costs no round trip a turn.
// Whether a read is asked or answered here may depend on another thread's records; the times do not.
#include <atomic>
#include <cstring>

#include "internal.h"

namespace eidolon {
namespace {

std::atomic<int64_t> steps_marked{0};

constexpr int64_t kReadNs = 1000; // law 5: a clock read by a foreground thread costs at least 1 us

// The last answered read of this thread, as long as no record followed it.
struct LastRead {
  uint64_t next_seq = 0;
  int64_t clock_ns = 0;
};
thread_local LastRead last_read;

} // namespace

extern "C" {

int64_t eidolon_clock_ns(void) {
  RingHeader *h = ring_header();
  if (!is_rank() || h == nullptr)
    return -1;
  if (!foreground_thread())
    return h->clock_ns.load();
  LastRead &last = last_read;
  if (last.next_seq != 0 && last.next_seq == ring_next_seq()) {
    int64_t &unpaid_ns = this_thread().unpaid_ns;
    unpaid_ns += kReadNs + take_interpreter_ns();
    return last.clock_ns + unpaid_ns;
  }
  Reply reply = ask({.kind = Kind::kClock, .call = EID_CALL("clock")});
  last.next_seq = reply.seq + 1;
  last.clock_ns = std::max(reply.clock_ns, last.clock_ns);
  return last.clock_ns;
}

int64_t eidolon_epoch_ns(void) {
  RingHeader *h = ring_header();
  return is_rank() && h != nullptr ? h->epoch_ns : -1;
}

int eidolon_sleep_ns(int64_t ns) {
  if (!is_rank() || ring_header() == nullptr || !foreground_thread() || ns < 0)
    return 0;
  emit({.kind = Kind::kSleep, .call = EID_CALL("sleep"), .value = static_cast<uint64_t>(ns)});
  return 1;
}

int eidolon_mark(const char *kind) {
  if (!is_rank())
    return 0;
  if (strcmp(kind, "step") == 0)
    ++steps_marked;
  emit({.kind = Kind::kMark, .sig = signature(kind, signatures::Mark{.value = 0})});
  return 1;
}

int64_t eidolon_steps(void) { return steps_marked; }

int eidolon_report(const char *name, int64_t value) {
  if (!is_rank())
    return 0;
  emit({.kind = Kind::kHost, .sig = signature(name, signatures::Mark{.value = value})});
  return 1;
}

void eidolon_unmodelled(const char *library, const char *function) { unmodelled(library, function); }

} // extern "C"
} // namespace eidolon
