// Takes the place of NVIDIA's libraries.
//
// libeidolon.so alone is preloaded. In a Python process of a simulation its constructor loads our libraries: the
// dynamic linker matches a library that is needed later by the SONAME of one that is loaded already, whatever RPATH the
// needing object carries (torch's is a DT_RPATH, which LD_LIBRARY_PATH cannot override). Other programs find ours
// through LD_LIBRARY_PATH. Python packages also open NVIDIA's libraries by absolute path: dlopen is interposed to
// redirect those.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "internal.h"
#include "sonames.h"

namespace eidolon {
namespace {

char own_directory[512];

bool wanted() {
  static const bool value = [] {
    const char *dir = getenv("EIDOLON_DIR");
    return dir != nullptr && *dir != 0;
  }();
  return value;
}

void find_own_directory() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(&find_own_directory), &info) == 0 || info.dli_fname == nullptr)
    return;
  snprintf(own_directory, sizeof own_directory, "%s", info.dli_fname);
  if (char *slash = strrchr(own_directory, '/'))
    *slash = 0;
}

bool python_process() {
  char exe[512];
  ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n <= 0)
    return false;
  exe[n] = 0;
  const char *name = strrchr(exe, '/');
  return strncmp(name != nullptr ? name + 1 : exe, "python", 6) == 0;
}

__attribute__((constructor)) void load_libraries() {
  if (!wanted())
    return;
  find_own_directory();
  if (!python_process())
    return;
  char path[640];
  for (const char *soname : kSonames) {
    snprintf(path, sizeof path, "%s/%s", own_directory, soname);
    if (access(path, R_OK) == 0 && dlopen(path, RTLD_NOW | RTLD_GLOBAL) == nullptr)
      fatal("cannot load %s: %s", path, dlerror());
  }
}

// Our library in place of `file`, or `file` itself.
const char *redirect(const char *file) {
  if (file == nullptr || !wanted() || own_directory[0] == 0)
    return file;
  const char *slash = strrchr(file, '/');
  const char *name = slash != nullptr ? slash + 1 : file;
  for (const char *soname : kSonames) {
    if (strcmp(name, soname) != 0)
      continue;
    thread_local char path[640];
    snprintf(path, sizeof path, "%s/%s", own_directory, soname);
    return access(path, R_OK) == 0 ? path : file;
  }
  return file;
}

using Dlopen = void *(*)(const char *, int);

} // namespace
} // namespace eidolon

// The real dlopen finds its caller by return address (RPATH lookup), so this must end in a jump, not a call: it is
// compiled with optimisation even in debug builds.
extern "C" EID_API __attribute__((optimize("O2"))) void *dlopen(const char *file, int mode) {
  static const auto real = reinterpret_cast<eidolon::Dlopen>(dlsym(RTLD_NEXT, "dlopen"));
  return real(eidolon::redirect(file), mode);
}
