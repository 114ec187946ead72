// Runtime: stream capture and graphs.
//
// The core holds graphs; nodes that a program adds by hand are captured (graphs.h). Nodes of child graphs, conditions,
// allocations and external semaphores are not modelled, nor is changing one node of an instantiated graph: frameworks
// capture again or update as a whole.
#include "cudart.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "copies.h"
#include "graphs.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

std::mutex flags_mutex;
std::map<const void *, unsigned long long> exec_flags;

Status begin(cudaStream_t handle, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count,
             cudaStreamCaptureMode mode) {
  Stream *stream;
  if (Status status = resolve(handle, &stream))
    return status;
  if (capture_info(stream).status != 0)
    return kIllegalState;
  if (Status status = capture_begin(stream, mode, graph))
    return status;
  if (count == 0)
    return kSuccess;
  return capture_update_dependencies(stream, reinterpret_cast<void *const *>(dependencies), count, true);
}

Status instantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  constexpr unsigned long long kKnown = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
                                        cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagUseNodePriority;
  if (out == nullptr || graph == nullptr || (flags & ~kKnown) != 0)
    return kInvalidValue;
  if ((flags & cudaGraphInstantiateFlagDeviceLaunch) != 0) {
    unmodelled("cudart", "cudaGraphInstantiate for launches from the device");
    return kNotSupported;
  }
  if (Status status = context())
    return status;
  host_cost(EID_CALL("cudaGraphInstantiate"));
  void *exec = nullptr;
  if (Status status = graph_instantiate(graph, &exec))
    return status;
  *out = static_cast<cudaGraphExec_t>(exec);
  std::lock_guard hold(flags_mutex);
  exec_flags[exec] = flags;
  return kSuccess;
}

template <class Operation>
Status add(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count,
           Operation operation) {
  void *made = nullptr;
  if (node == nullptr)
    return kInvalidValue;
  Status status = add_node(&made, graph, reinterpret_cast<void *const *>(dependencies), count, operation);
  *node = static_cast<cudaGraphNode_t>(made);
  return status;
}

cudaStream_t handle_of(Stream *stream) { return static_cast<cudaStream_t>(stream_handle(stream)); }

Status kernel_node(Stream *stream, const void *function, dim3 grid, dim3 block, unsigned shared_bytes, void **arguments,
                   void **extra) {
  if (arguments == nullptr && extra != nullptr)
    return kNotSupported; // packed arguments
  return launch(function, grid, block, arguments, shared_bytes, handle_of(stream), 0);
}

Status memset_node(Stream *stream, void *to, size_t pitch, unsigned value, unsigned element_bytes, size_t width,
                   size_t height) {
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4)
    return kInvalidValue;
  return set_box(to, value, element_bytes, pitch, width, height, 1, height, stream, false, 0);
}

Status unmodelled_node(const char *what) {
  unmodelled("cudart", what);
  return kNotSupported;
}

} // namespace

extern "C" {

// ---- capture ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return report(begin(stream, nullptr, nullptr, 0, mode));
}
EID_EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(per_thread(stream), mode);
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                          const cudaGraphEdgeData *, size_t count, cudaStreamCaptureMode mode) {
  if (graph == nullptr || (count != 0 && dependencies == nullptr))
    return report(kInvalidValue);
  return report(begin(stream, graph, dependencies, count, mode));
}
EID_EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
                                                          const cudaGraphNode_t *dependencies,
                                                          const cudaGraphEdgeData *data, size_t count,
                                                          cudaStreamCaptureMode mode) {
  return cudaStreamBeginCaptureToGraph(per_thread(stream), graph, dependencies, data, count, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  Stream *stream;
  if (graph == nullptr)
    return report(kInvalidValue);
  *graph = nullptr;
  if (Status status = resolve(handle, &stream))
    return report(status);
  if (capture_info(stream).status == 0)
    return report(kIllegalState);
  void *made = nullptr;
  Status status = capture_end(stream, &made);
  *graph = static_cast<cudaGraph_t>(made);
  return report(status);
}
EID_EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph) {
  return cudaStreamEndCapture(per_thread(stream), graph);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *out) {
  Stream *stream;
  if (out == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  *out = static_cast<cudaStreamCaptureStatus>(capture_info(stream).status);
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, cudaStreamCaptureStatus *out) {
  return cudaStreamIsCapturing(per_thread(stream), out);
}

// Edge data is that of plain dependencies (all zero), which CUDA says with a null pointer.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *out, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  Stream *stream;
  if (out == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  CaptureInfo info = capture_info(stream);
  *out = static_cast<cudaStreamCaptureStatus>(info.status);
  if (info.status == cudaStreamCaptureStatusNone)
    return cudaSuccess;
  if (id != nullptr)
    *id = info.id;
  const bool valid = info.status == cudaStreamCaptureStatusActive;
  if (graph != nullptr)
    *graph = valid ? static_cast<cudaGraph_t>(info.graph) : nullptr;
  if (dependencies != nullptr)
    *dependencies = valid ? reinterpret_cast<const cudaGraphNode_t *>(info.dependencies) : nullptr;
  if (edges != nullptr)
    *edges = nullptr;
  if (count != nullptr)
    *count = valid ? info.count : 0;
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, cudaStreamCaptureStatus *out,
                                                     unsigned long long *id, cudaGraph_t *graph,
                                                     const cudaGraphNode_t **dependencies,
                                                     const cudaGraphEdgeData **edges, size_t *count) {
  return cudaStreamGetCaptureInfo(per_thread(stream), out, id, graph, dependencies, edges, count);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t *dependencies,
                                                const cudaGraphEdgeData *, size_t count, unsigned flags) {
  Stream *stream;
  if (flags > cudaStreamSetCaptureDependencies || (count != 0 && dependencies == nullptr))
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  if (capture_info(stream).status == 0)
    return report(kIllegalState);
  return report(capture_update_dependencies(stream, reinterpret_cast<void *const *>(dependencies), count,
                                            flags == cudaStreamSetCaptureDependencies));
}
EID_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies_ptsz(cudaStream_t stream, cudaGraphNode_t *dependencies,
                                                                const cudaGraphEdgeData *data, size_t count,
                                                                unsigned flags) {
  return cudaStreamUpdateCaptureDependencies(per_thread(stream), dependencies, data, count, flags);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  if (mode == nullptr || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
    return report(kInvalidValue);
  *mode = static_cast<cudaStreamCaptureMode>(capture_exchange_mode(*mode));
  return cudaSuccess;
}

// ---- graphs -------------------------------------------------------------------------------------------------------

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
  if (graph == nullptr || flags != 0)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  void *made = nullptr;
  Status status = graph_create(&made);
  *graph = static_cast<cudaGraph_t>(made);
  return report(status);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return report(graph != nullptr ? graph_destroy(graph) : kInvalidValue);
}

cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t graph) {
  if (out == nullptr || graph == nullptr)
    return report(kInvalidValue);
  void *made = nullptr;
  Status status = graph_clone(graph, &made);
  *out = static_cast<cudaGraph_t>(made);
  return report(status);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  if (graph == nullptr)
    return report(kInvalidValue);
  return report(fill_list(nodes, count, [=](void **out, size_t n) { return graph_nodes(graph, out, n); }));
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  if (graph == nullptr)
    return report(kInvalidValue);
  return report(fill_list(nodes, count, [=](void **out, size_t n) { return graph_roots(graph, out, n); }));
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *data,
                              size_t *count) {
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr))
    return report(kInvalidValue);
  if (data != nullptr && from != nullptr)
    std::memset(data, 0, *count * sizeof *data);
  return report(fill_list(
      from, count, [=](void **out, size_t n) { return graph_edges(graph, out, reinterpret_cast<void **>(to), n); }));
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, cudaGraphEdgeData *data,
                                         size_t *count) {
  if (node == nullptr || count == nullptr)
    return report(kInvalidValue);
  if (data != nullptr && dependencies != nullptr)
    std::memset(data, 0, *count * sizeof *data);
  return report(fill_list(dependencies, count, [=](void **out, size_t n) { return node_dependencies(node, out, n); }));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type) {
  if (node == nullptr || type == nullptr)
    return report(kInvalidValue);
  *type = static_cast<cudaGraphNodeType>(node_type(node));
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned) {
  return report(graph != nullptr && path != nullptr ? write_dot(graph, path) : kInvalidValue);
}

// ---- instantiated graphs ------------------------------------------------------------------------------------------

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  return report(instantiate(out, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  return report(instantiate(out, graph, flags));
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *out, cudaGraph_t graph,
                                           cudaGraphInstantiateParams *parameters) {
  if (parameters == nullptr)
    return report(kInvalidValue);
  Status status = instantiate(out, graph, parameters->flags);
  parameters->errNode_out = nullptr;
  parameters->result_out = status == kSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
  return report(status);
}
EID_EXPORT cudaError_t cudaGraphInstantiateWithParams_ptsz(cudaGraphExec_t *out, cudaGraph_t graph,
                                                           cudaGraphInstantiateParams *parameters) {
  return cudaGraphInstantiateWithParams(out, graph, parameters);
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long *flags) {
  std::lock_guard hold(flags_mutex);
  auto found = exec_flags.find(exec);
  if (flags == nullptr || found == exec_flags.end())
    return report(kInvalidValue);
  *flags = found->second;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  {
    std::lock_guard hold(flags_mutex);
    if (exec_flags.erase(exec) == 0)
      return report(kInvalidValue);
  }
  return report(graph_exec_destroy(exec));
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *result) {
  if (exec == nullptr || graph == nullptr || result == nullptr)
    return report(kInvalidValue);
  host_cost(EID_CALL("cudaGraphExecUpdate"));
  Status status = graph_exec_update(exec, graph);
  *result = {};
  result->result = status == kSuccess ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  return report(status);
}

// What an upload moves is not modelled apart from the instantiation that it belongs to.
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle) {
  Stream *stream;
  if (exec == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  host_cost(EID_CALL("cudaGraphUpload"));
  return cudaSuccess;
}
EID_EXPORT cudaError_t cudaGraphUpload_ptsz(cudaGraphExec_t exec, cudaStream_t stream) {
  return cudaGraphUpload(exec, per_thread(stream));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  Stream *stream;
  if (exec == nullptr)
    return report(kInvalidValue);
  if (Status status = resolve(handle, &stream))
    return report(status);
  if (capture_info(stream).status != 0) // would be a child graph node
    return report(unmodelled_node("cudaGraphLaunch in a capture"));
  return report(graph_launch(exec, stream, EID_CALL("cudaGraphLaunch")));
}
EID_EXPORT cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream) {
  return cudaGraphLaunch(exec, per_thread(stream));
}

// ---- nodes by hand ------------------------------------------------------------------------------------------------

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const cudaKernelNodeParams *p) {
  if (p == nullptr)
    return report(kInvalidValue);
  return report(add(node, graph, dependencies, count, [p](Stream *stream) {
    return kernel_node(stream, p->func, p->gridDim, p->blockDim, p->sharedMemBytes, p->kernelParams, p->extra);
  }));
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const cudaMemcpy3DParms *p) {
  if (p == nullptr)
    return report(kInvalidValue);
  return report(add(node, graph, dependencies, count,
                    [p](Stream *stream) { return static_cast<Status>(cudaMemcpy3DAsync(p, handle_of(stream))); }));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                     size_t count, void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return report(add(node, graph, dependencies, count,
                    [=](Stream *stream) { return copy_checked(to, from, bytes, kind, stream, false, 0); }));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const cudaMemsetParams *p) {
  if (p == nullptr)
    return report(kInvalidValue);
  return report(add(node, graph, dependencies, count, [p](Stream *stream) {
    return memset_node(stream, p->dst, p->pitch, p->value, p->elementSize, p->width, p->height);
  }));
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                 size_t count, const cudaHostNodeParams *p) {
  if (p == nullptr || p->fn == nullptr)
    return report(kInvalidValue);
  return report(add(node, graph, dependencies, count,
                    [p](Stream *stream) { return stream_callback(stream, p->fn, p->userData, 0); }));
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                  size_t count) {
  if (node == nullptr || graph == nullptr || (count != 0 && dependencies == nullptr))
    return report(kInvalidValue);
  void *made = nullptr;
  Status status = graph_add_empty(graph, reinterpret_cast<void *const *>(dependencies), count, &made);
  *node = static_cast<cudaGraphNode_t>(made);
  return report(status);
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                        size_t count, cudaEvent_t event) {
  return report(
      add(node, graph, dependencies, count, [event](Stream *stream) { return event_record_external(event, stream); }));
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                      size_t count, cudaEvent_t event) {
  return report(
      add(node, graph, dependencies, count, [event](Stream *stream) { return stream_wait_external(stream, event); }));
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                             const cudaGraphEdgeData *, size_t count, cudaGraphNodeParams *p) {
  if (p == nullptr)
    return report(kInvalidValue);
  switch (p->type) {
  case cudaGraphNodeTypeEmpty:
    return cudaGraphAddEmptyNode(node, graph, dependencies, count);
  case cudaGraphNodeTypeEventRecord:
    return cudaGraphAddEventRecordNode(node, graph, dependencies, count, p->eventRecord.event);
  case cudaGraphNodeTypeWaitEvent:
    return cudaGraphAddEventWaitNode(node, graph, dependencies, count, p->eventWait.event);
  case cudaGraphNodeTypeMemcpy:
    return cudaGraphAddMemcpyNode(node, graph, dependencies, count, &p->memcpy.copyParams);
  case cudaGraphNodeTypeKernel:
    return report(add(node, graph, dependencies, count, [k = &p->kernel](Stream *stream) {
      return kernel_node(stream, k->func, k->gridDim, k->blockDim, k->sharedMemBytes, k->kernelParams, k->extra);
    }));
  case cudaGraphNodeTypeMemset:
    return report(add(node, graph, dependencies, count, [m = &p->memset](Stream *stream) {
      return memset_node(stream, m->dst, m->pitch, m->value, m->elementSize, m->width, m->height);
    }));
  case cudaGraphNodeTypeHost:
    return report(add(node, graph, dependencies, count, [h = &p->host](Stream *stream) {
      return h->fn != nullptr ? stream_callback(stream, h->fn, h->userData, 0) : kInvalidValue;
    }));
  case cudaGraphNodeTypeConditional:
    return report(unmodelled_node("cudaGraphAddNode: conditional"));
  case cudaGraphNodeTypeGraph:
    return report(unmodelled_node("cudaGraphAddNode: child graph"));
  default:
    return report(unmodelled_node("cudaGraphAddNode: other"));
  }
}

// ---- objects whose life a graph shares ----------------------------------------------------------------------------

cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *data, cudaHostFn_t destroy, unsigned references,
                                 unsigned flags) {
  if (out == nullptr || destroy == nullptr || references == 0 || flags != cudaUserObjectNoDestructorSync)
    return report(kInvalidValue);
  *out = static_cast<cudaUserObject_t>(user_object_create(data, destroy, references));
  return cudaSuccess;
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  if (object == nullptr || count == 0)
    return report(kInvalidValue);
  user_object_retain(object, count);
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  if (object == nullptr || count == 0)
    return report(kInvalidValue);
  user_object_release(object, count);
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
  if (graph == nullptr || object == nullptr || count == 0 || (flags & ~cudaGraphUserObjectMove) != 0)
    return report(kInvalidValue);
  graph_retain_user_object(graph, object, count, (flags & cudaGraphUserObjectMove) != 0);
  return cudaSuccess;
}

} // extern "C"
