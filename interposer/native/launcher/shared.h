// The directory shared with the agent (DIR of --dir), and what the launcher's files need beside it.
#pragma once
#include <limits.h>

// The launcher's own exit codes, as a shell has them.
enum { kCannotStart = 125, kCannotRun = 126, kNotFound = 127 };

// Makes `directory`, which exists, the shared one. Until then nothing is written.
void share(const char *directory);
const char *shared_directory(void); // "" until `share`

// The path of DIR/NAME.
void shared_path(char out[PATH_MAX + 32], const char *name);

// Writes DIR/NAME whole, by rename; false if that failed.
int write_shared(const char *name, const char *text);

// Writes DIR/exit, the last thing that a launcher writes.
void write_exit(int code, const char *reason);

// One line to stderr, the same to DIR/exit, and the end.
__attribute__((noreturn, format(printf, 2, 3))) void fail(int code, const char *format, ...);

// True once the agent says that the run is over, with the code and the reason of DIR/stop.
int told_to_stop(int *failed, char reason[512]);

// Seconds of a clock that only goes forward.
double now_s(void);
