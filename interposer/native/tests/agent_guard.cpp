// A file that somebody else makes shorter does not end the process that has it mapped under a guard.
#include "../agent/guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "harness.h"

using eidolon::agent::Guard;

namespace {

constexpr size_t kPage = 4096, kBytes = 4 * kPage;

// A file of four pages that hold 1s, mapped.
struct File {
  int fd = memfd_create("shrinking", MFD_CLOEXEC);
  volatile char *memory;
  File() {
    CHECK(ftruncate(fd, kBytes) == 0);
    memory = static_cast<volatile char *>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    memset(const_cast<char *>(memory), 1, kBytes);
  }
  ~File() {
    munmap(const_cast<char *>(memory), kBytes);
    close(fd);
  }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(memory); }
};

void what_is_gone_reads_as_zeros() {
  File file;
  Guard guard(file.address(), kBytes);
  CHECK(ftruncate(file.fd, 2 * kPage) == 0);
  CHECK(!guard.lost()); // nobody has touched it
  CHECK_EQUAL(file.memory[kPage], 1);
  CHECK(!guard.lost());
  CHECK_EQUAL(file.memory[3 * kPage], 0);
  CHECK(guard.lost());
  file.memory[2 * kPage] = 7; // is written to nowhere
  CHECK_EQUAL(file.memory[2 * kPage], 7);
  CHECK_EQUAL(file.memory[0], 1); // what is left is still shared
  guard.release();
  CHECK(guard.lost());
}

void each_mapping_has_a_guard_of_its_own() {
  File one, other;
  Guard first(one.address(), kBytes), second(other.address(), kBytes);
  CHECK(ftruncate(other.fd, 0) == 0);
  CHECK_EQUAL(other.memory[0], 0);
  CHECK(!first.lost());
  CHECK(second.lost());
  second.release();
  File third;
  Guard again(third.address(), kBytes); // in the place of the second
  CHECK(!again.lost());
}

// The wait status of a process that does this.
template <typename Act> int status_of(Act act) {
  const pid_t child = fork();
  if (child == 0) {
    act();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

void any_other_bus_error_ends_the_process_as_ever() {
  File guarded, bare;
  Guard guard(guarded.address(), kBytes);
  const auto killed = [](int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS; };
  // A sanitizer's handler, which was there before, says what it saw and ends the process with an exit code.
  const auto ended = [&](int status) { return killed(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0); };
  CHECK(ftruncate(bare.fd, 0) == 0);
  CHECK(ended(status_of([&] { bare.memory[0] = 1; })));
  CHECK(ended(status_of([] { raise(SIGBUS); })));
  CHECK(ended(status_of([&] {
    guard.release();
    CHECK(ftruncate(guarded.fd, 0) == 0);
    guarded.memory[0] = 1;
  })));
}

} // namespace

int main() {
  what_is_gone_reads_as_zeros();
  each_mapping_has_a_guard_of_its_own();
  any_other_bus_error_ends_the_process_as_ever();
  return test::result();
}
