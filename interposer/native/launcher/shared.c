// The directory shared with the agent, and how the launcher fails: one line to stderr and the same to DIR/exit.
#define _GNU_SOURCE
#include "shared.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char shared_dir[PATH_MAX]; // empty until `share`

void share(const char *directory) { snprintf(shared_dir, sizeof shared_dir, "%s", directory); }
const char *shared_directory(void) { return shared_dir; }

double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void shared_path(char out[PATH_MAX + 32], const char *name) { snprintf(out, PATH_MAX + 32, "%s/%s", shared_dir, name); }

int write_shared(const char *name, const char *text) {
  char temporary[PATH_MAX + 32], final[PATH_MAX + 32], hidden[64];
  snprintf(hidden, sizeof hidden, ".%s.tmp", name);
  shared_path(temporary, hidden);
  shared_path(final, name);
  FILE *file = fopen(temporary, "we");
  int written = file && fputs(text, file) >= 0;
  written = file && fclose(file) == 0 && written;
  if (!written || rename(temporary, final) != 0)
    fprintf(stderr, "eidolon launch: cannot write %s: %s\n", final, strerror(errno));
  return written;
}

int told_to_stop(int *failed, char reason[512]) {
  char path[PATH_MAX + 32], line[600] = "";
  shared_path(path, "stop");
  FILE *file = fopen(path, "re"); // it appears by rename, so it is whole
  if (!file)
    return 0;
  if (!fgets(line, sizeof line, file))
    line[0] = 0;
  fclose(file);
  line[strcspn(line, "\n")] = 0;
  char *text = line;
  *failed = strtol(line, &text, 10) != 0;
  snprintf(reason, 512, "%s", text + (*text == ' '));
  return 1;
}

void write_exit(int code, const char *reason) {
  char line[PATH_MAX + 512];
  snprintf(line, sizeof line, "%d %s\n", code, reason);
  if (shared_dir[0])
    write_shared("exit", line);
}

void fail(int code, const char *format, ...) {
  char reason[PATH_MAX + 256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  fprintf(stderr, "eidolon launch: %s\n", reason);
  write_exit(code, reason);
  exit(code);
}
