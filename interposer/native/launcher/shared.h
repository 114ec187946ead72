// The directory shared with the agent (DIR of --dir), and what the launcher's files need beside it.
#pragma once
#include <limits.h>

// The launcher's own exit codes, as a shell has them.
enum { kCannotStart = 125, kCannotRun = 126, kNotFound = 127 };

// Makes `directory` the shared one. It has to exist. Nothing is written before this call.
void share(const char *directory);
const char *shared_directory(void); // "" until `share`

// Gives the path of DIR/NAME.
void shared_path(char out[PATH_MAX + 32], const char *name);

// Writes DIR/NAME as a whole, by rename. Returns false if that failed.
int write_shared(const char *name, const char *text);

// Writes DIR/exit, the last thing that a launcher writes.
void write_exit(int code, const char *reason);

// Writes one line to stderr, writes the same to DIR/exit, and ends the process.
__attribute__((noreturn, format(printf, 2, 3))) void fail(int code, const char *format, ...);

// Returns true once the agent says that the run is over. `failed` and `reason` then get the code and the reason in
// DIR/stop.
int told_to_stop(int *failed, char reason[512]);

// Seconds of a clock that only goes forward.
double now_s(void);
