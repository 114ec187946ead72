// This process as a rank: when it becomes one, which of its threads advance its clock, how it ends.
//
// A process becomes a rank when it creates a CUDA context. A thread is foreground (law 3) if it is the main thread or
// once it launched, copied, communicated or synchronised; the others (NCCL's watchdog, monitors, pin-memory threads)
// only read the clock. After fork() the child is no rank and cannot become one: CUDA's own rule.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "futex.h"
#include "internal.h"

namespace eidolon {
namespace {

std::atomic<bool> rank{false}, child_of_rank{false};
std::atomic<uint64_t> contexts{0}; // bit per device
static_assert(kMaxDevices <= 64);
std::mutex creation;
std::vector<uint32_t> &early_unmodelled = *new std::vector<uint32_t>;

std::mutex thread_mutex;
bool thread_taken[kMaxThreads];
std::atomic<int> foreground_tids[kMaxThreads];

struct ThreadHolder {
  Thread thread;
  ~ThreadHolder() {
    if (thread.index < 0)
      return;
    std::lock_guard hold(thread_mutex);
    foreground_tids[thread.index] = 0;
    thread_taken[thread.index] = false;
  }
};

thread_local int device_of_thread = 0;
thread_local uint32_t operator_of_thread = 0;

void take_index(Thread &thread) {
  std::lock_guard hold(thread_mutex);
  for (int i = 0; i < kMaxThreads; ++i)
    if (!thread_taken[i]) {
      thread_taken[i] = true;
      thread.index = i;
      thread.main = syscall(SYS_gettid) == getpid();
      return;
    }
  fatal("more than %d threads of one process call CUDA at the same time", kMaxThreads);
}

bool advances_clock(Kind kind) {
  switch (kind) {
  case Kind::kKernel:
  case Kind::kCopy:
  case Kind::kSet:
  case Kind::kCollective:
  case Kind::kCallback:
  case Kind::kSyncStream:
  case Kind::kSyncEvent:
  case Kind::kSyncDevice:
  case Kind::kCommInit:
  case Kind::kGraphLaunch:
  case Kind::kMark:
    return true;
  default:
    return false;
  }
}

uint8_t flags_for(Thread &thread, const Event &event) {
  if (!thread.foreground && (thread.main || advances_clock(event.kind))) {
    thread.foreground = true;
    foreground_tids[thread.index] = static_cast<int>(syscall(SYS_gettid));
    take_interpreter_ns(); // before, imports for the most part, it had no clock
  }
  uint8_t flags = event.flags & (kGroupMore | kInGraph | kPayload);
  if (thread.foreground)
    flags |= kForeground;
  if (!thread.main)
    flags |= kAutograd;
  return flags;
}

// True if any other thread of the process is not asleep, or waits for a disk.
bool others_work() {
  DIR *tasks = opendir("/proc/self/task");
  bool found = false;
  const int own = static_cast<int>(syscall(SYS_gettid));
  while (const dirent *entry = tasks != nullptr && !found ? readdir(tasks) : nullptr)
    if (int tid = atoi(entry->d_name); tid != 0 && tid != own) {
      const char state = thread_state(tid);
      found = state == 'R' || state == 'D';
    }
  if (tasks != nullptr)
    closedir(tasks);
  return found;
}

// Law 4: a rank whose foreground threads all sleep outside our calls for 20 ms is idle; its next record resumes it.
// "Outside our calls" is seen from the ring: a thread inside one either writes records or waits for an answer.
//
// Foreground threads sleep too while they wait for another thread of their own process: for a lock that NCCL's watchdog
// holds while it asks us, for a worker that has no processor. Then the rank is at work; but as such threads hold
// nothing up for ever, until the process has used half a second of processor time so, which on a busy machine takes
// longer, or for three seconds.
std::atomic<int> inside{0};
std::atomic<int> inside_behind{0};       // the same of other threads than those in the foreground
std::atomic<uint64_t> foreground_seq{0}; // of their last record: others go on asking while these sleep
std::atomic<uint32_t> idle{0};           // futex word: 1 while it is idle, which its next record in the foreground ends

double processor_s() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void *idle_monitor(void *) {
  constexpr int kSampleMs = 5, kSamples = 4, kSamplesAtWork = 600;
  constexpr double kWorkS = 0.5;
  constexpr int64_t kRestUs = 60'000'000; // any long time: it is woken
  uint64_t last = 0, last_foreground = 0;
  double used_s = 0; // when it became quiet
  int quiet = 0, calm = 0;
  while (rank.load() && !child_of_rank.load()) {
    while (idle.load() != 0) {
      futex_wait(&idle, 1, kRestUs);
      quiet = calm = 0;
    }
    usleep(kSampleMs * 1000);
    const uint64_t now = ring_next_seq(), now_foreground = foreground_seq.load(std::memory_order_relaxed);
    const RingHeader *h = ring_header();
    bool full = h->space_wanted.load() != 0; // a writer waits for room, of records or definitions: not idle
    bool still = now_foreground == last_foreground && inside.load() == 0 && !full;
    bool at_work = now != last || inside_behind.load() != 0;
    for (int i = 0; still && i < kMaxThreads; ++i)
      if (int tid = foreground_tids[i].load(); tid != 0) {
        const char state = thread_state(tid);
        still = state == 0 || state == 'S' || state == 'D';
        at_work |= state == 'D';
      }
    last = now;
    last_foreground = now_foreground;
    if (!still || quiet == 0)
      used_s = processor_s();
    quiet = still ? quiet + 1 : 0;
    calm = still && !at_work ? calm + 1 : 0;
    if (calm == kSamples && others_work())
      calm = 0;
    const bool long_enough = quiet >= kSamplesAtWork || (quiet > kSamples && processor_s() - used_s >= kWorkS);
    if ((calm == kSamples || long_enough) && idle.exchange(1) == 0) {
      ring_header()->idle.store(1);
      last = ring_emit({.kind = Kind::kIdle}, 0, 0) + 1;
    }
  }
  return nullptr;
}

void resume_if_idle(uint8_t flags) {
  if ((flags & kForeground) != 0 && idle.load(std::memory_order_relaxed) != 0 && idle.exchange(0) != 0) {
    futex_wake(&idle);
    ring_header()->idle.store(0);
    ring_emit({.kind = Kind::kResume}, 0, 0);
  }
}

void at_exit() {
  if (!rank.load() || ring_header() == nullptr)
    return;
  emit({.kind = Kind::kExit});
  value_leave_all();
  release_accounts();
  ring_close();
}

void in_child() {
  if (!rank.load())
    return;
  child_of_rank = true;
  rank = false;
  ring_abandon_in_child();
}

} // namespace

char thread_state(int tid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0)
    return 0;
  text[got] = 0;
  const char *after_name = strrchr(text, ')');
  return after_name != nullptr && after_name[1] == ' ' ? after_name[2] : 'R';
}

Thread &this_thread() {
  thread_local ThreadHolder holder;
  if (holder.thread.index < 0)
    take_index(holder.thread);
  return holder.thread;
}

bool foreground_thread() {
  const Thread &thread = this_thread();
  return thread.foreground || thread.main;
}

InsideCall::InsideCall() { inside.fetch_add(1); }
InsideCall::~InsideCall() { inside.fetch_sub(1); }

bool is_rank() { return rank.load(std::memory_order_acquire); }

int current_device() { return device_of_thread; }
Status set_current_device(int device) {
  if (device < 0 || device >= device_count())
    return kInvalidDevice;
  device_of_thread = device;
  return kSuccess;
}

uint32_t current_operator() { return operator_of_thread; }
void set_operator(uint32_t sig) { operator_of_thread = sig; }

Status ensure_context(int device) {
  if (!config().active || device < 0 || device >= device_count())
    return config().active ? kInvalidDevice : kNotInitialized;
  const uint64_t bit = uint64_t{1} << device;
  if ((contexts.load(std::memory_order_acquire) & bit) != 0)
    return child_of_rank.load() ? kNotInitialized : kSuccess;
  if (child_of_rank.load())
    return kNotInitialized;
  std::lock_guard hold(creation);
  if ((contexts.load() & bit) != 0)
    return kSuccess;
  if (!rank.load()) {
    if (!config().null_core)
      ring_create();
    pthread_atfork(nullptr, nullptr, in_child);
    atexit(at_exit);
    rank.store(true, std::memory_order_release);
    if (!config().null_core) {
      pthread_t thread;
      if (pthread_create(&thread, nullptr, idle_monitor, nullptr) == 0)
        pthread_detach(thread);
    }
  }
  if (account(device, static_cast<int64_t>(config().gpu.context_bytes), "context") != kSuccess)
    return kOutOfMemory;
  contexts.fetch_or(bit, std::memory_order_release);
  for (uint32_t sig : early_unmodelled)
    emit({.kind = Kind::kUnmodelled, .sig = sig, .value = 1});
  early_unmodelled.clear();
  return kSuccess;
}

bool has_context(int device) { return device >= 0 && device < kMaxDevices && (contexts.load() >> device & 1) != 0; }

// What a thread's clock reads cost that were answered without the core.
static void pay_reads(Thread &thread, uint8_t flags) {
  if (thread.unpaid_ns == 0 || (flags & kForeground) == 0)
    return;
  const auto ns = static_cast<uint64_t>(std::exchange(thread.unpaid_ns, 0));
  ring_emit({.kind = Kind::kSleep, .value = ns}, flags & (kForeground | kAutograd), thread.index);
}

uint64_t emit(const Event &event) {
  if (!is_rank() || ring_header() == nullptr)
    return 0;
  Thread &thread = this_thread();
  uint8_t flags = flags_for(thread, event);
  resume_if_idle(flags);
  pay_reads(thread, flags);
  const uint64_t seq = ring_emit(event, flags, thread.index);
  if ((flags & kForeground) != 0)
    foreground_seq.store(seq, std::memory_order_relaxed);
  return seq;
}

Reply ask(const Event &event) {
  if (!is_rank() || ring_header() == nullptr)
    return {};
  Thread &thread = this_thread();
  uint8_t flags = flags_for(thread, event) | kBlocking;
  resume_if_idle(flags);
  pay_reads(thread, flags);
  std::atomic<int> &waiting = (flags & kForeground) != 0 ? inside : inside_behind;
  waiting.fetch_add(1);
  uint64_t seq = ring_emit(event, flags, thread.index);
  if ((flags & kForeground) != 0)
    foreground_seq.store(seq, std::memory_order_relaxed);
  Reply reply = ring_wait(thread.index, seq, (flags & kForeground) != 0);
  waiting.fetch_sub(1);
  return reply;
}

void unmodelled(const char *library, const char *function) {
  if (!config().active)
    return;
  char name[192];
  snprintf(name, sizeof name, "%s:%s", library, function);
  uint32_t sig = signature(name, signatures::Unmodelled{});
  if (is_rank()) {
    emit({.kind = Kind::kUnmodelled, .sig = sig, .value = 1});
  } else { // before the context exists: told once it does
    std::lock_guard hold(creation);
    early_unmodelled.push_back(sig);
  }
}

} // namespace eidolon
