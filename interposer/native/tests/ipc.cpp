// CUDA IPC between two processes without a simulation behind them (mode=null): what each sees of the other's values,
// and when.
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <vector>

#include "core.h"
#include "harness.h"
#include "internal.h"

using namespace eidolon;

// The two processes take turns: each does its next step when the other has done its own.
struct Turns {
  int to_child[2], to_parent[2];
  bool parent = true;
  Turns() {
    if (pipe(to_child) != 0 || pipe(to_parent) != 0)
      exit(1);
  }
  void give() {
    const char token = 0;
    if (write(parent ? to_child[1] : to_parent[1], &token, 1) != 1)
      exit(1);
  }
  void take() {
    char token;
    if (read(parent ? to_parent[0] : to_child[0], &token, 1) != 1)
      exit(1);
  }
  void pass() {
    give();
    take();
  }
};

constexpr size_t kBig = size_t{4} << 20; // larger than what lies in a slab
constexpr int kLater = 3'000'000;        // where in it something else lies

struct Handles {
  unsigned char big[kIpcHandleBytes], small[kIpcHandleBytes];
};

static char *allocated(size_t bytes) {
  void *pointer;
  CHECK_EQUAL(mem_alloc(0, bytes, &pointer), kSuccess);
  return static_cast<char *>(pointer);
}

static char *opened(const unsigned char handle[kIpcHandleBytes]) {
  void *pointer = nullptr;
  CHECK_EQUAL(ipc_open(handle, &pointer), kSuccess);
  return static_cast<char *>(pointer);
}

// A known byte, or -1.
static int at(const char *pointer) {
  char value;
  return value_read(pointer, 1, &value) == 0 ? value : -1;
}

static void set(char *pointer, char value) { value_write(pointer, 1, &value); }

static int files(const std::string &directory) {
  int found = 0;
  if (DIR *open = opendir((directory + "/ipc").c_str())) {
    while (const dirent *entry = readdir(open))
      found += entry->d_name[0] != '.';
    closedir(open);
  }
  return found;
}

constexpr unsigned kLimitS = 60; // a process that waits in vain for the other's turn

static void child(Turns &turns, int handles) {
  alarm(kLimitS);
  turns.parent = false;
  turns.take();
  Handles all;
  CHECK_EQUAL(read(handles, &all, sizeof all), sizeof all);
  CHECK_EQUAL(ensure_context(0), kSuccess);
  size_t before, after;
  mem_info(0, &before, nullptr);
  char *big = opened(all.big), *small = opened(all.small), *again = opened(all.big);
  mem_info(0, &after, nullptr);
  CHECK_EQUAL(before, after); // it is the parent's memory

  // What the parent knew when it exported, with what it followed from.
  CHECK_EQUAL(at(big), 1);
  CHECK_EQUAL(at(big + 1), -1);
  CHECK_EQUAL(at(big + kLater), 2);
  CHECK(value_origin(big + kLater, 1) == Origin::kLoss);
  CHECK(value_origin(big, 1) == Origin::kNothing);
  CHECK_EQUAL(at(small), 3);
  CHECK_EQUAL(at(again), 1);

  set(big + 1, 4);
  value_unknown(big, 1);
  CHECK_EQUAL(at(again), -1); // the same memory
  CHECK_EQUAL(at(again + 1), 4);
  turns.pass();

  CHECK_EQUAL(at(big + 1), 6); // what the parent wrote since
  CHECK_EQUAL(at(big + kLater), -1);
  CHECK_EQUAL(ipc_close(again), kSuccess);
  CHECK_EQUAL(at(big + 1), 6);
  CHECK_EQUAL(ipc_close(big), kSuccess);
  turns.pass();

  CHECK_EQUAL(at(small), -1); // the parent has freed it
  big = opened(all.big);
  CHECK_EQUAL(at(big + 1), 6);
  turns.pass();

  CHECK_EQUAL(at(big + 1), -1); // the file was damaged
  set(big + 1, 8);
  CHECK_EQUAL(at(big + 1), 8);
  turns.give();
}

static void parent(Turns &turns, int handles, const std::string &directory) {
  alarm(kLimitS);
  CHECK_EQUAL(ensure_context(0), kSuccess);
  char *big = allocated(kBig), *small = allocated(1), *neighbour = allocated(1);
  set(big, 1);
  const char loss = 2;
  value_computed(big + kLater, 1, &loss, Origin::kLoss);
  set(small, 3);
  set(neighbour, 5);
  Handles all;
  CHECK_EQUAL(ipc_get(big + 77, all.big), kSuccess); // of the allocation
  CHECK_EQUAL(ipc_get(small, all.small), kSuccess);
  CHECK_EQUAL(ipc_get(big, all.big), kSuccess);
  CHECK_EQUAL(files(directory), 2);
  CHECK_EQUAL(write(handles, &all, sizeof all), sizeof all);
  turns.pass();

  CHECK_EQUAL(at(big), -1); // the child has written what it does not know
  CHECK_EQUAL(at(big + 1), 4);
  CHECK_EQUAL(at(big + kLater), 2);
  CHECK_EQUAL(at(neighbour), 5);
  set(big + 1, 6);
  value_unknown(big + kLater, 1);
  turns.pass();

  CHECK_EQUAL(at(big + 1), 6); // the child has only closed it
  CHECK_EQUAL(mem_free(small), kSuccess);
  CHECK_EQUAL(files(directory), 1);
  turns.pass();

  const std::string file = directory + "/ipc/" + std::to_string(getpid()) + "-1";
  const std::vector<char> garbage(4096, 7);
  const int open_file = open(file.c_str(), O_WRONLY);
  CHECK_EQUAL(pwrite(open_file, garbage.data(), garbage.size(), 0), garbage.size());
  close(open_file);
  turns.pass();

  CHECK_EQUAL(at(big + 1), -1);
  CHECK_EQUAL(mem_free(big), kSuccess);
}

int main() {
  const std::string directory = test::enter_server("mode=null\ndevices=1\ngpu.memory_bytes=1073741824\n"
                                                   "gpu.context_bytes=0\ngpu.cc=9.0\n");
  Turns turns;
  int handles[2];
  CHECK_EQUAL(pipe(handles), 0);
  fflush(nullptr);
  if (const pid_t pid = fork(); pid != 0) {
    parent(turns, handles[1], directory);
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK_EQUAL(status, 0);
    return test::result();
  }
  child(turns, handles[0]);
  _exit(test::failures == 0 ? 0 : 1);
}
