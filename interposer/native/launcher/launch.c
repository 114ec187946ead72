// launch --dir DIR [--lib DIR] [--hook DIR] [--ranks N [--first-rank K]] -- COMMAND...
//
// Runs COMMAND with Eidolon injected: our libraries and the Python hook are put in front of what LD_PRELOAD,
// LD_LIBRARY_PATH and PYTHONPATH already hold, and EIDOLON_DIR names the directory shared with the agent. The command
// itself and everything it starts are otherwise untouched.
//
// In a pod this is the container's first process, so it does what an init does: it forwards signals, reaps orphans and
// ends with the command's exit code (128 + signal if it was killed). What the command leaves running ends with it, as
// it does in a container; outside one the launcher is a child subreaper, so that the two agree.
//
// With --ranks it starts COMMAND N times, with LOCAL_RANK 0..N-1 and RANK K..K+N-1 (the launcher `plain` of a spec).
// The first of them that fails decides the exit code; the others then get SIGTERM, and SIGKILL 10 s later.
//
// DIR/exit is the last thing written: "CODE REASON\n", by rename, so that a reader sees all of it or nothing. The agent
// takes it as the end of the server.
//
// The launcher's own failures: 125 (it could not start), 126 (COMMAND cannot be run), 127 (COMMAND not found).
// Linked statically: it runs in the user's image, whatever C library that has.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kCannotStart = 125, kCannotRun = 126, kNotFound = 127 };
enum { kMaxRanks = 1024, kGraceSeconds = 10 };

static const int kForwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};

static char shared_dir[PATH_MAX]; // empty until --dir is known to exist

static void write_exit(int code, const char *reason) {
  if (!shared_dir[0])
    return;
  char temporary[PATH_MAX + 16], final[PATH_MAX + 16];
  snprintf(temporary, sizeof temporary, "%s/.exit.tmp", shared_dir);
  snprintf(final, sizeof final, "%s/exit", shared_dir);
  FILE *file = fopen(temporary, "we");
  if (!file || fprintf(file, "%d %s\n", code, reason) < 0 || fclose(file) != 0 || rename(temporary, final) != 0)
    fprintf(stderr, "eidolon launch: cannot write %s: %s\n", final, strerror(errno));
}

// One line to stderr, the same to DIR/exit, and the end.
__attribute__((noreturn, format(printf, 2, 3))) static void fail(int code, const char *format, ...) {
  char reason[PATH_MAX + 256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  fprintf(stderr, "eidolon launch: %s\n", reason);
  write_exit(code, reason);
  exit(code);
}

// Where `name` lies beside the directory of this program.
static void beside(char *out, const char *name) {
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length < 0)
    fail(kCannotStart, "cannot find my own path: %s", strerror(errno));
  self[length] = 0;
  for (int levels = 0; levels < 2; levels++) { // drop the file's name, then its directory
    char *slash = strrchr(self, '/');
    if (slash)
      *slash = 0;
  }
  if (snprintf(out, PATH_MAX, "%s/%s", self, name) >= PATH_MAX)
    fail(kCannotStart, "path too long: %s/%s", self, name);
}

static void directory(char *out, const char *path, const char *what) {
  struct stat info;
  if (!realpath(path, out) || stat(out, &info) != 0)
    fail(kCannotStart, "%s directory %s: %s", what, path, strerror(errno));
  if (!S_ISDIR(info.st_mode))
    fail(kCannotStart, "%s directory %s: not a directory", what, path);
}

static void prepend(const char *variable, const char *value) {
  const char *present = getenv(variable);
  char *joined = NULL;
  int length = present && *present ? asprintf(&joined, "%s:%s", value, present) : asprintf(&joined, "%s", value);
  if (length < 0 || setenv(variable, joined, 1) != 0)
    fail(kCannotStart, "out of memory");
  free(joined);
}

static void inject(const char *lib, const char *hook) {
  char core[PATH_MAX + 32];
  snprintf(core, sizeof core, "%s/libeidolon.so", lib);
  if (access(core, R_OK) != 0)
    fail(kCannotStart, "%s: %s", core, strerror(errno));
  if (strpbrk(core, ": ;\t")) // the dynamic loader would take it for several
    fail(kCannotStart, "%s: a library path with ':', ';' or a space cannot be preloaded", core);
  prepend("LD_PRELOAD", core);
  prepend("LD_LIBRARY_PATH", lib);
  prepend("PYTHONPATH", hook);
  if (setenv("EIDOLON_DIR", shared_dir, 1) != 0)
    fail(kCannotStart, "out of memory");
}

static void set_number(const char *variable, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  if (setenv(variable, text, 1) != 0)
    fail(kCannotStart, "out of memory");
}

// Starts the command; returns its pid, or ends with one clear line if it cannot be executed.
static pid_t start(char **command, const sigset_t *signals_before) {
  int report[2]; // closed by a successful exec, else carries errno
  if (pipe2(report, O_CLOEXEC) != 0)
    fail(kCannotStart, "pipe: %s", strerror(errno));
  pid_t self = getpid();
  pid_t child = fork();
  if (child < 0)
    fail(kCannotStart, "fork: %s", strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM); // do not outlive a launcher that was killed
    if (getppid() != self)
      _exit(kCannotStart);
    sigprocmask(SIG_SETMASK, signals_before, NULL);
    execvp(command[0], command);
    int reason = errno;
    ssize_t ignored = write(report[1], &reason, sizeof reason);
    (void)ignored;
    _exit(kCannotRun);
  }
  close(report[1]);
  int reason = 0;
  ssize_t got;
  do
    got = read(report[0], &reason, sizeof reason);
  while (got < 0 && errno == EINTR);
  close(report[0]);
  if (got == (ssize_t)sizeof reason) {
    waitpid(child, NULL, 0);
    if (reason == ENOENT)
      fail(kNotFound, "command not found: %s", command[0]);
    fail(kCannotRun, "cannot run %s: %s", command[0], strerror(reason));
  }
  return child;
}

static void signal_all(const pid_t *children, int count, int number) {
  for (int i = 0; i < count; i++) {
    if (children[i])
      kill(children[i], number);
  }
}

// Forwards signals and reaps until all `count` processes of the command have ended (their pids become 0). Returns the
// wait status of the first that failed, else 0.
static int supervise(pid_t *children, int count, const sigset_t *signals) {
  int running = count, result = 0;
  while (running > 0) {
    siginfo_t info;
    int number = sigwaitinfo(signals, &info);
    if (number == SIGCHLD) {
      int status;
      pid_t pid;
      while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int i = 0; i < count; i++) {
          if (children[i] != pid)
            continue;
          children[i] = 0;
          running--;
          if (status == 0 || result != 0)
            continue;
          result = status;
          signal_all(children, count, SIGTERM);
          alarm(kGraceSeconds);
        }
      }
    } else if (number == SIGALRM) {
      signal_all(children, count, SIGKILL);
    } else if (number > 0 && info.si_code != SI_KERNEL) {
      signal_all(children, count, number); // one from the terminal (SI_KERNEL) went to the whole group already
    }
  }
  return result;
}

// Ends what the command left running: our children, which include the orphans of its process tree.
static void end_rest(void) {
  for (;;) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    int pid, found = 0;
    while (file && fscanf(file, "%d", &pid) == 1) {
      kill(pid, SIGKILL);
      found++;
    }
    if (file)
      fclose(file);
    if (!found)
      return;
    for (int i = 0; i < found; i++) // their own children become ours as they end
      waitpid(-1, NULL, 0);
  }
}

// A number given as an option; `otherwise` if it was not given.
static int number_of(const char *text, const char *option, int lowest, int highest, int otherwise) {
  if (!text)
    return otherwise;
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || *end || value < lowest || value > highest)
    fail(kCannotStart, "%s %s: %d to %d is allowed", option, text, lowest, highest);
  return (int)value;
}

int main(int argc, char **argv) {
  const char *dir = NULL, *lib = NULL, *hook = NULL, *ranks_text = NULL, *first_text = NULL;
  int at = 1;
  for (; at < argc && strcmp(argv[at], "--") != 0; at += 2) {
    const char **option = strcmp(argv[at], "--dir") == 0          ? &dir
                          : strcmp(argv[at], "--lib") == 0        ? &lib
                          : strcmp(argv[at], "--hook") == 0       ? &hook
                          : strcmp(argv[at], "--ranks") == 0      ? &ranks_text
                          : strcmp(argv[at], "--first-rank") == 0 ? &first_text
                                                                  : NULL;
    if (!option || at + 1 >= argc)
      fail(kCannotStart, "unknown or incomplete option %s", argv[at]);
    *option = argv[at + 1];
  }
  if (!dir || at + 1 >= argc) {
    fprintf(stderr, "usage: launch --dir DIR [--lib DIR] [--hook DIR] [--ranks N [--first-rank K]] -- COMMAND...\n");
    return kCannotStart;
  }
  char found[PATH_MAX], lib_dir[PATH_MAX], hook_dir[PATH_MAX];
  directory(found, dir, "shared");
  memcpy(shared_dir, found, sizeof found);
  char default_lib[PATH_MAX], default_hook[PATH_MAX];
  beside(default_lib, "lib");
  beside(default_hook, "hook");
  directory(lib_dir, lib ? lib : default_lib, "library");
  directory(hook_dir, hook ? hook : default_hook, "hook");
  int ranks = number_of(ranks_text, "--ranks", 1, kMaxRanks, 0);
  int first = number_of(first_text, "--first-rank", 0, INT_MAX - kMaxRanks, 0);
  inject(lib_dir, hook_dir);

  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGALRM);
  for (size_t i = 0; i < sizeof kForwarded / sizeof *kForwarded; i++)
    sigaddset(&signals, kForwarded[i]);
  sigprocmask(SIG_BLOCK, &signals, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  static pid_t children[kMaxRanks];
  int count = ranks ? ranks : 1;
  for (int i = 0; i < count; i++) {
    if (ranks) {
      set_number("LOCAL_RANK", i);
      set_number("RANK", first + i);
    }
    children[i] = start(argv + at + 1, &before);
  }
  int status = supervise(children, count, &signals);
  end_rest();
  char reason[64];
  int code;
  if (WIFSIGNALED(status)) {
    const char *name = sigabbrev_np(WTERMSIG(status));
    code = 128 + WTERMSIG(status);
    snprintf(reason, sizeof reason, "killed by signal %d (SIG%s)", WTERMSIG(status), name ? name : "?");
  } else {
    code = WEXITSTATUS(status);
    snprintf(reason, sizeof reason, code ? "failed" : "completed");
  }
  write_exit(code, reason);
  return code;
}
