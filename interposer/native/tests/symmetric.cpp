// Physical memory that two processes map, and the kernels of symmetric memory on it, without a simulation behind them
// (mode=null).
#include <fcntl.h>
#include <sys/wait.h>

#include <string>

#include "core.h"
#include "harness.h"
#include "symmetric.h"

using namespace eidolon;

constexpr size_t kBytes = 2 * kVmmGranularity;

static char *mapped(uint64_t handle) {
  void *at = nullptr;
  CHECK_EQUAL(vmm_reserve(kBytes, 0, nullptr, &at), kSuccess);
  CHECK_EQUAL(vmm_map(at, kBytes, 0, handle), kSuccess);
  return static_cast<char *>(at);
}

// The child: it maps what its parent has exported as a file, whose number comes through the pipe.
static void another_process_maps_the_memory(int numbers, int done) {
  int number = -1;
  CHECK_EQUAL(read(numbers, &number, sizeof number), static_cast<ssize_t>(sizeof number));
  const int file =
      open(("/proc/" + std::to_string(getppid()) + "/fd/" + std::to_string(number)).c_str(), O_RDONLY | O_CLOEXEC);
  uint64_t handle;
  int device;
  CHECK_EQUAL(vmm_import(file, &handle, &device), kSuccess);
  CHECK_EQUAL(device, 0);
  char *at = mapped(handle);
  CHECK_EQUAL(server_memory_used(0), size_t{0}); // its owner has taken it
  const PhysicalOrigin origin = vmm_origin(at + 100);
  CHECK(origin.pid == getppid() && origin.server_device == 0 && origin.number == 1);
  char value = 0;
  CHECK_EQUAL(value_read(at + 5, 1, &value), size_t{0});
  CHECK_EQUAL(value, 42);
  value = 43;
  value_write(at + 5, 1, &value);
  CHECK_EQUAL(vmm_unmap(at, kBytes), kSuccess);
  CHECK_EQUAL(vmm_release(handle), kSuccess);
  CHECK_EQUAL(vmm_import(numbers, &handle, &device), kInvalidValue);
  CHECK_EQUAL(write(done, "", 1), ssize_t{1});
}

static void memory_is_shared_by_a_file(int numbers, int done) {
  uint64_t handle;
  CHECK_EQUAL(vmm_create(0, kBytes, &handle), kSuccess);
  char *at = mapped(handle);
  CHECK_EQUAL(vmm_origin(at).pid, getpid());
  CHECK_EQUAL(vmm_origin(&handle).pid, 0);
  const char known = 42;
  value_write(at + 5, 1, &known);
  int file = -1, other;
  CHECK_EQUAL(vmm_export(handle, &file), kSuccess);
  CHECK_EQUAL(vmm_export(handle + 1000, &other), kInvalidValue);
  CHECK_EQUAL(write(numbers, &file, sizeof file), static_cast<ssize_t>(sizeof file));
  char token;
  CHECK_EQUAL(read(done, &token, 1), ssize_t{1});
  char value = 0;
  CHECK_EQUAL(value_read(at + 5, 1, &value), size_t{0});
  CHECK_EQUAL(value, 43); // what the other one wrote

  uint64_t same; // in the process that made it, it is the same allocation
  int device;
  CHECK_EQUAL(vmm_import(file, &same, &device), kSuccess);
  CHECK_EQUAL(same, handle);
}

static void kernels_are_told_apart_by_their_names() {
  const std::string in_file = "_ZN64_GLOBAL__N__62167398_25_CUDASymmetricMemoryOps_cu_70c0f2ac_13507";
  auto kind = [&](const std::string &name) { return symmetric_kernel(name.c_str()); };
  CHECK(kind("_ZN4c10d16symmetric_memory14barrier_kernelEPPjiiim") == Symmetric::kBarrier);
  CHECK(kind("_ZN4c10d16symmetric_memory17put_signal_kernelEPPjiiiim") == Symmetric::kNotModelled);
  CHECK(kind(in_file + "26one_shot_all_reduce_kernelIfLi16ELi2EEEvPPT_S2_S2_mmPPjmm") == Symmetric::kOneShot);
  CHECK(kind(in_file + "26two_shot_all_reduce_kernelIfLi8ELi4ELb0ELb0EEEvPPT_S2_mmPPjmmm") == Symmetric::kTwoShot);
  CHECK(kind(in_file + "26two_shot_all_reduce_kernelIfLi8ELi4ELb1ELb0EEEvPPT_S2_mmPPjmmm") == Symmetric::kScatter);
  CHECK(kind(in_file + "26two_shot_all_reduce_kernelIfLi8ELi4ELb1ELb1EEEvPPT_S2_mmPPjmmm") == Symmetric::kScatterLast);
  CHECK(kind(in_file + "34two_shot_all_reduce_kernel_inplaceIfLi16ELi4EEEvPPT_mmPPjmm") == Symmetric::kTwoShotInPlace);
  CHECK(kind(in_file + "26multimem_all_reduce_kernelIfLi4EEEvPT_mPPjmm") == Symmetric::kNotModelled);
  CHECK(kind("_ZN2at6native6kernelEPPjmm") == Symmetric::kNo);
  CHECK(kind("barrier_kernel") == Symmetric::kNo);
}

// Without a core every rank is taken to have what this one has.
static void a_kernel_reduces_what_its_buffer_holds() {
  uint64_t handle;
  CHECK_EQUAL(vmm_create(0, kBytes, &handle), kSuccess);
  char *base = mapped(handle);
  void *arrays, *out;
  CHECK_EQUAL(mem_alloc(0, 64, &arrays), kSuccess);
  CHECK_EQUAL(mem_alloc(0, 64, &out), kSuccess);
  char *pads[] = {base, base}, *buffers[] = {base + 4096, base + 4096};
  value_write(arrays, sizeof pads, pads);
  void *of_buffers = static_cast<char *>(arrays) + sizeof pads;
  value_write(of_buffers, sizeof buffers, buffers);
  const float numbers[] = {1, 2, 3, 4};
  value_write(base + 4096, sizeof numbers, numbers);
  Stream *stream;
  CHECK_EQUAL(stream_create(kStreamNonBlocking, 0, &stream), kSuccess);
  void *input = nullptr;
  size_t offset = 1, count = 2, rank = 1, size = 2;
  void *arguments[] = {&of_buffers, &out, &input, &offset, &count, &arrays, &rank, &size};
  const char *name = "_ZN1a26one_shot_all_reduce_kernelIfLi4ELi2EEEvPPT_S2_S2_mmPPjmm";
  CHECK_EQUAL(launch_kernel({name, {1, 1, 1}, {32, 1, 1}, 0, arguments, stream, 0}), kSuccess);
  float read[2];
  CHECK_EQUAL(value_read(out, sizeof read, read), size_t{0});
  CHECK(read[0] == 2 && read[1] == 3);
}

int main() {
  test::enter_server("mode=null\ndevices=1\ngpu.memory_bytes=1073741824\ngpu.context_bytes=0\nknown_limit=65536\n"
                     "payload_limit=65536\ngpu.smem_per_block_optin=232448\n");
  int numbers[2], done[2];
  CHECK(pipe(numbers) == 0 && pipe(done) == 0);
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    another_process_maps_the_memory(numbers[0], done[1]);
    _exit(test::failures == 0 ? 0 : 1);
  }
  memory_is_shared_by_a_file(numbers[1], done[0]);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  kernels_are_told_apart_by_their_names();
  a_kernel_reduces_what_its_buffer_holds();
  return test::result();
}
