// Driver: stream capture and graphs.
#include "cuda_driver.h"

#include "cuda_launch.h"
#include "graphs.h"

using namespace eidolon;
using namespace eidolon::driver;

static_assert(static_cast<int>(NodeType::kEventRecord) == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
static_assert(static_cast<int>(CaptureStatus::kInvalidated) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
static_assert(static_cast<int>(CaptureMode::kRelaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);

namespace {

template <class Parameters> Status kernel_node(Stream *on, const Parameters &p) {
  const void *kernel = p.func != nullptr ? static_cast<const void *>(p.func) : static_cast<const void *>(p.kern);
  return launch(kernel, {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes,
                handle_of(on), p.kernelParams, p.extra, 0);
}

template <class Parameters> Status set_node(Stream *on, const Parameters &p) {
  return memset_node(on, pointer(p.dst), p.pitch, p.value, p.elementSize, p.width, p.height);
}

Status copy_node(Stream *on, const CUDA_MEMCPY3D &p) {
  return static_cast<Status>(cuMemcpy3DAsync_v2(&p, handle_of(on)));
}

} // namespace

extern "C" {

// ---- capture ------------------------------------------------------------------------------------------------------

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return result(begin_capture(kDriver, handle, nullptr, nullptr, 0, mode));
}
EID_PER_THREAD(2, cuStreamBeginCapture_v2)

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *, size_t count, CUstreamCaptureMode mode) {
  return result(begin_capture_to_graph(kDriver, handle, graph, dependencies, count, mode));
}
EID_PER_THREAD(6, cuStreamBeginCaptureToGraph)

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) { return result(end_capture(kDriver, handle, graph)); }
EID_PER_THREAD(2, cuStreamEndCapture)

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *out) {
  return result(capture_state(kDriver, handle, out));
}
EID_PER_THREAD(2, cuStreamIsCapturing)

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count) {
  return result(capture_details(kDriver, handle, out, id, graph, dependencies, edges, count));
}
EID_PER_THREAD(7, cuStreamGetCaptureInfo_v3)
EID_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id,
                                              CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
  return cuStreamGetCaptureInfo_v3(handle, out, id, graph, dependencies, nullptr, count);
}
EID_PER_THREAD(6, cuStreamGetCaptureInfo_v2)

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies, const CUgraphEdgeData *,
                                              size_t count, unsigned flags) {
  return result(update_dependencies(kDriver, handle, dependencies, count, flags));
}
EID_PER_THREAD(5, cuStreamUpdateCaptureDependencies_v2)

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) { return result(exchange_mode(mode)); }

// ---- graphs -------------------------------------------------------------------------------------------------------

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) { return result(create_graph(kDriver, graph, flags)); }
CUresult cuGraphDestroy(CUgraph graph) { return result(destroy_graph(graph)); }
CUresult cuGraphClone(CUgraph *out, CUgraph graph) { return result(clone_graph(out, graph)); }

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  return result(list_nodes(graph, nodes, count));
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  return result(list_roots(graph, nodes, count));
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count) {
  return result(list_edges(graph, from, to, data, count));
}
#undef cuGraphGetEdges
EID_EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  return cuGraphGetEdges_v2(graph, from, to, nullptr, count);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *data,
                                       size_t *count) {
  return result(list_dependencies(node, dependencies, data, count));
}
#undef cuGraphNodeGetDependencies
EID_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
  return cuGraphNodeGetDependencies_v2(node, dependencies, nullptr, count);
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) { return result(type_of_node(node, type)); }
CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned) { return result(write_dot(graph, path)); }

// ---- instantiated graphs ------------------------------------------------------------------------------------------

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  return result(instantiate(kDriver, out, graph, flags, EID_CALL("cuGraphInstantiate")));
}
CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  if (parameters == nullptr)
    return result(kInvalidValue);
  Status status = instantiate(kDriver, out, graph, parameters->flags, EID_CALL("cuGraphInstantiate"));
  parameters->hErrNode_out = nullptr;
  parameters->result_out = status == kSuccess ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result(status);
}
EID_PER_THREAD(3, cuGraphInstantiateWithParams)

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) { return result(exec_flags().get(exec, flags)); }

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (exec == nullptr)
    return result(kInvalidValue);
  exec_flags().erase(exec);
  return result(graph_exec_destroy(exec));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  return result(update_exec(exec, graph, info, CU_GRAPH_EXEC_UPDATE_SUCCESS,
                            CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, EID_CALL("cuGraphExecUpdate")));
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  return result(upload_exec(kDriver, exec, handle, EID_CALL("cuGraphUpload")));
}
EID_PER_THREAD(2, cuGraphUpload)

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  return result(launch_exec(kDriver, exec, handle, EID_CALL("cuGraphLaunch")));
}
EID_PER_THREAD(2, cuGraphLaunch)

// ---- nodes by hand ------------------------------------------------------------------------------------------------

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *p) {
  const NewNode made{kDriver, node, graph, dependencies, count};
  return result(p == nullptr ? kInvalidValue : made.of([p](Stream *on) { return kernel_node(on, *p); }));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMCPY3D *p, CUcontext) {
  const NewNode made{kDriver, node, graph, dependencies, count};
  return result(p == nullptr ? kInvalidValue : made.of([p](Stream *on) { return copy_node(on, *p); }));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext) {
  const NewNode made{kDriver, node, graph, dependencies, count};
  return result(p == nullptr ? kInvalidValue : made.of([p](Stream *on) { return set_node(on, *p); }));
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *p) {
  return result(add_host_node({kDriver, node, graph, dependencies, count}, p));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count) {
  return result(add_empty_node({kDriver, node, graph, dependencies, count}));
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUevent event) {
  return result(add_event_record_node({kDriver, node, graph, dependencies, count}, event));
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 CUevent event) {
  return result(add_event_wait_node({kDriver, node, graph, dependencies, count}, event));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *,
                           size_t count, CUgraphNodeParams *p) {
  return result(add_any_node({kDriver, node, graph, dependencies, count}, p, copy_node,
                             kernel_node<CUDA_KERNEL_NODE_PARAMS_v3>, set_node<CUDA_MEMSET_NODE_PARAMS_v2>));
}
#undef cuGraphAddNode
EID_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUgraphNodeParams *p) {
  return cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, p);
}

// ---- objects whose life a graph shares ----------------------------------------------------------------------------

CUresult cuUserObjectCreate(CUuserObject *out, void *data, CUhostFn destroy, unsigned references, unsigned flags) {
  return result(create_user_object(out, data, destroy, references, flags));
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned count) { return result(retain_user_object(object, count)); }
CUresult cuUserObjectRelease(CUuserObject object, unsigned count) { return result(release_user_object(object, count)); }
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  return result(give_user_object(graph, object, count, flags));
}

} // extern "C"
