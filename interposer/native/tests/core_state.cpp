// The core without a simulation behind it (mode=null): memory, values, capture and graphs.
#include <vector>

#include "core.h"
#include "harness.h"

using namespace eidolon;

static constexpr size_t kMiB = size_t{1} << 20;

static void memory_is_charged_and_given_back() {
  size_t free_bytes, total_bytes;
  CHECK_EQUAL(ensure_context(0), kSuccess);
  mem_info(0, &free_bytes, &total_bytes);
  CHECK_EQUAL(total_bytes, 1024 * kMiB);
  CHECK_EQUAL(free_bytes, (1024 - 100) * kMiB); // the context's own cost
  void *a, *b, *c;
  CHECK_EQUAL(mem_alloc(0, 512 * kMiB, &a), kSuccess);
  CHECK_EQUAL(mem_alloc(0, 512 * kMiB, &b), kOutOfMemory);
  CHECK(b == nullptr);
  CHECK_EQUAL(mem_alloc(0, 100, &b), kSuccess); // a 2 MiB slab
  CHECK_EQUAL(mem_alloc(0, 100, &c), kSuccess); // the same slab
  mem_info(0, &free_bytes, nullptr);
  CHECK_EQUAL(free_bytes, (1024 - 100 - 512 - 2) * kMiB);
  PointerInfo info = pointer_info(static_cast<char *>(a) + 5 * kMiB);
  CHECK_EQUAL(info.type, PointerInfo::kDevice);
  CHECK(info.base == a);
  CHECK_EQUAL(mem_free(a), kSuccess);
  CHECK_EQUAL(mem_free(a), kInvalidValue);
  CHECK_EQUAL(mem_free(b), kSuccess);
  CHECK_EQUAL(mem_free(c), kSuccess);
  mem_info(0, &free_bytes, nullptr);
  CHECK_EQUAL(free_bytes, (1024 - 100) * kMiB);
  CHECK_EQUAL(pointer_info(a).type, PointerInfo::kUnregistered);
}

static void virtual_ranges_are_mapped_and_reused() {
  void *range;
  uint64_t handle;
  CHECK_EQUAL(vmm_reserve(64 * kMiB, 0, nullptr, &range), kSuccess);
  CHECK_EQUAL(vmm_create(0, 20 * kMiB, &handle), kSuccess);
  CHECK_EQUAL(vmm_create(0, 3, &handle), kInvalidValue);
  CHECK_EQUAL(vmm_map(range, 20 * kMiB, 0, handle), kSuccess);
  CHECK_EQUAL(vmm_map(range, 20 * kMiB, 0, handle), kInvalidValue); // mapped already
  CHECK_EQUAL(vmm_set_access(range, 20 * kMiB), kSuccess);
  CHECK_EQUAL(vmm_set_access(range, 22 * kMiB), kInvalidValue); // past the mapping
  CHECK_EQUAL(vmm_release(handle), kSuccess);                   // the mapping keeps it
  size_t free_bytes;
  mem_info(0, &free_bytes, nullptr);
  CHECK_EQUAL(free_bytes, (1024 - 100 - 20) * kMiB);
  CHECK_EQUAL(vmm_unmap(range, 20 * kMiB), kSuccess);
  mem_info(0, &free_bytes, nullptr);
  CHECK_EQUAL(free_bytes, (1024 - 100) * kMiB);
  CHECK_EQUAL(vmm_unreserve(range, 64 * kMiB), kSuccess);
  void *again;
  CHECK_EQUAL(vmm_reserve(64 * kMiB, 0, nullptr, &again), kSuccess);
  CHECK(again == range); // addresses are reused
  CHECK_EQUAL(vmm_unreserve(again, 64 * kMiB), kSuccess);
}

static void what_the_host_wrote_can_be_read_back() {
  Stream *stream = stream_of(nullptr);
  void *device;
  mem_alloc(0, 4 * kMiB, &device);
  std::vector<int> data(1000), back(2000, -1);
  for (int i = 0; i < 1000; ++i)
    data[static_cast<size_t>(i)] = i;
  CHECK_EQUAL(copy(device, data.data(), 4000, CopyKind::kHostToDevice, stream, true, 0), kSuccess);
  CHECK_EQUAL(value_known(device, 8000), 4000);
  CHECK_EQUAL(copy(back.data(), device, 8000, CopyKind::kDeviceToHost, stream, true, 0), kSuccess);
  CHECK_EQUAL(back[999], 999);
  CHECK_EQUAL(back[1000], 0); // never computed: zero, not garbage
  // Device-to-device keeps what is known, an operation's output does not.
  char *second = static_cast<char *>(device) + kMiB;
  CHECK_EQUAL(copy(second, device, 4000, CopyKind::kDeviceToDevice, stream, false, 0), kSuccess);
  value_unknown(static_cast<char *>(device) + 400, 400);
  CHECK_EQUAL(value_read(device, 4000, back.data()), 400);
  CHECK_EQUAL(back[99], 99);
  CHECK_EQUAL(back[150], 0);
  CHECK_EQUAL(back[200], 200);
  CHECK_EQUAL(value_read(second, 4000, back.data()), 0);
  CHECK_EQUAL(back[150], 150);
  // Direction must agree with the addresses.
  CHECK_EQUAL(copy(device, data.data(), 4000, CopyKind::kDeviceToHost, stream, true, 0), kInvalidValue);
  // A freed block that is allocated again holds nothing of before.
  mem_free(device);
  void *again;
  mem_alloc(0, 4 * kMiB, &again);
  CHECK(again == device);
  CHECK_EQUAL(value_read(again, 4000, back.data()), 4000);
  CHECK_EQUAL(back[99], 0);
  mem_free(again);
}

static void a_launch_makes_its_output_unknown() {
  Stream *stream = stream_of(nullptr);
  void *out, *in;
  mem_alloc(0, kMiB, &out);
  mem_alloc(0, kMiB, &in);
  int one = 1, back = 0;
  copy(out, &one, 4, CopyKind::kHostToDevice, stream, true, 0);
  copy(in, &one, 4, CopyKind::kHostToDevice, stream, true, 0);
  // void copy_kernel(float*, float const*, int)
  int n = 1;
  void *arguments[] = {&out, &in, &n};
  CHECK_EQUAL(launch_kernel({.name = "_Z11copy_kernelPfPKfi",
                             .grid = {1, 1, 1},
                             .block = {128, 1, 1},
                             .shared_bytes = 0,
                             .arguments = arguments,
                             .stream = stream,
                             .call = 0}),
              kSuccess);
  CHECK_EQUAL(value_read(out, 4, &back), 4);
  CHECK_EQUAL(back, 0);
  CHECK_EQUAL(value_read(in, 4, &back), 0);
  CHECK_EQUAL(back, 1);
  CHECK_EQUAL(launch_kernel({.name = "_Z1kv",
                             .grid = {1, 1, 1},
                             .block = {2048, 1, 1},
                             .shared_bytes = 0,
                             .arguments = nullptr,
                             .stream = stream,
                             .call = 0}),
              9); // too many threads
  mem_free(out);
  mem_free(in);
}

static int callbacks_run = 0;

static void graphs_hold_what_was_captured() {
  Stream *a, *b;
  void *forked, *joined;
  stream_create(kStreamNonBlocking, 0, &a);
  stream_create(kStreamNonBlocking, 0, &b);
  event_create(kEventDisableTiming, &forked);
  event_create(kEventDisableTiming, &joined);
  CHECK_EQUAL(capture_begin(stream_of(nullptr), CaptureMode::kGlobal, nullptr), kCaptureUnsupported);
  // What a capture does not allow fails, and the capture with it.
  void *graph, *exec;
  CHECK_EQUAL(capture_begin(a, CaptureMode::kGlobal, nullptr), kSuccess);
  CHECK_EQUAL(capture_info(a).status, 1);
  CHECK_EQUAL(stream_synchronize(b, 0), kCaptureUnsupported); // global mode forbids it anywhere
  CHECK_EQUAL(capture_info(a).status, 2);
  CHECK_EQUAL(capture_end(a, &graph), kCaptureInvalidated);
  CHECK(graph == nullptr);
  CHECK(!capture_forbids_unsafe_call());
  CHECK_EQUAL(capture_begin(a, CaptureMode::kThreadLocal, nullptr), kSuccess);
  event_record(forked, a, 0);
  CHECK_EQUAL(event_query(forked, 0), kCapturedEvent);
  CHECK_EQUAL(capture_end(a, &graph), kCaptureInvalidated);
  // Fork and join.
  CHECK_EQUAL(capture_begin(a, CaptureMode::kGlobal, nullptr), kSuccess);
  uint32_t sig = signature("test:work", signatures::Library{});
  launch_operation(a, sig, 0);
  event_record(forked, a, 0);
  stream_wait(b, forked, 0);
  CHECK_EQUAL(capture_info(b).status, 1); // joined
  launch_operation(b, sig, 0);
  launch_operation(a, sig, 0);
  event_record(joined, b, 0);
  stream_callback(a, [](void *count) { ++*static_cast<int *>(count); }, &callbacks_run, 0);
  stream_wait(a, joined, 0);
  launch_operation(a, sig, 0);
  CHECK_EQUAL(capture_end(b, &graph), kCaptureUnmatched);
  CHECK_EQUAL(capture_end(a, &graph), kSuccess);
  CHECK(!capture_forbids_unsafe_call());
  CHECK_EQUAL(graph_nodes(graph, nullptr, 0), 5);
  CHECK_EQUAL(graph_roots(graph, nullptr, 0), 1);
  CHECK_EQUAL(graph_edges(graph, nullptr, nullptr, 0), 5);
  CHECK_EQUAL(callbacks_run, 0);
  CHECK_EQUAL(graph_instantiate(graph, &exec), kSuccess);
  CHECK_EQUAL(graph_launch(exec, a, 0), kSuccess);
  CHECK_EQUAL(graph_launch(exec, b, 0), kSuccess);
  CHECK_EQUAL(callbacks_run, 2);
  graph_exec_destroy(exec);
  graph_destroy(graph);
  // A stream that was not joined back makes the capture fail.
  capture_begin(a, CaptureMode::kThreadLocal, nullptr);
  launch_operation(a, sig, 0);
  event_record(forked, a, 0);
  stream_wait(b, forked, 0);
  launch_operation(b, sig, 0);
  CHECK_EQUAL(capture_end(a, &graph), kCaptureUnjoined);
  CHECK_EQUAL(capture_info(b).status, 0);
  event_destroy(forked);
  event_destroy(joined);
  stream_destroy(a);
  stream_destroy(b);
}

static void signatures_are_interned() {
  signatures::Gemm first{}, second{};
  first.m = second.n = 1;
  first.n = second.m = 2;
  CHECK_EQUAL(signature("x", first), signature("x", first));
  CHECK(signature("x", first) != signature("x", second));
  CHECK(signature("x", first) != signature("y", first));
  CHECK(call_id("cudaMalloc") < 1024);
  CHECK(signature("x", first) >= 1024);
}

int main() {
  test::enter_server("mode=null\ndevices=2\ngpu.memory_bytes=1073741824\ngpu.context_bytes=104857600\n");
  memory_is_charged_and_given_back();
  virtual_ranges_are_mapped_and_reused();
  what_the_host_wrote_can_be_read_back();
  a_launch_makes_its_output_unknown();
  graphs_hold_what_was_captured();
  signatures_are_interned();
  return test::result();
}
