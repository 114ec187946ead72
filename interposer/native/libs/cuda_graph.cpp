// Driver: stream capture and graphs. What is modelled is what the runtime's file (cudart_graph.cpp) says.
#include "cuda_driver.h"

#include <cstring>
#include <map>
#include <mutex>

#include "copies.h"
#include "cuda_launch.h"
#include "graphs.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

std::mutex flags_mutex;
std::map<const void *, cuuint64_t> exec_flags;

Status begin(CUstream handle, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUstreamCaptureMode mode) {
  Stream *on;
  if (Status status = stream(handle, &on))
    return status;
  if (capture_info(on).status != 0)
    return kIllegalState;
  if (Status status = capture_begin(on, mode, graph))
    return status;
  if (count == 0)
    return kSuccess;
  return capture_update_dependencies(on, reinterpret_cast<void *const *>(dependencies), count, true);
}

Status instantiate(CUgraphExec *out, CUgraph graph, cuuint64_t flags) {
  constexpr cuuint64_t kKnown = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |
                                CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (out == nullptr || graph == nullptr || (flags & ~kKnown) != 0)
    return kInvalidValue;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    unmodelled("cuda", "cuGraphInstantiate for launches from the device");
    return kNotSupported;
  }
  if (Status status = current_context())
    return status;
  host_cost(EID_CALL("cuGraphInstantiate"));
  void *exec = nullptr;
  if (Status status = graph_instantiate(graph, &exec))
    return status;
  *out = static_cast<CUgraphExec>(exec);
  std::lock_guard hold(flags_mutex);
  exec_flags[exec] = flags;
  return kSuccess;
}

template <class Operation>
Status add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, Operation operation) {
  void *made = nullptr;
  if (node == nullptr)
    return kInvalidValue;
  if (Status status = current_context())
    return status;
  Status status = add_node(&made, graph, reinterpret_cast<void *const *>(dependencies), count, operation);
  *node = static_cast<CUgraphNode>(made);
  return status;
}

CUstream handle_of(Stream *on) { return static_cast<CUstream>(stream_handle(on)); }

template <class Parameters> Status kernel_node(Stream *on, const Parameters &p) {
  const void *kernel = p.func != nullptr ? static_cast<const void *>(p.func) : static_cast<const void *>(p.kern);
  return launch(kernel, {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes,
                handle_of(on), p.kernelParams, p.extra, 0);
}

template <class Parameters> Status memset_node(Stream *on, const Parameters &p) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4)
    return kInvalidValue;
  return set_box(pointer(p.dst), p.value, p.elementSize, p.pitch, p.width, p.height, 1, p.height, on, false, 0);
}

Status unmodelled_node(const char *what) {
  unmodelled("cuda", what);
  return kNotSupported;
}

} // namespace

extern "C" {

// ---- capture ------------------------------------------------------------------------------------------------------

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return result(begin(handle, nullptr, nullptr, 0, mode));
}
EID_EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, CUstreamCaptureMode mode) {
  return cuStreamBeginCapture_v2(per_thread(handle), mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *, size_t count, CUstreamCaptureMode mode) {
  if (graph == nullptr || (count != 0 && dependencies == nullptr))
    return result(kInvalidValue);
  return result(begin(handle, graph, dependencies, count, mode));
}
EID_EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream handle, CUgraph graph, const CUgraphNode *dependencies,
                                                     const CUgraphEdgeData *data, size_t count,
                                                     CUstreamCaptureMode mode) {
  return cuStreamBeginCaptureToGraph(per_thread(handle), graph, dependencies, data, count, mode);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  Stream *on;
  if (graph == nullptr)
    return result(kInvalidValue);
  *graph = nullptr;
  if (Status status = stream(handle, &on))
    return result(status);
  if (capture_info(on).status == 0)
    return result(kIllegalState);
  void *made = nullptr;
  Status status = capture_end(on, &made);
  *graph = static_cast<CUgraph>(made);
  return result(status);
}
EID_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *graph) {
  return cuStreamEndCapture(per_thread(handle), graph);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *out) {
  Stream *on;
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  *out = static_cast<CUstreamCaptureStatus>(capture_info(on).status);
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream handle, CUstreamCaptureStatus *out) {
  return cuStreamIsCapturing(per_thread(handle), out);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count) {
  Stream *on;
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  CaptureInfo info = capture_info(on);
  *out = static_cast<CUstreamCaptureStatus>(info.status);
  if (info.status == CU_STREAM_CAPTURE_STATUS_NONE)
    return result(kSuccess);
  const bool valid = info.status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr)
    *id = info.id;
  if (graph != nullptr)
    *graph = valid ? static_cast<CUgraph>(info.graph) : nullptr;
  if (dependencies != nullptr)
    *dependencies = valid ? reinterpret_cast<const CUgraphNode *>(info.dependencies) : nullptr;
  if (edges != nullptr)
    *edges = nullptr;
  if (count != nullptr)
    *count = valid ? info.count : 0;
  return result(kSuccess);
}
EID_EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id,
                                                   CUgraph *graph, const CUgraphNode **dependencies,
                                                   const CUgraphEdgeData **edges, size_t *count) {
  return cuStreamGetCaptureInfo_v3(per_thread(handle), out, id, graph, dependencies, edges, count);
}
EID_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id,
                                              CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
  return cuStreamGetCaptureInfo_v3(handle, out, id, graph, dependencies, nullptr, count);
}
EID_EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id,
                                                   CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
  return cuStreamGetCaptureInfo_v3(per_thread(handle), out, id, graph, dependencies, nullptr, count);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies, const CUgraphEdgeData *,
                                              size_t count, unsigned flags) {
  Stream *on;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && dependencies == nullptr))
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  if (capture_info(on).status == 0)
    return result(kIllegalState);
  return result(capture_update_dependencies(on, reinterpret_cast<void *const *>(dependencies), count,
                                            flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES));
}
EID_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream handle, CUgraphNode *dependencies,
                                                              const CUgraphEdgeData *data, size_t count,
                                                              unsigned flags) {
  return cuStreamUpdateCaptureDependencies_v2(per_thread(handle), dependencies, data, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return result(kInvalidValue);
  *mode = static_cast<CUstreamCaptureMode>(capture_exchange_mode(*mode));
  return result(kSuccess);
}

// ---- graphs -------------------------------------------------------------------------------------------------------

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
  if (graph == nullptr || flags != 0)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  void *made = nullptr;
  Status status = graph_create(&made);
  *graph = static_cast<CUgraph>(made);
  return result(status);
}

CUresult cuGraphDestroy(CUgraph graph) { return result(graph != nullptr ? graph_destroy(graph) : kInvalidValue); }

CUresult cuGraphClone(CUgraph *out, CUgraph graph) {
  if (out == nullptr || graph == nullptr)
    return result(kInvalidValue);
  void *made = nullptr;
  Status status = graph_clone(graph, &made);
  *out = static_cast<CUgraph>(made);
  return result(status);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  if (graph == nullptr)
    return result(kInvalidValue);
  return result(fill_list(nodes, count, [=](void **out, size_t n) { return graph_nodes(graph, out, n); }));
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  if (graph == nullptr)
    return result(kInvalidValue);
  return result(fill_list(nodes, count, [=](void **out, size_t n) { return graph_roots(graph, out, n); }));
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr))
    return result(kInvalidValue);
  if (data != nullptr && from != nullptr)
    std::memset(data, 0, *count * sizeof *data);
  return result(fill_list(
      from, count, [=](void **out, size_t n) { return graph_edges(graph, out, reinterpret_cast<void **>(to), n); }));
}
#undef cuGraphGetEdges
EID_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  return cuGraphGetEdges_v2(graph, from, to, nullptr, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *data,
                                       size_t *count) {
  if (node == nullptr || count == nullptr)
    return result(kInvalidValue);
  if (data != nullptr && dependencies != nullptr)
    std::memset(data, 0, *count * sizeof *data);
  return result(fill_list(dependencies, count, [=](void **out, size_t n) { return node_dependencies(node, out, n); }));
}
#undef cuGraphNodeGetDependencies
EID_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
  return cuGraphNodeGetDependencies_v2(node, dependencies, nullptr, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  if (node == nullptr || type == nullptr)
    return result(kInvalidValue);
  *type = static_cast<CUgraphNodeType>(node_type(node));
  return result(kSuccess);
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned) {
  return result(graph != nullptr && path != nullptr ? write_dot(graph, path) : kInvalidValue);
}

// ---- instantiated graphs ------------------------------------------------------------------------------------------

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  return result(instantiate(out, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  if (parameters == nullptr)
    return result(kInvalidValue);
  Status status = instantiate(out, graph, parameters->flags);
  parameters->hErrNode_out = nullptr;
  parameters->result_out = status == kSuccess ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result(status);
}
EID_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  return cuGraphInstantiateWithParams(out, graph, parameters);
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
  std::lock_guard hold(flags_mutex);
  auto found = exec_flags.find(exec);
  if (flags == nullptr || found == exec_flags.end())
    return result(kInvalidValue);
  *flags = found->second;
  return result(kSuccess);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (exec == nullptr)
    return result(kInvalidValue);
  {
    std::lock_guard hold(flags_mutex);
    exec_flags.erase(exec);
  }
  return result(graph_exec_destroy(exec));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  if (exec == nullptr || graph == nullptr || info == nullptr)
    return result(kInvalidValue);
  host_cost(EID_CALL("cuGraphExecUpdate"));
  Status status = graph_exec_update(exec, graph);
  *info = {};
  info->result = status == kSuccess ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  return result(status);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  Stream *on;
  if (exec == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  host_cost(EID_CALL("cuGraphUpload"));
  return result(kSuccess);
}
EID_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream handle) {
  return cuGraphUpload(exec, per_thread(handle));
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  Stream *on;
  if (exec == nullptr)
    return result(kInvalidValue);
  if (Status status = stream(handle, &on))
    return result(status);
  if (capture_info(on).status != 0) // would be a child graph node
    return result(unmodelled_node("cuGraphLaunch in a capture"));
  return result(graph_launch(exec, on, EID_CALL("cuGraphLaunch")));
}
EID_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream handle) {
  return cuGraphLaunch(exec, per_thread(handle));
}

// ---- nodes by hand ------------------------------------------------------------------------------------------------

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *p) {
  if (p == nullptr)
    return result(kInvalidValue);
  return result(add(node, graph, dependencies, count, [p](Stream *on) { return kernel_node(on, *p); }));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMCPY3D *p, CUcontext) {
  if (p == nullptr)
    return result(kInvalidValue);
  return result(add(node, graph, dependencies, count,
                    [p](Stream *on) { return static_cast<Status>(cuMemcpy3DAsync_v2(p, handle_of(on))); }));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext) {
  if (p == nullptr)
    return result(kInvalidValue);
  return result(add(node, graph, dependencies, count, [p](Stream *on) { return memset_node(on, *p); }));
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *p) {
  if (p == nullptr || p->fn == nullptr)
    return result(kInvalidValue);
  return result(
      add(node, graph, dependencies, count, [p](Stream *on) { return stream_callback(on, p->fn, p->userData, 0); }));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
  if (node == nullptr || graph == nullptr || (count != 0 && dependencies == nullptr))
    return result(kInvalidValue);
  void *made = nullptr;
  Status status = graph_add_empty(graph, reinterpret_cast<void *const *>(dependencies), count, &made);
  *node = static_cast<CUgraphNode>(made);
  return result(status);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUevent event) {
  return result(
      add(node, graph, dependencies, count, [event](Stream *on) { return event_record_external(event, on); }));
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 CUevent event) {
  return result(add(node, graph, dependencies, count, [event](Stream *on) { return stream_wait_external(on, event); }));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *,
                           size_t count, CUgraphNodeParams *p) {
  if (p == nullptr)
    return result(kInvalidValue);
  switch (p->type) {
  case CU_GRAPH_NODE_TYPE_EMPTY:
    return cuGraphAddEmptyNode(node, graph, dependencies, count);
  case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    return cuGraphAddEventRecordNode(node, graph, dependencies, count, p->eventRecord.event);
  case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    return cuGraphAddEventWaitNode(node, graph, dependencies, count, p->eventWait.event);
  case CU_GRAPH_NODE_TYPE_MEMCPY:
    return cuGraphAddMemcpyNode(node, graph, dependencies, count, &p->memcpy.copyParams, nullptr);
  case CU_GRAPH_NODE_TYPE_KERNEL:
    return result(add(node, graph, dependencies, count, [k = &p->kernel](Stream *on) { return kernel_node(on, *k); }));
  case CU_GRAPH_NODE_TYPE_MEMSET:
    return result(add(node, graph, dependencies, count, [m = &p->memset](Stream *on) { return memset_node(on, *m); }));
  case CU_GRAPH_NODE_TYPE_HOST:
    return result(add(node, graph, dependencies, count, [h = &p->host](Stream *on) {
      return h->fn != nullptr ? stream_callback(on, h->fn, h->userData, 0) : kInvalidValue;
    }));
  case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    return result(unmodelled_node("cuGraphAddNode: conditional"));
  case CU_GRAPH_NODE_TYPE_GRAPH:
    return result(unmodelled_node("cuGraphAddNode: child graph"));
  default:
    return result(unmodelled_node("cuGraphAddNode: other"));
  }
}
#undef cuGraphAddNode
EID_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUgraphNodeParams *p) {
  return cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, p);
}

// ---- objects whose life a graph shares ----------------------------------------------------------------------------

CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy, unsigned references, unsigned flags) {
  if (out == nullptr || destroy == nullptr || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return result(kInvalidValue);
  *out = static_cast<CUuserObject>(user_object_create(data, destroy, references));
  return result(kSuccess);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  if (object == nullptr || count == 0)
    return result(kInvalidValue);
  user_object_retain(object, count);
  return result(kSuccess);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  if (object == nullptr || count == 0)
    return result(kInvalidValue);
  user_object_release(object, count);
  return result(kSuccess);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  if (graph == nullptr || object == nullptr || count == 0 ||
      (flags & ~static_cast<unsigned>(CU_GRAPH_USER_OBJECT_MOVE)) != 0)
    return result(kInvalidValue);
  graph_retain_user_object(graph, object, count, flags == CU_GRAPH_USER_OBJECT_MOVE);
  return result(kSuccess);
}

} // extern "C"
