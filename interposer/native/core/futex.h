// Linux futexes: sleeping until somebody changes a word, which may lie in shared memory. A wait may always end early,
// so whoever waits looks again at what it waits for.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace eidolon {

inline void futex_wake(std::atomic<uint32_t> *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps while the word is `seen`, at most for `limit_us`. False if that time ran out.
inline bool futex_wait(std::atomic<uint32_t> *word, uint32_t seen, int64_t limit_us) {
  const timespec limit{limit_us / 1'000'000, (limit_us % 1'000'000) * 1'000};
  return syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

} // namespace eidolon
