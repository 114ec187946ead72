// Work on streams: library operations, kernels, copies and sets, collectives.
#pragma once
#include <atomic>
#include <vector>

#include "streams.h"

namespace eidolon {

// A device operation with a ready signature (library calls: GEMM, convolution, ...). Captured if the stream captures.
EID_API Status launch_operation(Stream *stream, uint32_t sig, uint16_t call);

struct Dim3 {
  unsigned x, y, z;
};
struct Launch {
  const char *name; // mangled
  Dim3 grid, block;
  size_t shared_bytes;
  void **arguments; // may be nullptr
  Stream *stream;
  uint16_t call;
  Dim3 cluster = {1, 1, 1};
  const void *function = nullptr; // a host function or a handle, whose code may say what it writes
};
EID_API Status launch_kernel(const Launch &launch);

// Which way a copy goes, numbers as in cudaMemcpyKind.
enum class CopyKind : int {
  kHostToHost = 0,
  kHostToDevice = 1,
  kDeviceToHost = 2,
  kDeviceToDevice = 3,
  kByAddress = 4
};

// Moves or tracks the bytes and emits the copy. `synchronous`: cudaMemcpy; pageable memory makes the asynchronous form
// wait as CUDA does.
EID_API Status copy(void *to, const void *from, size_t bytes, CopyKind kind, Stream *stream, bool synchronous,
                    uint16_t call);
EID_API Status copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                       CopyKind kind, Stream *stream, bool synchronous, uint16_t call);
// Writes `count` elements of `element_bytes` (1, 2, 4) with the low bytes of value.
EID_API Status set(void *to, unsigned value, size_t element_bytes, size_t count, Stream *stream, bool synchronous,
                   uint16_t call);

// ---- kernels by host function or module ---------------------------------------------------------------------------

EID_API void kernel_register(const void *host_function, const char *mangled_name);
EID_API const char *kernel_name(const void *host_function_or_handle); // nullptr if not known
// A new module-level kernel handle (cuModuleGetFunction, cuLibraryGetKernel); lives for the process. `outputs` says for
// each parameter whether the kernel writes through it; empty where its code does not tell.
EID_API void *kernel_handle(const char *mangled_name, std::vector<bool> outputs = {});
// Attributes that may be set on a kernel (dynamic shared memory, ...); index = cudaFuncAttribute number.
EID_API void kernel_set_attribute(const void *handle, int attribute, int value);
EID_API int kernel_attribute(const void *handle, int attribute, int otherwise);

// ---- collectives (libs/nccl_calls.cpp) ----------------------------------------------------------------------------

// Collectives that are issued with one Turn run one after the other, in the order of issue, on whatever streams they
// are. A turn is never freed, because captured operations take it at each replay.
struct Turn;
EID_API Turn *turn_create();

// One member of an NCCL group, or a call on its own. Where the collective is small, the bytes at `send` are moved: the
// result arrives later and is put at `receive` in stream order.
struct Collective {
  uint32_t sig;                    // signature of kind "collective"
  std::atomic<uint64_t> *position; // counter of its communicator (p2p: of its pair and direction), taken when the work
                                   // is issued: at the call, or at each replay of a captured one; lives for ever
  Turn *turn = nullptr;            // nullptr: it waits for its stream alone
  Stream *stream;
  uint16_t call;
  bool group_more;     // further members of the group follow, on the same stream
  bool watched = true; // torch's watchdog looks for its end
  // No rank sends more than config().payload_limit. The answer is the same on every rank.
  bool small = true;
  bool reduces = false; // what it brings depends on every byte that is sent
  const void *send;
  size_t send_bytes;
  void *receive;
  size_t receive_bytes;
};
EID_API Status launch_collective(const Collective &collective);

} // namespace eidolon
