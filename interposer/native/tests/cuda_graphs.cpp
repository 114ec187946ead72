// Stream capture and graphs through the runtime library, without a simulation behind it (mode=null).
//
// What is expected here was checked on an H100: built with -DREAL_GPU against NVIDIA's own libraries, it passes there
// too.
#include <cuda_runtime_api.h>

#include <atomic>
#include <vector>

#include "cuda12_names.h"
#include "harness.h"

static constexpr size_t kMiB = size_t{1} << 20;

#define OK(call) CHECK_EQUAL(call, cudaSuccess)
// A call that fails with an error, which is then the last one and is cleared by reading it.
#define FAILS(call, error)                                                                                             \
  do {                                                                                                                 \
    CHECK_EQUAL(call, error);                                                                                          \
    CHECK_EQUAL(cudaPeekAtLastError(), error);                                                                         \
    CHECK_EQUAL(cudaGetLastError(), error);                                                                            \
    CHECK_EQUAL(cudaGetLastError(), cudaSuccess);                                                                      \
  } while (0)

// Two streams, two events and some device memory.
struct Fork {
  cudaStream_t s, t;
  cudaEvent_t fork, join;
  char *device;
  Fork() {
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    OK(cudaEventCreate(&fork));
    OK(cudaEventCreate(&join));
    OK(cudaMalloc(reinterpret_cast<void **>(&device), kMiB));
  }
  Fork(const Fork &) = delete;
  Fork &operator=(const Fork &) = delete;
  ~Fork() {
    OK(cudaFree(device));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
  }
};

// Sets on two streams, joined by a callback that counts its runs in `replays`.
static cudaGraph_t capture(Fork &on, std::atomic<int> *replays) {
  auto &[s, t, fork, join, device] = on;
  cudaGraph_t graph;
  FAILS(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorIllegalState);

  cudaStreamCaptureStatus status;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  FAILS(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  OK(cudaStreamIsCapturing(s, &status));
  CHECK_EQUAL(status, cudaStreamCaptureStatusActive);
  OK(cudaMemsetAsync(device, 1, 100, s));
  OK(cudaEventRecord(fork, s));
  OK(cudaStreamWaitEvent(t, fork, 0)); // t joins the capture
  OK(cudaMemsetAsync(device + 200, 2, 100, t));
  OK(cudaMemsetAsync(device + 400, 3, 100, s));
  OK(cudaEventRecord(join, t));
  OK(cudaStreamWaitEvent(s, join, 0));
  OK(cudaLaunchHostFunc(s, [](void *data) { static_cast<std::atomic<int> *>(data)->fetch_add(1); }, replays));
  unsigned long long id = 0;
  cudaGraph_t inside = nullptr;
  const cudaGraphNode_t *last = nullptr;
  const cudaGraphEdgeData *edges = nullptr;
  size_t count = 0;
  OK(cudaStreamGetCaptureInfo(s, &status, &id, &inside, &last, &edges, &count));
  CHECK(status == cudaStreamCaptureStatusActive && id != 0 && inside != nullptr && count == 1);
  OK(cudaStreamEndCapture(s, &graph));
  return graph;
}

static void captures_become_graphs() {
  Fork on;
  std::atomic<int> replays{0};
  cudaGraph_t graph = capture(on, &replays);
  size_t count;
  OK(cudaGraphGetNodes(graph, nullptr, &count));
  CHECK_EQUAL(count, 4);
  std::vector<cudaGraphNode_t> nodes(count);
  OK(cudaGraphGetNodes(graph, nodes.data(), &count));
  int sets = 0;
  size_t host_dependencies = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(node, &type));
    sets += type == cudaGraphNodeTypeMemset ? 1 : 0;
    if (type == cudaGraphNodeTypeHost)
      OK(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &host_dependencies));
  }
  CHECK_EQUAL(sets, 3);
  CHECK_EQUAL(host_dependencies, 2);
  OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  CHECK_EQUAL(count, 4);
  OK(cudaGraphGetRootNodes(graph, nullptr, &count));
  CHECK_EQUAL(count, 1);

  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphUpload(exec, on.s));
  CHECK_EQUAL(replays.load(), 0);
  OK(cudaGraphLaunch(exec, on.s));
  OK(cudaGraphLaunch(exec, on.s));
  OK(cudaStreamSynchronize(on.s));
  CHECK_EQUAL(replays.load(), 2);
  unsigned char bytes[500];
  OK(cudaMemcpy(bytes, on.device, sizeof bytes, cudaMemcpyDeviceToHost));
  CHECK(bytes[99] == 1 && bytes[299] == 2 && bytes[499] == 3);
  cudaGraph_t copy;
  OK(cudaGraphClone(&copy, graph));
  cudaGraphExecUpdateResultInfo info;
  OK(cudaGraphExecUpdate(exec, copy, &info));
  CHECK_EQUAL(info.result, cudaGraphExecUpdateSuccess);
  OK(cudaGraphDestroy(copy));
  OK(cudaGraphDestroy(graph));
  OK(cudaGraphLaunch(exec, on.s)); // outlives its graph
  OK(cudaStreamSynchronize(on.s));
  CHECK_EQUAL(replays.load(), 3);
  OK(cudaGraphExecDestroy(exec));
  FAILS(cudaGraphExecDestroy(nullptr), cudaErrorInvalidValue);
  FAILS(cudaGraphDestroy(nullptr), cudaErrorInvalidValue);
}

static void what_spoils_a_capture() {
  Fork on;
  auto &[s, t, fork, join, device] = on;
  cudaStreamCaptureStatus status;
  cudaGraph_t graph;
  void *spoiled;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  FAILS(cudaMalloc(&spoiled, 100), cudaErrorStreamCaptureUnsupported);
  OK(cudaStreamIsCapturing(s, &status));
  CHECK_EQUAL(status, cudaStreamCaptureStatusInvalidated);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  FAILS(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
  FAILS(cudaMemsetAsync(device, 1, 100, s), cudaErrorStreamCaptureInvalidated);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  OK(cudaMalloc(&spoiled, 100));
  OK(cudaFree(spoiled));
  FAILS(cudaStreamQuery(s), cudaErrorStreamCaptureUnsupported);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(fork, s));
  FAILS(cudaEventQuery(fork), cudaErrorCapturedEvent);
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(fork, s));
  OK(cudaStreamWaitEvent(t, fork, 0));
  OK(cudaMemsetAsync(device, 0, 10, t)); // never joined
  FAILS(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureUnjoined);
  OK(cudaStreamIsCapturing(t, &status));
  CHECK_EQUAL(status, cudaStreamCaptureStatusNone);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK_EQUAL(mode, cudaStreamCaptureModeGlobal);
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  OK(cudaMalloc(&spoiled, 100)); // this thread may
  OK(cudaStreamEndCapture(s, &graph));
  OK(cudaGraphDestroy(graph));
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaFree(spoiled));
}

static void graphs_by_hand() {
  cudaGraph_t graph;
  cudaGraphNode_t first, second, copy, host, joined;
  unsigned char *device;
  unsigned char bytes[64] = {};
  OK(cudaMalloc(reinterpret_cast<void **>(&device), 4096));
  OK(cudaGraphCreate(&graph, 0));
  cudaMemsetParams set = {};
  set.dst = device;
  set.value = 0x01020304;
  set.elementSize = 4;
  set.width = 8;
  set.height = 1;
  OK(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, &set));
  set.dst = device + 32;
  set.value = 9;
  OK(cudaGraphAddMemsetNode(&second, graph, nullptr, 0, &set));
  cudaGraphNode_t both[] = {first, second};
  OK(cudaGraphAddEmptyNode(&joined, graph, both, 2));
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &joined, 1, bytes, device, sizeof bytes, cudaMemcpyDeviceToHost));
  std::atomic<int> seen{0};
  cudaHostNodeParams call = {};
  call.fn = [](void *data) { static_cast<std::atomic<int> *>(data)->store(1); };
  call.userData = &seen;
  OK(cudaGraphAddHostNode(&host, graph, &copy, 1, &call));
  size_t count;
  OK(cudaGraphGetNodes(graph, nullptr, &count));
  CHECK_EQUAL(count, 5);
  OK(cudaGraphGetRootNodes(graph, nullptr, &count));
  CHECK_EQUAL(count, 2);
  OK(cudaGraphNodeGetDependencies(joined, nullptr, nullptr, &count));
  CHECK_EQUAL(count, 2);
  int freed = 0;
  cudaUserObject_t object;
  OK(cudaUserObjectCreate(
      &object, &freed, [](void *data) { *static_cast<int *>(data) = 1; }, 1, cudaUserObjectNoDestructorSync));
  OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  cudaGraphExec_t exec;
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  CHECK_EQUAL(freed, 0); // the executable graph keeps it
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK_EQUAL(seen.load(), 1);
  CHECK(bytes[0] == 4 && bytes[3] == 1 && bytes[31] == 1 && bytes[32] == 9 && bytes[33] == 0 && bytes[60] == 9);
  OK(cudaGraphExecDestroy(exec));
  for (int i = 0; i < 1000 && freed == 0; ++i) // may be done by another thread
    usleep(1000);
  CHECK_EQUAL(freed, 1);
  OK(cudaStreamDestroy(stream));
  OK(cudaFree(device));
}

int main() {
#ifndef REAL_GPU
  test::enter_server("mode=null\n");
#endif
  captures_become_graphs();
  what_spoils_a_capture();
  graphs_by_hand();
  return test::result();
}
