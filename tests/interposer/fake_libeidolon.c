// A libeidolon.so for tests of the hook: a clock that stands still unless it is told otherwise, and a log of the calls.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int64_t clock_ns = -1, epoch_ns = -1;
static char log_text[65536];

static int foreground(void) { return clock_ns >= 0 && syscall(SYS_gettid) == getpid(); }
static void note(const char *what, const char *name, int64_t value) {
  size_t used = strlen(log_text);
  snprintf(log_text + used, sizeof log_text - used, "%s %s %lld\n", what, name, (long long)value);
}

int eidolon_follow_python(void) { return 0; }
int64_t eidolon_clock_ns(void) { return clock_ns; }
int64_t eidolon_epoch_ns(void) { return clock_ns < 0 ? -1 : epoch_ns; }
int eidolon_sleep_ns(int64_t ns) {
  if (!foreground())
    return 0;
  clock_ns += ns;
  return 1;
}
int eidolon_mark(const char *kind) {
  note("mark", kind, 0);
  return clock_ns >= 0;
}
int eidolon_report(const char *name, int64_t value) {
  note("report", name, value);
  return clock_ns >= 0;
}

int eidolon_timeout(int64_t ms) {
  note("timeout", "nccl", ms);
  return getenv("FAKE_REAL_TIME") == NULL;
}

// The last one.
static char unmodelled_text[256];
void eidolon_unmodelled(const char *library, const char *function) {
  snprintf(unmodelled_text, sizeof unmodelled_text, "%s: %s", library, function);
}

// What the tests turn.
void fake_become_rank(int64_t epoch) {
  epoch_ns = epoch;
  clock_ns = 0;
}
void fake_set_clock(int64_t ns) { clock_ns = ns; }
const char *fake_log(void) { return log_text; }
const char *fake_unmodelled(void) { return unmodelled_text; }
