// launch --dir DIR [--wait SECONDS [--resolve NAME]...] [--scratch DIR] [--lib DIR] [--hook DIR]
//        [--ranks N [--first-rank K]] [--grace SECONDS] -- COMMAND...
//
// Runs COMMAND with Eidolon injected: our libraries, the Python hook and programs are put in front of what LD_PRELOAD,
// LD_LIBRARY_PATH, PYTHONPATH and PATH already hold, and EIDOLON_DIR names the directory shared with the agent. The
// command itself and everything it starts are otherwise untouched. Which libraries depends on the image (image.c),
// unless --lib names them. Beside this program's directory lie lib/ (CUDA 13), libN/ (CUDA N), hook/, path/ and
// probe.py.
//
// In a pod this is the container's first process, so it does what an init does. It forwards signals, reaps orphans, and
// ends with the command's exit code (128 + signal if it was killed). What the command leaves running ends with it, as
// in any container. Outside a container the launcher is a child subreaper, so that the same holds there.
//
// With --wait it starts COMMAND only once all emulated servers are there and NAME resolves (gate.c). With --scratch the
// command gets a HOME, a TMPDIR and caches in that directory, and a USER, wherever it has none that it can use.
//
// With --ranks it starts COMMAND N times, with LOCAL_RANK 0..N-1 and RANK K..K+N-1 (the launcher `plain` of a spec).
// The first of them that fails decides the exit code; the others then get SIGTERM, and SIGKILL after the grace (10 s).
//
// The agent ends a run by DIR/stop, which holds "CODE REASON\n". Ranks then end by themselves at their next call, and
// what has not ended after the grace gets SIGTERM, then SIGKILL. With code 0 (the steps that were asked for are done)
// the launcher ends with 0, however the command ended.
//
// The launcher writes DIR/exit last. It holds "CODE REASON\n", and comes by rename, so that a reader sees all of it or
// nothing. The agent takes it as the end of the server. A reason that begins with "interrupted by" says that a signal
// from outside ended the command.
//
// The launcher's own failures are 125 (it could not start), 126 (COMMAND cannot be run) and 127 (COMMAND not found). It
// is linked statically, because it runs in the user's image, whatever C library that has.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"
#include "image.h"
#include "shared.h"
#include "wait_status.h"

enum { kMaxRanks = 1024, kMaxNames = 8, kGraceSeconds = 10, kKillSeconds = 5 };
static int grace_s = kGraceSeconds;

static const int kForwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};

// The directory above that of this program.
static void own_root(char out[PATH_MAX]) {
  ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
  if (length < 0)
    fail(kCannotStart, "cannot find my own path: %s", strerror(errno));
  out[length] = 0;
  for (int levels = 0; levels < 2; levels++) { // drop the file's name, then its directory
    char *slash = strrchr(out, '/');
    if (slash)
      *slash = 0;
  }
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

static void inject(const char *root, const char *lib, const char *hook) {
  char core[PATH_MAX + 32];
  snprintf(core, sizeof core, "%s/libeidolon.so", lib);
  if (access(core, R_OK) != 0)
    fail(kCannotStart, "%s: %s", core, strerror(errno));
  if (strpbrk(core, ": ;\t")) // the dynamic loader would take it for several
    fail(kCannotStart, "%s: a library path with ':', ';' or a space cannot be preloaded", core);
  prepend("LD_PRELOAD", core);
  prepend("LD_LIBRARY_PATH", lib);
  prepend("PYTHONPATH", hook);
  char programs[PATH_MAX + 8]; // nvidia-smi
  snprintf(programs, sizeof programs, "%s/path", root);
  if (access(programs, X_OK) == 0 && getenv("PATH")) // without PATH the C library's default holds
    prepend("PATH", programs);
  if (setenv("EIDOLON_DIR", shared_directory(), 1) != 0)
    fail(kCannotStart, "out of memory");
}

static void set_number(const char *variable, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  if (setenv(variable, text, 1) != 0)
    fail(kCannotStart, "out of memory");
}

// Starts the command and returns its pid. If it cannot be executed, ends the launcher with one clear line.
static pid_t start(char **command, const sigset_t *signals_before) {
  int report[2]; // closed by a successful exec; otherwise it carries errno
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

// What is known about the end of the command.
struct ending {
  int status;       // the wait status of the first of its processes that failed, else 0
  int which;        // the number of that process among them
  int interrupted;  // the signal from outside that asked for an end, or 0
  int stopped;      // the run was over ...
  int run_failed;   // ... because it had failed
  char reason[512]; // why it was over
};

static int asks_for_end(int number) {
  return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
}

// Reaps the processes that have ended. Returns how many of them are the command's, and notes the first that failed.
static int reap(pid_t *children, int count, struct ending *ending) {
  int ended = 0, status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    note_wait_status(shared_directory(), pid, status);
    for (int i = 0; i < count; i++) {
      if (children[i] != pid)
        continue;
      children[i] = 0;
      ended++;
      if (ending->status == 0) {
        ending->status = status;
        ending->which = i;
      }
    }
  }
  return ended;
}

// Forwards signals and reaps until all `count` processes of the command have ended (their pids become 0).
static void supervise(pid_t *children, int count, const sigset_t *signals, struct ending *ending) {
  const struct timespec pause = {0, 200 * 1000 * 1000};
  double term_at = 0, kill_at = 0; // 0: not decided
  for (int running = count; running > 0;) {
    siginfo_t info;
    int number = sigtimedwait(signals, &info, &pause);
    if (number == SIGCHLD) {
      int well = ending->status == 0;
      running -= reap(children, count, ending);
      if (well && ending->status != 0) {
        signal_all(children, count, SIGTERM);
        kill_at = kill_at ? kill_at : now_s() + grace_s;
      }
    } else if (number > 0) {
      if (asks_for_end(number) && !ending->interrupted)
        ending->interrupted = number;
      if (info.si_code != SI_KERNEL) // the terminal (SI_KERNEL) has sent it to the whole group already
        signal_all(children, count, number);
    }
    if (!ending->stopped && told_to_stop(&ending->run_failed, ending->reason)) {
      ending->stopped = 1;
      term_at = now_s() + grace_s;
    }
    if (term_at != 0 && now_s() >= term_at) {
      term_at = 0;
      signal_all(children, count, SIGTERM);
      kill_at = kill_at ? kill_at : now_s() + kKillSeconds;
    }
    if (kill_at != 0 && now_s() >= kill_at)
      signal_all(children, count, SIGKILL);
  }
}

// Ends what the command left running. These are our children, which include the orphans of its process tree.
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

// Returns the number that an option gives, or `otherwise` if the option was not given.
static int number_of(const char *text, const char *option, int lowest, int highest, int otherwise) {
  if (!text)
    return otherwise;
  char *end;
  long value = strtol(text, &end, 10);
  if (end == text || *end || value < lowest || value > highest)
    fail(kCannotStart, "%s %s: %d to %d is allowed", option, text, lowest, highest);
  return (int)value;
}

static int usable_directory(const char *path) {
  struct stat info;
  return path && *path && stat(path, &info) == 0 && S_ISDIR(info.st_mode) && access(path, W_OK) == 0;
}

static void set_directory(const char *variable, const char *scratch, const char *name) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/%s", scratch, name);
  if (mkdir(path, 0700) != 0 && errno != EEXIST)
    fail(kCannotStart, "cannot make %s: %s", path, strerror(errno));
  if (setenv(variable, path, 1) != 0)
    fail(kCannotStart, "out of memory");
}

// Gives a user that the image does not know a home and places for caches, wherever it has none or cannot write to it.
static void settle(const char *scratch) {
  static const char *const kCaches[][2] = {
      {"TMPDIR", "tmp"}, {"TORCHINDUCTOR_CACHE_DIR", "torchinductor"}, {"TRITON_CACHE_DIR", "triton"}};
  // without it torch asks for a password entry that is not there
  if (!getenv("USER") && setenv("USER", "eidolon", 1) != 0)
    fail(kCannotStart, "out of memory");
  if (!usable_directory(getenv("HOME")))
    set_directory("HOME", scratch, "home");
  for (size_t i = 0; i < sizeof kCaches / sizeof *kCaches; i++) {
    if (!getenv(kCaches[i][0]))
      set_directory(kCaches[i][0], scratch, kCaches[i][1]);
  }
}

struct options {
  const char *dir, *lib, *hook, *ranks, *first_rank, *wait, *scratch, *grace;
  char *names[kMaxNames];
  int name_count;
};

// Fills in the options, and returns the index of the first word of the command.
static int parse(int argc, char **argv, struct options *o) {
  static const char kUsage[] =
      "usage: launch --dir DIR [--wait SECONDS [--resolve NAME]...] [--scratch DIR] [--lib DIR] "
      "[--hook DIR] [--ranks N [--first-rank K]] [--grace SECONDS] -- COMMAND...";
  const struct {
    const char *name, **value;
  } known[] = {{"--dir", &o->dir},
               {"--lib", &o->lib},
               {"--hook", &o->hook},
               {"--ranks", &o->ranks},
               {"--first-rank", &o->first_rank},
               {"--wait", &o->wait},
               {"--scratch", &o->scratch},
               {"--grace", &o->grace}};
  int at = 1;
  for (; at < argc && strcmp(argv[at], "--") != 0; at += 2) {
    int found = 0;
    if (at + 1 < argc && strcmp(argv[at], "--resolve") == 0 && o->name_count < kMaxNames) {
      o->names[o->name_count++] = argv[at + 1];
      found = 1;
    }
    for (size_t i = 0; !found && at + 1 < argc && i < sizeof known / sizeof *known; i++) {
      if (strcmp(argv[at], known[i].name) == 0) {
        *known[i].value = argv[at + 1];
        found = 1;
      }
    }
    if (!found)
      fail(kCannotStart, "unknown or incomplete option %s", argv[at]);
  }
  if (!o->dir || at + 1 >= argc) {
    fprintf(stderr, "%s\n", kUsage);
    exit(kCannotStart);
  }
  return at + 1;
}

// Decides the exit code and the reason of a run whose command has ended. `first_rank` is the number of its first
// process as a rank, or -1 if its processes are not ranks.
static int conclude(const struct ending *ending, int first_rank) {
  char how[64] = "completed", who[32] = "", reason[700];
  int code = WEXITSTATUS(ending->status);
  if (first_rank >= 0)
    snprintf(who, sizeof who, "rank %d ", first_rank + ending->which);
  if (WIFSIGNALED(ending->status)) {
    const char *name = sigabbrev_np(WTERMSIG(ending->status));
    code = 128 + WTERMSIG(ending->status);
    snprintf(how, sizeof how, "%skilled by signal %d (SIG%s)", who, WTERMSIG(ending->status), name ? name : "?");
  } else if (code) {
    snprintf(how, sizeof how, "failed");
  }
  if (ending->stopped && !ending->run_failed) {
    code = 0;
    snprintf(reason, sizeof reason, "stopped: %s", ending->reason);
  } else if (ending->stopped) {
    snprintf(reason, sizeof reason, "ended with the run (%s): %s", how, ending->reason);
  } else if (ending->interrupted) {
    snprintf(reason, sizeof reason, "interrupted by SIG%s: %s", sigabbrev_np(ending->interrupted), how);
  } else {
    snprintf(reason, sizeof reason, "%s", how);
  }
  write_exit(code, reason);
  return code;
}

int main(int argc, char **argv) {
  struct options o = {0};
  char **command = argv + parse(argc, argv, &o);
  char shared[PATH_MAX], root[PATH_MAX], lib[PATH_MAX], hook[PATH_MAX], scratch[PATH_MAX];
  directory(shared, o.dir, "shared");
  share(shared);
  own_root(root);
  if (o.lib)
    directory(lib, o.lib, "library");
  char default_hook[PATH_MAX + 8];
  snprintf(default_hook, sizeof default_hook, "%s/hook", root);
  directory(hook, o.hook ? o.hook : default_hook, "hook");
  if (o.scratch)
    directory(scratch, o.scratch, "scratch");
  int ranks = number_of(o.ranks, "--ranks", 1, kMaxRanks, 0);
  int first = number_of(o.first_rank, "--first-rank", 0, INT_MAX - kMaxRanks, 0);
  grace_s = number_of(o.grace, "--grace", 0, 3600, kGraceSeconds);
  int wait = number_of(o.wait, "--wait", 1, 7 * 86400, 0);

  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (size_t i = 0; i < sizeof kForwarded / sizeof *kForwarded; i++)
    sigaddset(&signals, kForwarded[i]);
  sigprocmask(SIG_BLOCK, &signals, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  if (!o.lib)
    choose_libraries(lib, root, command);
  check_c_library(lib, command[0]);
  if (o.scratch)
    settle(scratch);
  if (wait)
    wait_at_gate(wait, o.names, o.name_count, &signals);
  inject(root, lib, hook);

  static pid_t children[kMaxRanks];
  int count = ranks ? ranks : 1;
  for (int i = 0; i < count; i++) {
    if (ranks) {
      set_number("LOCAL_RANK", i);
      set_number("RANK", first + i);
    }
    children[i] = start(command, &before);
  }
  static struct ending ending;
  supervise(children, count, &signals, &ending);
  end_rest();
  return conclude(&ending, ranks ? first : -1);
}
