// A budget for the host memory of all ranks on this machine.
//
// Real hosts of a cluster have terabytes; the machine that emulates them has not, yet each rank may build its whole
// model on the host before it moves or shards it. PyTorch takes host memory by posix_memalign, which is interposed
// here. A large allocation waits, in real time and without advancing any clock, while the ranks together would be over
// the budget: half of it is for all, the rest for the rank that holds most, so that one after the other builds its
// model, moves it to the device and frees it. What counts is the private memory that the kernel says each process has.
//
// Where that does not change for `patience_ms` (all wait, or the one that does not waits for the others), the
// allocation goes ahead with all of its pages mapped onto the same few: its bytes are then not what was written, which
// the run's summary says. Emulated devices do not know the bytes of large copies anyway. Who waited in vain waits half
// as long the next time, since most likely nothing has changed: a model of a hundred large tensors is built in a
// minute, not in half an hour.
//
// Settings of server.conf: host_memory.bytes, the budget; host_memory.dir, a directory that all ranks of the run share,
// in which each process that allocates much puts a file named by its process id; host_memory.patience_ms.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "internal.h"

namespace eidolon {
namespace {

constexpr size_t kLarge = size_t{32} << 20; // from here on glibc always maps: its own pages, given back when freed
constexpr size_t kFew = size_t{16} << 20;   // what shared allocations have in place of pages of their own
constexpr int64_t kPollMs = 20;
constexpr int64_t kLeastPatienceMs = 100; // for who waited in vain again and again

struct Budget {
  int64_t bytes = 0, patience_ms = 0;
  const char *directory = nullptr;
};

const Budget &budget() {
  static const Budget all{.bytes = setting_number("host_memory.bytes"),
                          .patience_ms = setting_number("host_memory.patience_ms"),
                          .directory = setting("host_memory.dir")};
  return all;
}

// Resident pages that belong to no file, in bytes; 0 if the process is gone.
size_t private_bytes(pid_t pid) {
  char path[64], text[128];
  snprintf(path, sizeof path, "/proc/%d/statm", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  size_t resident = 0, shared = 0;
  text[got > 0 ? got : 0] = 0;
  if (sscanf(text, "%*u %zu %zu", &resident, &shared) != 2 || shared > resident)
    return 0;
  return (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

struct Use {
  size_t all = 0, mine = 0, most = 0; // `most`: of any other process
};

Use use_now() {
  Use use;
  DIR *directory = opendir(budget().directory);
  if (directory == nullptr)
    return use;
  while (const dirent *entry = readdir(directory)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
      continue;
    const pid_t pid = atoi(entry->d_name);
    const size_t bytes = private_bytes(pid);
    use.all += bytes;
    if (pid == getpid())
      use.mine = bytes;
    else
      use.most = bytes > use.most ? bytes : use.most;
  }
  closedir(directory);
  return use;
}

void join() {
  static thread_local pid_t joined = 0; // a forked child joins again
  if (joined == getpid())
    return;
  joined = getpid();
  char path[640];
  snprintf(path, sizeof path, "%s/%d", budget().directory, joined);
  const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
  if (fd >= 0)
    close(fd);
}

// Waits until there is room for `bytes`; false if nobody makes any.
bool wait_for_room(size_t bytes) {
  static std::atomic<int64_t> patience_ms{budget().patience_ms};
  const InsideCall inside; // a rank that waits here is not idle: its clock stands still
  int64_t quiet_ms = 0;
  size_t least = SIZE_MAX, greatest = 0;
  while (true) {
    const Use use = use_now();
    const auto whole = static_cast<size_t>(budget().bytes), limit = use.mine >= use.most ? whole : whole / 2;
    if (use.all + bytes <= limit) {
      if (quiet_ms != 0) // somebody made room after all
        patience_ms = budget().patience_ms;
      return true;
    }
    if (use.all < least || use.all > greatest) { // somebody allocates or frees
      least = use.all < least ? use.all : least;
      greatest = use.all > greatest ? use.all : greatest;
      quiet_ms = 0;
    }
    if (quiet_ms >= patience_ms) {
      patience_ms = std::max(std::min(kLeastPatienceMs, budget().patience_ms), patience_ms / 2);
      return false;
    }
    usleep(kPollMs * 1000);
    quiet_ms += kPollMs;
  }
}

using PosixMemalign = int (*)(void **, size_t, size_t);

PosixMemalign real_posix_memalign() {
  static const auto real = reinterpret_cast<PosixMemalign>(dlsym(RTLD_NEXT, "posix_memalign"));
  return real;
}

// Only glibc's own allocator is known well enough to change the pages under it.
bool from_glibc() {
  static const bool value = [] {
    Dl_info info;
    return dladdr(reinterpret_cast<void *>(real_posix_memalign()), &info) != 0 && info.dli_fname != nullptr &&
           strstr(info.dli_fname, "/libc.so.6") != nullptr;
  }();
  return value;
}

// Maps whole pages inside a fresh allocation onto the same few; `free` unmaps them with the rest.
size_t share_pages(void *pointer, size_t bytes) {
  constexpr size_t kIsMapped = 2; // malloc/malloc.c: IS_MMAPPED, in the size before the block
  if (!from_glibc() || (static_cast<size_t *>(pointer)[-1] & kIsMapped) == 0)
    return 0;
  static const int few = [] {
    const int fd = memfd_create("eidolon-host-memory", MFD_CLOEXEC);
    return fd >= 0 && ftruncate(fd, kFew) == 0 ? fd : -1;
  }();
  if (few < 0)
    return 0;
  const uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t begin = (at + 4095) & ~uintptr_t{4095}, end = (at + bytes) & ~uintptr_t{4095};
  size_t done = 0;
  for (uintptr_t from = begin; from < end; from += kFew) {
    const size_t length = end - from < kFew ? end - from : kFew;
    if (mmap(reinterpret_cast<void *>(from), length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, few, 0) ==
        MAP_FAILED)
      break;
    done += length;
  }
  return done;
}

void tell_of_shared(size_t bytes) {
  static std::atomic<int64_t> total{0};
  const int64_t now = total.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes);
  unmodelled("host-memory", "allocation over --host-memory: its bytes are not what was written");
  warn_once("host memory: over the budget of %zu MiB and no rank frees any: %zu MiB share the same few pages now, and "
            "more may follow (--host-memory)",
            static_cast<size_t>(budget().bytes) >> 20, static_cast<size_t>(now) >> 20);
}

} // namespace

int budgeted_posix_memalign(void **out, size_t alignment, size_t bytes) {
  const bool large = bytes >= kLarge && config().active && budget().bytes != 0 && budget().directory != nullptr;
  bool room = true;
  if (large) {
    const int before = errno;
    join();
    room = wait_for_room(bytes);
    errno = before;
  }
  const int status = real_posix_memalign()(out, alignment, bytes);
  if (!room && status == 0)
    if (const size_t shared = share_pages(*out, bytes); shared != 0)
      tell_of_shared(shared);
  return status;
}

} // namespace eidolon

extern "C" EID_API int posix_memalign(void **out, size_t alignment, size_t bytes) {
  return eidolon::budgeted_posix_memalign(out, alignment, bytes);
}
