// The shim's core: what every fake NVIDIA library builds on.
//
// A library file (libs/*.cpp) is a thin translation: it checks its arguments, calls the core, maps the status. All
// state (devices, memory, streams, events, graphs, the ring) lives behind this header, in libeidolon.so. Only plain
// types cross it, so no C++ runtime symbol is shared between preloaded objects.
//
// Status codes are the numbers that cudaError_t and CUresult share (0 success, 1 invalid value, 2 out of memory,
// 400 invalid handle, 600 not ready, 801 not supported, 900.. capture errors).
#pragma once
#include <cstddef>
#include <cstdint>

#include "abi.h"

#define EID_API __attribute__((visibility("default")))

namespace eidolon {

using Status = int;
inline constexpr Status kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidDevice = 101,
                        kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kNotSupported = 801,
                        kCaptureUnsupported = 900, kCaptureInvalidated = 901, kCaptureMerge = 902,
                        kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCaptureIsolation = 905,
                        kCaptureImplicit = 906, kCapturedEvent = 907, kCaptureWrongThread = 908;

// ---- configuration: `<EIDOLON_DIR>/server.conf`, "key=value" lines written by the launcher -----------------------

struct Gpu { // every device of a server is of one model
  char name[96];
  int cc_major, cc_minor, sm_count;
  size_t memory_bytes;  // capacity as cudaMemGetInfo's total reports it
  size_t context_bytes; // taken by each process that creates a context on the device
  int clock_khz, memory_clock_khz, memory_bus_bits;
  size_t l2_bytes, smem_per_block, smem_per_block_optin, smem_per_sm, reserved_smem_per_block;
  int regs_per_sm, max_threads_per_sm, max_blocks_per_sm;
  int nvlinks; // links per GPU; 0: none
  int power_limit_mw;
};
struct Config {
  bool active;              // EIDOLON_DIR is set and readable: otherwise every library is inert (no devices)
  bool null_core;           // "mode=null": no ring, no waits, real clock; the overhead baseline
  bool measured_host;       // "host_cost=measured": records carry thread CPU time
  int devices;              // that this process sees: all of the server, or what CUDA_VISIBLE_DEVICES leaves
  int server_devices;       // of the server; NVML sees them all
  int visible[kMaxDevices]; // of each device that this process sees: its ordinal within the server
  int server;               // index of this emulated server
  Gpu gpu;
  size_t payload_limit;     // NCCL payloads up to this many bytes are moved (65,536)
  size_t known_limit;       // host-to-device copies up to this many bytes keep their bytes (1 MiB)
  int64_t reply_timeout_ns; // a silent agent for this long ends the process with an error
  char dir[512];
};
EID_API const Config &config();

// Ordinal within the server of a device of this process.
inline int server_device(int device) { return config().visible[device]; }
// Unique id of a device of a server, as CUDA and NVML report it, and as text ("GPU-" and 8-4-4-4-12 hexadecimal
// digits).
inline void uuid_of(int server, int device, unsigned char out[16]) {
  for (int i = 0; i < 16; ++i)
    out[i] = static_cast<unsigned char>(i * 7 + device + 16 * server);
}
EID_API void uuid_text(int server, int device, char out[48]);

// The value of `key` in server.conf, or nullptr.
EID_API const char *setting(const char *key);

// ---- rank, thread, records ---------------------------------------------------------------------------------------

// Makes this process a rank (its ring, its context on `device`) if it is not one yet. Called by whatever creates a
// CUDA context. After fork() in a rank the child gets kNotInitialized from it (CUDA's own rule).
EID_API Status ensure_context(int device);
EID_API bool is_rank();
EID_API bool has_context(int device); // this process created a context on it

EID_API int current_device();                  // of the calling thread
EID_API Status set_current_device(int device); // does not create a context

struct Attribute {
  const char *key;
  int64_t value;
};
// Interns (kind, name, attributes) and returns its id; the definition is sent before first use. Thread-safe; ~100 ns
// when known. Attribute order matters: always pass keys in one order.
EID_API uint32_t signature(const char *kind, const char *name, const Attribute *attributes = nullptr, size_t n = 0);

// Id of an API call's name for host costs, e.g. call_id("cudaLaunchKernel"). Use through EID_CALL.
EID_API uint16_t call_id(const char *name);
#define EID_CALL(name)                                                                                                 \
  ([]() -> uint16_t {                                                                                                  \
    static const uint16_t id = ::eidolon::call_id(name);                                                               \
    return id;                                                                                                         \
  }())

struct Stream; // see below

// What a library fills in to emit a record; the core adds sequence number, thread, flags and host cost.
struct Event {
  Kind kind = Kind::kHost;
  uint8_t flags = 0; // kGroupMore only; the rest is the core's
  uint16_t call = 0;
  Stream *stream = nullptr; // nullptr: no stream
  uint32_t sig = 0;
  uint64_t value = 0;
};
struct Reply {
  Status status = 0;
  int64_t clock_ns = 0;
  int64_t value = 0;
  uint64_t seq = 0;
};
// Writes one record and returns its sequence number. No-op (0) in processes that are no rank.
EID_API uint64_t emit(const Event &event);
// Writes one record and waits for its answer. Never returns if the run failed or was stopped.
EID_API Reply ask(const Event &event);
// A host-only call: costs its host time, nothing else.
inline void host(uint16_t call) { emit({.kind = Kind::kHost, .call = call}); }

// Counts a call that is not modelled ("cusparse:cusparseSpMM") for the run's summary. Cheap after the first.
EID_API void unmodelled(const char *library, const char *function);

// The current operator of this thread (set by the torch plugin), 0 if none; part of kernel signatures.
EID_API void set_operator(uint32_t sig);
EID_API uint32_t current_operator();

// An operator of the framework, known by an address of its own, began on this thread (told by the torch plugin): it
// takes host time.
EID_API void count_operator(const void *op);

// ---- memory ------------------------------------------------------------------------------------------------------

struct PointerInfo {
  enum Type { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 } type;
  int device;
  void *base;   // start of the allocation
  size_t bytes; // its size
  void *device_pointer, *host_pointer;
  uint64_t buffer_id;
};
EID_API Status mem_alloc(int device, size_t bytes, void **out);
EID_API Status mem_free(void *pointer); // device memory; waits for the device as cudaFree does
EID_API Status mem_alloc_async(int device, size_t bytes, Stream *stream, void **out);
EID_API Status mem_free_async(void *pointer, Stream *stream);
EID_API Status mem_info(int device, size_t *free_bytes, size_t *total_bytes);
EID_API Status server_memory(int server_device, size_t *free_bytes,
                             size_t *total_bytes);    // by ordinal within the server
EID_API size_t server_memory_used(int server_device); // by this process
EID_API Status host_alloc(size_t bytes, void **out);  // pinned
EID_API Status host_free(void *pointer);
EID_API Status managed_alloc(size_t bytes, void **out); // on the host; freed by mem_free
EID_API Status host_register(void *pointer, size_t bytes);
EID_API Status host_unregister(void *pointer);
EID_API PointerInfo pointer_info(const void *pointer); // any address
EID_API bool is_device(const void *pointer);
// Virtual memory management: reserved ranges, physical handles, mappings.
EID_API Status vmm_reserve(size_t bytes, size_t alignment, void *hint, void **out);
EID_API Status vmm_unreserve(void *pointer, size_t bytes);
EID_API Status vmm_create(int device, size_t bytes, uint64_t *handle);
EID_API Status vmm_release(uint64_t handle);
EID_API Status vmm_retain(void *pointer, uint64_t *handle); // handle mapped at pointer, one more reference
EID_API Status vmm_map(void *pointer, size_t bytes, size_t offset, uint64_t handle);
EID_API Status vmm_unmap(void *pointer, size_t bytes);
EID_API Status vmm_set_access(void *pointer, size_t bytes);
inline constexpr size_t kVmmGranularity = size_t{2} << 20;
// Pools: attributes of the default and created pools, exact for this process.
struct PoolInfo {
  uint64_t used_current, used_high, reserved_current, reserved_high, release_threshold;
};
EID_API PoolInfo pool_info(int device);
EID_API void pool_set_threshold(int device, uint64_t bytes);
EID_API void pool_trim(int device, size_t keep_bytes);
EID_API void pool_reset_high(int device, bool used, bool reserved);
inline constexpr size_t kIpcHandleBytes = 64; // as cudaIpcMemHandle_t and cudaIpcEventHandle_t
// IPC as frameworks use it: a handle names (process, allocation); opening maps an alias that is not accounted twice.
EID_API Status ipc_get(void *pointer, unsigned char out[kIpcHandleBytes]);
EID_API Status ipc_open(const unsigned char handle[kIpcHandleBytes], void **out);
EID_API Status ipc_close(void *pointer);

// ---- values (the minimum value layer) ----------------------------------------------------------------------------
// Device bytes are known (the host or a small NCCL payload wrote them) or unknown (anything else); unknown ones read as
// 0. A known value is true, or follows from a stated default: where programs steer by a number that depends on large
// tensors, the plugin puts a default there (torch/defaults.h), and what is computed from it on is marked as well.

// Numbers as in eidolon_simcore.ledger.unknown_reads: part of the "read" signature.
enum class Origin : uint8_t { kTrue = 0, kNumber, kReduction, kLoss, kNorm, kFinite, kRouting };

// Marks [pointer, +bytes) unknown: an operation wrote it. If the thread's next operation is captured, each replay of it
// does so again.
EID_API void value_unknown(void *pointer, size_t bytes);
// As value_unknown, for a kernel whose result is known (a fill with a number from the host) or stated.
EID_API void value_computed(void *pointer, size_t bytes, const void *data, Origin origin = Origin::kTrue);
// What the known bytes of a range follow from: kTrue, or the greatest of their defaults.
EID_API Origin value_origin(const void *pointer, size_t bytes);
// Waits, in real time only, until no payload is outstanding for these bytes.
EID_API void value_settle(const void *pointer, size_t bytes);
// Known range that contains pointer: its remaining length, 0 if unknown or still to come.
EID_API size_t value_known(const void *pointer, size_t bytes);
// Copies device bytes to host memory, zeros for unknown; returns the number of unknown bytes.
EID_API size_t value_read(const void *pointer, size_t bytes, void *out);
EID_API void value_write(void *pointer, size_t bytes, const void *data);
// The calling thread's next read of an unknown 1-, 4- or 8-byte value gets this number (an operator that reads its own
// answer from the device was computed before it ran); -1: no more.
EID_API void value_expect(int64_t value);

// ---- operations on streams ---------------------------------------------------------------------------------------

// nullptr and 1 are the legacy default stream of the current device, 2 the per-thread one; anything else a Stream*.
// Returns nullptr for a handle that is not a live stream.
EID_API Stream *stream_of(void *handle);
EID_API void *stream_handle(Stream *stream);
EID_API Status stream_create(unsigned flags, int priority, Stream **out); // on the current device
EID_API Status stream_destroy(Stream *stream);
EID_API unsigned stream_flags(const Stream *stream); // bit 0: non-blocking
EID_API int stream_priority(const Stream *stream);
EID_API int stream_device(const Stream *stream);
EID_API uint64_t stream_id(const Stream *stream);

EID_API Status stream_synchronize(Stream *stream, uint16_t call);
EID_API Status stream_query(Stream *stream, uint16_t call); // kSuccess or kNotReady
EID_API Status device_synchronize(int device, uint16_t call);
EID_API Status stream_wait(Stream *stream, void *event, uint16_t call);
// What `stream` gets from now on waits for what `other` has by now; costs no host time, and is no event of the
// program's.
EID_API Status stream_follow(Stream *stream, Stream *other);
// Runs `function(data)` when the work before it has ended in virtual time; later work of the stream waits for it.
EID_API Status stream_callback(Stream *stream, void (*function)(void *), void *data, uint16_t call);

EID_API Status event_create(unsigned flags, void **out); // 1 blocking sync, 2 disable timing, 4 interprocess
EID_API Status event_destroy(void *event);
EID_API Status event_record(void *event, Stream *stream, uint16_t call);
// Inside a capture: a node that records the event, or waits for it, at each replay (CUDA's "external" events).
EID_API Status event_record_external(void *event, Stream *stream);
EID_API Status stream_wait_external(Stream *stream, void *event);
EID_API Status event_query(void *event, uint16_t call);
EID_API Status event_synchronize(void *event, uint16_t call);
EID_API Status event_elapsed(void *start, void *end, float *ms, uint16_t call);
EID_API Status event_ipc_get(void *event, unsigned char out[kIpcHandleBytes]);
EID_API Status event_ipc_open(const unsigned char handle[kIpcHandleBytes], void **out);

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
};
EID_API Status launch_kernel(const Launch &launch);

// kind: 0 H2H, 1 H2D, 2 D2H, 3 D2D, 4 by address. `synchronous`: cudaMemcpy; pageable memory makes the asynchronous
// form wait as CUDA does. Moves or tracks the bytes and emits the copy.
EID_API Status copy(void *to, const void *from, size_t bytes, int kind, Stream *stream, bool synchronous,
                    uint16_t call);
EID_API Status copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                       int kind, Stream *stream, bool synchronous, uint16_t call);
// Writes `count` elements of `element_bytes` (1, 2, 4) with the low bytes of value.
EID_API Status set(void *to, unsigned value, size_t element_bytes, size_t count, Stream *stream, bool synchronous,
                   uint16_t call);

// ---- kernels by host function or module --------------------------------------------------------------------------

EID_API void kernel_register(const void *host_function, const char *mangled_name);
EID_API const char *kernel_name(const void *host_function_or_handle); // nullptr if not known
// A new module-level kernel handle (cuModuleGetFunction, cuLibraryGetKernel); lives for the process.
EID_API void *kernel_handle(const char *mangled_name);
// Attributes that may be set on a kernel (dynamic shared memory, ...); index = cudaFuncAttribute number.
EID_API void kernel_set_attribute(const void *handle, int attribute, int value);
EID_API int kernel_attribute(const void *handle, int attribute, int otherwise);

// ---- capture and graphs ------------------------------------------------------------------------------------------

struct CaptureInfo {
  int status; // 0 none, 1 active, 2 invalidated
  uint64_t id;
  void *graph;
  void **dependencies; // nodes the next captured one would depend on; valid until the next call on the stream
  size_t count;
};
EID_API Status capture_begin(Stream *stream, int mode, void *into_graph);
EID_API Status capture_end(Stream *stream, void **graph);
EID_API CaptureInfo capture_info(Stream *stream);
EID_API Status capture_update_dependencies(Stream *stream, void *const *nodes, size_t n, bool replace);
// 0 global, 1 thread-local, 2 relaxed: swaps the calling thread's mode
EID_API int capture_exchange_mode(int mode);
// True while any stream of the process captures.
EID_API bool capturing();
// True if a call that is unsafe during capture (cudaMalloc, synchronize, ...) must fail: sets the capture invalid.
EID_API bool capture_forbids_unsafe_call();

EID_API Status graph_create(void **graph);
EID_API Status graph_destroy(void *graph);
EID_API Status graph_clone(void *graph, void **out);
EID_API size_t graph_nodes(void *graph, void **nodes, size_t capacity); // returns the count
EID_API size_t graph_roots(void *graph, void **nodes, size_t capacity);
EID_API size_t graph_edges(void *graph, void **from, void **to, size_t capacity);
EID_API size_t node_dependencies(void *node, void **nodes, size_t capacity);
// Adds a node that does nothing but join its dependencies.
EID_API Status graph_add_empty(void *graph, void *const *dependencies, size_t n, void **node);
EID_API int node_type(void *node); // cudaGraphNodeType: 0 kernel, 1 memcpy, 2 memset, 3 host, 5 empty, 6 wait, 7 record
EID_API Status graph_instantiate(void *graph, void **exec);
EID_API Status graph_exec_destroy(void *exec);
EID_API Status graph_exec_update(void *exec, void *graph);
EID_API Status graph_launch(void *exec, Stream *stream, uint16_t call);
// Objects whose destructor runs when the graph goes (cudaUserObject).
EID_API void *user_object_create(void *data, void (*destroy)(void *), unsigned references);
EID_API void user_object_release(void *object, unsigned references);
EID_API void user_object_retain(void *object, unsigned references);
EID_API void graph_retain_user_object(void *graph, void *object, unsigned references, bool move);

// ---- collectives (libs/nccl.cpp) ---------------------------------------------------------------------------------

// What is issued with one of these runs one after the other, in the order of issue, on whatever streams. Lives for
// ever: captured operations take their turn at each replay.
struct Turn;
EID_API Turn *turn_create();

// One member of an NCCL group (or a call on its own). `payload` is sent if the bytes are known and small; the result
// arrives later and is put at `receive` in stream order.
struct Collective {
  uint32_t sig;                    // signature of kind "collective"
  std::atomic<uint64_t> *position; // counter of its communicator (p2p: of its pair and direction), taken when the work
                                   // is issued: at the call, or at each replay of a captured one; lives for ever
  Turn *turn = nullptr;            // nullptr: it waits for its stream alone
  Stream *stream;
  uint16_t call;
  bool group_more; // further members of the group follow, on the same stream
  bool small =
      true; // the most that any one rank sends is at most config().payload_limit: the same answer on every rank
  const void *send;
  size_t send_bytes;
  void *receive;
  size_t receive_bytes;
};
EID_API Status launch_collective(const Collective &collective);

// ---- C functions, for the Python hook
// ----------------------------------------------------------------------------------------
extern "C" {
// The calling Python interpreter's functions cost host time from now on. Holds the GIL. 1: they do.
EID_API int eidolon_follow_python(void);
// Virtual clock of this rank in ns, or -1 if the process is no rank. Foreground threads ask the core and pay 1 us.
EID_API int64_t eidolon_clock_ns(void);
// CLOCK_REALTIME at virtual time 0, or -1.
EID_API int64_t eidolon_epoch_ns(void);
// Advances the clock of a foreground thread by ns; returns 1. On other threads returns 0: the caller waits.
EID_API int eidolon_sleep_ns(int64_t ns);
// Step mark; 1 if this process is a rank.
EID_API int eidolon_mark(const char *kind);
// Marks of optimizer steps so far.
EID_API int64_t eidolon_steps(void);
// Reports one metric from user or hook code ("tokens", value): a mark signature with an attribute.
EID_API int eidolon_report(const char *name, int64_t value);
// As `unmodelled`.
EID_API void eidolon_unmodelled(const char *library, const char *function);
}

// Prints "eidolon: MESSAGE" and ends the process with code 70.
[[noreturn]] EID_API void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Prints "eidolon: MESSAGE" once per distinct format.
EID_API void warn_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace eidolon
