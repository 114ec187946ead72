// What the launcher's files share. See launch.c for what it does.
#pragma once
#include <limits.h>
#include <signal.h>

enum { kCannotStart = 125, kCannotRun = 126, kNotFound = 127 };

// One line to stderr, the same to DIR/exit, and the end.
__attribute__((noreturn, format(printf, 2, 3))) void fail(int code, const char *format, ...);

// Writes DIR/NAME whole, by rename; false if that failed.
int write_shared(const char *name, const char *text);

// The path of DIR/NAME.
void shared_path(char out[PATH_MAX + 32], const char *name);

// Seconds of a clock that only goes forward.
double now_s(void);

// The run is over, says the agent: 1, with the code and the reason of DIR/stop. 0 while it goes on.
int told_to_stop(int *failed, char reason[512]);

// gate.c: returns once the agent has opened the gate and every name resolves; ends the process if that takes more than
// `limit_s`, or if the run is over before. `signals` are blocked; one of them that asks for an end is obeyed.
void wait_at_gate(double limit_s, char *const *names, int count, const sigset_t *signals);

// image.c: the directory, of those in `root`, with the libraries for the CUDA that the image's framework was built for.
// Ends the process if nothing here can run in this image. Writes DIR/image.
void choose_libraries(char out[PATH_MAX], const char *root, char **command);

// image.c: ends the process unless the image's C library can load what is in `lib`.
void check_c_library(const char *lib, const char *command);
