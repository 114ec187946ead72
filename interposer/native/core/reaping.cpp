// Notes how ranks ended that this process was the parent of (wait_status.h).
//
// libc's functions that fetch a child's wait status are interposed; they do what they always do. Python's os,
// subprocess and multiprocessing modules and the shells call these.
#include <dlfcn.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>

#include "internal.h"
#include "wait_status.h"

namespace eidolon {
namespace {

pid_t noted(pid_t pid, const int *status) {
  if (pid > 0 && (WIFEXITED(*status) || WIFSIGNALED(*status)))
    if (const char *directory = getenv("EIDOLON_DIR"); directory != nullptr && *directory != 0)
      note_wait_status(directory, pid, *status);
  return pid;
}

// The wait status that the fields of a siginfo_t stand for.
int status_of(const siginfo_t &info) {
  if (info.si_code == CLD_EXITED)
    return (info.si_status & 0xff) << 8;
  return info.si_status | (info.si_code == CLD_DUMPED ? 0x80 : 0);
}

bool has_ended(const siginfo_t &info) {
  return info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED;
}

using Wait4 = pid_t (*)(pid_t, int *, int, struct rusage *);
Wait4 real_wait4() {
  static const auto real = reinterpret_cast<Wait4>(dlsym(RTLD_NEXT, "wait4"));
  return real;
}

using Waitid = int (*)(idtype_t, id_t, siginfo_t *, int);
Waitid real_waitid() {
  static const auto real = reinterpret_cast<Waitid>(dlsym(RTLD_NEXT, "waitid"));
  return real;
}

__attribute__((constructor)) void find_real_functions() { // dlsym may not be called in a signal handler
  real_wait4();
  real_waitid();
}

} // namespace
} // namespace eidolon

extern "C" {

EID_API pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage) {
  int own = 0;
  int *filled = status != nullptr ? status : &own;
  return eidolon::noted(eidolon::real_wait4()(pid, filled, options, usage), filled);
}

EID_API pid_t waitpid(pid_t pid, int *status, int options) { return wait4(pid, status, options, nullptr); }

EID_API pid_t wait3(int *status, int options, struct rusage *usage) { return wait4(-1, status, options, usage); }

EID_API pid_t wait(int *status) { return wait4(-1, status, 0, nullptr); }

EID_API int waitid(idtype_t kind, id_t id, siginfo_t *info, int options) {
  siginfo_t own{};
  siginfo_t *filled = info != nullptr ? info : &own;
  const int result = eidolon::real_waitid()(kind, id, filled, options);
  if (result == 0 && filled->si_pid > 0 && eidolon::has_ended(*filled)) {
    const int status = eidolon::status_of(*filled);
    eidolon::noted(filled->si_pid, &status);
  }
  return result;
}

} // extern "C"
