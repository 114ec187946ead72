// Runtime of CUDA 12 only: the forms of functions that CUDA 13 dropped (cuda12_names.h). They call the forms that it
// kept.
#if EIDOLON_CUDA == 12
#define EIDOLON_EARLIER_NAMES
#include "cudart.h"

#undef cudaStreamGetCaptureInfo // the header makes it _v2

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

// Where CUDA 12 takes a device number, cudaCpuDeviceId means the host.
Status location(int device, cudaMemLocation *out) {
  if (device == cudaCpuDeviceId) {
    *out = {cudaMemLocationTypeHost, 0};
    return kSuccess;
  }
  *out = {cudaMemLocationTypeDevice, device};
  return valid_device(device) ? kSuccess : kInvalidDevice;
}

} // namespace

extern "C" {

// ---- capture and graphs, without edge data: there is none but that of plain dependencies --------------------------

EID_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *out,
                                                unsigned long long *id) {
  return cudaStreamGetCaptureInfo_v3(stream, out, id, nullptr, nullptr, nullptr, nullptr);
}
EID_PER_THREAD(3, cudaStreamGetCaptureInfo)
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *out, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
  return cudaStreamGetCaptureInfo_v3(stream, out, id, graph, dependencies, nullptr, count);
}
EID_PER_THREAD(6, cudaStreamGetCaptureInfo_v2)

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *dependencies, size_t count,
                                                unsigned flags) {
  return cudaStreamUpdateCaptureDependencies_v2(stream, dependencies, nullptr, count, flags);
}
EID_PER_THREAD(4, cudaStreamUpdateCaptureDependencies)

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count) {
  return cudaGraphGetEdges_v2(graph, from, to, nullptr, count);
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, size_t *count) {
  return cudaGraphNodeGetDependencies_v2(node, dependencies, nullptr, count);
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                             size_t count, cudaGraphNodeParams *p) {
  return cudaGraphAddNode_v2(node, graph, dependencies, nullptr, count, p);
}

// ---- managed memory, placed by device number ----------------------------------------------------------------------

cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, cudaMemoryAdvise advice, int device) {
  cudaMemLocation place;
  if (Status status = location(device, &place))
    return report(status);
  return cudaMemAdvise_v2(pointer, bytes, advice, place);
}
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, int device, cudaStream_t stream) {
  cudaMemLocation place;
  if (Status status = location(device, &place))
    return report(status);
  return cudaMemPrefetchAsync_v2(pointer, bytes, place, 0, stream);
}
EID_PER_THREAD(4, cudaMemPrefetchAsync)

// ---- events: the later form differs in the errors it tells apart, which there are none of ---------------------------

cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return cudaEventElapsedTime(ms, start, end);
}

} // extern "C"
#endif
