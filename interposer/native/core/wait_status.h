// How a rank's process ended, told by whoever was its parent: `<EIDOLON_DIR>/ranks/<pid>.status` holds its wait status
// and when the parent was given it, in nanoseconds of CLOCK_MONOTONIC.
//
// The kernel tells that to the parent alone, and forgets it at once; the agent, which may be in another container, sees
// no more than that the rank's lock is gone. The parents are the launcher, and processes that the shim is in: torchrun,
// a script that spawns ranks, a shell.
//
// Calls nothing that may not be called in a signal handler: shells wait for their children in one.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

// A process numbers its rings; it has several only if it was forked off by a rank.
#define EIDOLON_RINGS_LOOKED_FOR 4

// Writes the file if the process that was waited for is a rank whose ring is still there. Keeps errno.
static inline void note_wait_status(const char *directory, pid_t pid, int status) {
  const int error = errno;
  char path[PATH_MAX], text[48];
  int is_rank = 0;
  for (int number = 0; !is_rank && number < EIDOLON_RINGS_LOOKED_FOR; ++number) {
    snprintf(path, sizeof path, "%s/ranks/%d-%d.ring", directory, (int)pid, number);
    is_rank = access(path, F_OK) == 0;
  }
  if (is_rank) {
    snprintf(path, sizeof path, "%s/ranks/%d.status", directory, (int)pid);
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(text, sizeof text, "%d %lld\n", status, now.tv_sec * 1000000000LL + now.tv_nsec);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd >= 0) {
      const ssize_t written = write(fd, text, strlen(text));
      (void)written; // the agent then says no more than that the rank died
      close(fd);
    }
  }
  errno = error;
}
