// What the Python hook calls: C functions of libeidolon.so, found by name.
#pragma once
#include "status.h"

namespace eidolon {

extern "C" {
// The calling Python interpreter's functions cost host time from now on. Holds the GIL. 1: they do.
EID_API int eidolon_follow_python(void);
// Virtual clock of this rank in ns, or -1 if the process is no rank. Foreground threads ask the core and pay 1 us.
EID_API int64_t eidolon_clock_ns(void);
// CLOCK_REALTIME at virtual time 0, or -1.
EID_API int64_t eidolon_epoch_ns(void);
// Advances the clock of a foreground thread by ns; returns 1. On other threads returns 0: the caller waits.
EID_API int eidolon_sleep_ns(int64_t ns);
// Step mark; 1 if this process is a rank.
EID_API int eidolon_mark(const char *kind);
// Marks of optimizer steps so far.
EID_API int64_t eidolon_steps(void);
// Reports one metric from user or hook code ("tokens", value): a mark signature with an attribute.
EID_API int eidolon_report(const char *name, int64_t value);
// As `unmodelled`.
EID_API void eidolon_unmodelled(const char *library, const char *function);
}

} // namespace eidolon
