// Runtime: stream capture and graphs.
#include "cudart.h"

#include "graphs.h"

using namespace eidolon;
using namespace eidolon::runtime;

static_assert(static_cast<int>(NodeType::kEventRecord) == cudaGraphNodeTypeEventRecord);
static_assert(static_cast<int>(CaptureStatus::kInvalidated) == cudaStreamCaptureStatusInvalidated);
static_assert(static_cast<int>(CaptureMode::kRelaxed) == cudaStreamCaptureModeRelaxed);
static_assert(static_cast<int>(CopyKind::kByAddress) == cudaMemcpyDefault);

namespace {

template <class Parameters> Status kernel_node(Stream *stream, const Parameters &p) {
  if (p.kernelParams == nullptr && p.extra != nullptr)
    return kNotSupported; // packed arguments
  return launch(p.func, p.gridDim, p.blockDim, p.kernelParams, p.sharedMemBytes, handle_of(stream), 0);
}

template <class Parameters> Status set_node(Stream *stream, const Parameters &p) {
  return memset_node(stream, p.dst, p.pitch, p.value, p.elementSize, p.width, p.height);
}

Status copy_node(Stream *stream, const cudaMemcpy3DParms &p) {
  return static_cast<Status>(cudaMemcpy3DAsync(&p, handle_of(stream)));
}

} // namespace

extern "C" {

// ---- capture ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return report(begin_capture(kRuntime, stream, nullptr, nullptr, 0, mode));
}
EID_PER_THREAD(2, cudaStreamBeginCapture)

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                          const cudaGraphEdgeData *, size_t count, cudaStreamCaptureMode mode) {
  return report(begin_capture_to_graph(kRuntime, stream, graph, dependencies, count, mode));
}
EID_PER_THREAD(6, cudaStreamBeginCaptureToGraph)

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  return report(end_capture(kRuntime, stream, graph));
}
EID_PER_THREAD(2, cudaStreamEndCapture)

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out) {
  return report(capture_state(kRuntime, stream, out));
}
EID_PER_THREAD(2, cudaStreamIsCapturing)

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *out, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  return report(capture_details(kRuntime, stream, out, id, graph, dependencies, edges, count));
}
EID_PER_THREAD(7, cudaStreamGetCaptureInfo)

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *dependencies,
                                                const cudaGraphEdgeData *, size_t count, unsigned flags) {
  return report(update_dependencies(kRuntime, stream, dependencies, count, flags));
}
EID_PER_THREAD(5, cudaStreamUpdateCaptureDependencies)

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) { return report(exchange_mode(mode)); }

// ---- graphs -------------------------------------------------------------------------------------------------------

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) { return report(create_graph(kRuntime, graph, flags)); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return report(destroy_graph(graph)); }
cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t graph) { return report(clone_graph(out, graph)); }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return report(list_nodes(graph, nodes, count));
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return report(list_roots(graph, nodes, count));
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *data,
                              size_t *count) {
  return report(list_edges(graph, from, to, data, count));
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, cudaGraphEdgeData *data,
                                         size_t *count) {
  return report(list_dependencies(node, dependencies, data, count));
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type) {
  return report(type_of_node(node, type));
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned) {
  return report(write_dot(graph, path));
}

// ---- instantiated graphs ------------------------------------------------------------------------------------------

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  return report(instantiate(kRuntime, out, graph, flags, EID_CALL("cudaGraphInstantiate")));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  return report(instantiate(kRuntime, out, graph, flags, EID_CALL("cudaGraphInstantiate")));
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *out, cudaGraph_t graph,
                                           cudaGraphInstantiateParams *parameters) {
  if (parameters == nullptr)
    return report(kInvalidValue);
  Status status = instantiate(kRuntime, out, graph, parameters->flags, EID_CALL("cudaGraphInstantiate"));
  parameters->errNode_out = nullptr;
  parameters->result_out = status == kSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
  return report(status);
}
EID_PER_THREAD(3, cudaGraphInstantiateWithParams)

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long *flags) {
  return report(exec_flags().get(exec, flags));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return report(exec_flags().erase(exec) ? graph_exec_destroy(exec) : kInvalidValue);
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *info) {
  return report(update_exec(exec, graph, info, cudaGraphExecUpdateSuccess, cudaGraphExecUpdateErrorTopologyChanged,
                            EID_CALL("cudaGraphExecUpdate")));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return report(upload_exec(kRuntime, exec, stream, EID_CALL("cudaGraphUpload")));
}
EID_PER_THREAD(2, cudaGraphUpload)

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return report(launch_exec(kRuntime, exec, stream, EID_CALL("cudaGraphLaunch")));
}
EID_PER_THREAD(2, cudaGraphLaunch)

// ---- nodes by hand ------------------------------------------------------------------------------------------------

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const cudaKernelNodeParams *p) {
  const NewNode made{kRuntime, node, graph, dependencies, count};
  return report(p == nullptr ? kInvalidValue : made.of([p](Stream *stream) { return kernel_node(stream, *p); }));
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const cudaMemcpy3DParms *p) {
  const NewNode made{kRuntime, node, graph, dependencies, count};
  return report(p == nullptr ? kInvalidValue : made.of([p](Stream *stream) { return copy_node(stream, *p); }));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                     size_t count, void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return report(NewNode{kRuntime, node, graph, dependencies, count}.of(
      [=](Stream *stream) { return copy_checked(to, from, bytes, static_cast<CopyKind>(kind), stream, false, 0); }));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                   size_t count, const cudaMemsetParams *p) {
  const NewNode made{kRuntime, node, graph, dependencies, count};
  return report(p == nullptr ? kInvalidValue : made.of([p](Stream *stream) { return set_node(stream, *p); }));
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                 size_t count, const cudaHostNodeParams *p) {
  return report(add_host_node({kRuntime, node, graph, dependencies, count}, p));
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                  size_t count) {
  return report(add_empty_node({kRuntime, node, graph, dependencies, count}));
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                        size_t count, cudaEvent_t event) {
  return report(add_event_record_node({kRuntime, node, graph, dependencies, count}, event));
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                      size_t count, cudaEvent_t event) {
  return report(add_event_wait_node({kRuntime, node, graph, dependencies, count}, event));
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                             const cudaGraphEdgeData *, size_t count, cudaGraphNodeParams *p) {
  return report(add_any_node({kRuntime, node, graph, dependencies, count}, p, copy_node,
                             kernel_node<cudaKernelNodeParamsV2>, set_node<cudaMemsetParamsV2>));
}

// ---- objects whose life a graph shares ----------------------------------------------------------------------------

cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *data, cudaHostFn_t destroy, unsigned references,
                                 unsigned flags) {
  return report(create_user_object(out, data, destroy, references, flags));
}
cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  return report(retain_user_object(object, count));
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  return report(release_user_object(object, count));
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
  return report(give_user_object(graph, object, count, flags));
}

} // extern "C"
