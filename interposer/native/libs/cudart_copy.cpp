// Runtime: copies and sets.
//
// One call is one copy of the core (linear or pitched). A 3D call is one copy where its slices lie back to back, else
// one per slice. Copies from and to CUDA arrays are not modelled.
#include "cudart.h"

#include "copies.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

Status check_kind(int kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault ? kSuccess : kInvalidDirection;
}

Status linear(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle, bool synchronous,
              uint16_t call) {
  if (Status status = check_kind(kind))
    return status;
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  if (bytes == 0)
    return kSuccess;
  return copy_checked(to, from, bytes, static_cast<CopyKind>(kind), stream, synchronous, call);
}

Status pitched(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
               cudaMemcpyKind kind, cudaStream_t handle, bool synchronous, uint16_t call) {
  if (Status status = check_kind(kind))
    return status;
  if (width > to_pitch || width > from_pitch)
    return kInvalidPitch;
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  return copy_2d(to, to_pitch, from, from_pitch, width, height, static_cast<CopyKind>(kind), stream, synchronous, call);
}

Status boxed(const cudaMemcpy3DParms *p, cudaStream_t handle, bool synchronous, uint16_t call) {
  if (p == nullptr)
    return kInvalidValue;
  if (p->srcArray != nullptr || p->dstArray != nullptr) {
    unmodelled("cudart", "cudaMemcpy3D with arrays");
    return kNotSupported;
  }
  if (Status status = check_kind(p->kind))
    return status;
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  return copy_box({p->dstPtr.ptr, p->dstPtr.pitch, p->dstPtr.ysize, p->dstPos.x, p->dstPos.y, p->dstPos.z},
                  {p->srcPtr.ptr, p->srcPtr.pitch, p->srcPtr.ysize, p->srcPos.x, p->srcPos.y, p->srcPos.z},
                  p->extent.width, p->extent.height, p->extent.depth, static_cast<CopyKind>(p->kind), stream,
                  synchronous, call);
}

Status boxed_peer(const cudaMemcpy3DPeerParms *p, cudaStream_t handle, bool synchronous, uint16_t call) {
  if (p == nullptr)
    return kInvalidValue;
  if (!valid_device(p->srcDevice) || !valid_device(p->dstDevice))
    return present() != kSuccess ? kNoDevice : kInvalidDevice;
  cudaMemcpy3DParms plain = {};
  plain.srcArray = p->srcArray;
  plain.srcPos = p->srcPos;
  plain.srcPtr = p->srcPtr;
  plain.dstArray = p->dstArray;
  plain.dstPos = p->dstPos;
  plain.dstPtr = p->dstPtr;
  plain.extent = p->extent;
  plain.kind = cudaMemcpyDefault;
  return boxed(&plain, handle, synchronous, call);
}

Status peer(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t handle,
            bool synchronous, uint16_t call) {
  if (Status status = present())
    return status;
  if (!valid_device(to_device) || !valid_device(from_device))
    return kInvalidDevice;
  return linear(to, from, bytes, cudaMemcpyDefault, handle, synchronous, call);
}

// `offset` and `bytes` must lie inside the variable.
Status to_symbol(const void *variable, const void *from, size_t bytes, size_t offset, cudaMemcpyKind kind,
                 cudaStream_t stream, bool synchronous, uint16_t call) {
  if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
    return kInvalidDirection;
  void *address;
  size_t size;
  if (Status status = symbol(variable, &address, &size))
    return status;
  if (offset > size || bytes > size - offset)
    return kInvalidValue;
  return linear(static_cast<char *>(address) + offset, from, bytes, kind, stream, synchronous, call);
}

Status from_symbol(void *to, const void *variable, size_t bytes, size_t offset, cudaMemcpyKind kind,
                   cudaStream_t stream, bool synchronous, uint16_t call) {
  if (kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
    return kInvalidDirection;
  void *address;
  size_t size;
  if (Status status = symbol(variable, &address, &size))
    return status;
  if (offset > size || bytes > size - offset)
    return kInvalidValue;
  return linear(to, static_cast<char *>(address) + offset, bytes, kind, stream, synchronous, call);
}

Status fill(void *to, int value, size_t pitch, size_t width, size_t height, size_t depth, size_t slice_rows,
            cudaStream_t handle, bool synchronous, uint16_t call) {
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  return set_box(to, static_cast<unsigned>(value) & 0xff, 1, pitch, width, height, depth, slice_rows, stream,
                 synchronous, call);
}

// `failed` may be null. It gets the number of the copy that an error is about, or SIZE_MAX if the error is about the
// call.
Status batch(void *const *to, const void *const *from, const size_t *sizes, size_t count, size_t *failed,
             cudaStream_t handle, uint16_t call) {
  if (failed != nullptr)
    *failed = SIZE_MAX;
  if (count == 0 || to == nullptr || from == nullptr || sizes == nullptr)
    return kInvalidValue;
  if (handle == nullptr || handle == cudaStreamLegacy) // CUDA refuses them too: batches want a real stream
    return kInvalidValue;
  for (size_t i = 0; i < count; ++i)
    if (Status status = linear(to[i], from[i], sizes[i], cudaMemcpyDefault, handle, false, call)) {
      if (failed != nullptr)
        *failed = i;
      return status;
    }
  return kSuccess;
}

} // namespace

extern "C" {

// ---- linear -------------------------------------------------------------------------------------------------------

EID_DEFAULT_STREAM(cudaMemcpy, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind),
                   report(linear(to, from, bytes, kind, stream, true, EID_CALL("cudaMemcpy"))))
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return report(linear(to, from, bytes, kind, stream, false, EID_CALL("cudaMemcpyAsync")));
}
EID_PER_THREAD(5, cudaMemcpyAsync)
#if EIDOLON_CUDA == 12 // this form also says which copy failed, and takes its lists as pointers to non-const
cudaError_t cudaMemcpyBatchAsync(void **to, void **from, size_t *sizes, size_t count, cudaMemcpyAttributes *, size_t *,
                                 size_t, size_t *failed, cudaStream_t stream) {
  return report(batch(to, from, sizes, count, failed, stream, EID_CALL("cudaMemcpyBatchAsync")));
}
EID_PER_THREAD(9, cudaMemcpyBatchAsync)
#else
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *sizes, size_t count,
                                 cudaMemcpyAttributes *, size_t *, size_t, cudaStream_t stream) {
  return report(batch(to, from, sizes, count, nullptr, stream, EID_CALL("cudaMemcpyBatchAsync")));
}
EID_PER_THREAD(8, cudaMemcpyBatchAsync)
#endif

// ---- between devices ----------------------------------------------------------------------------------------------

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  return report(peer(to, to_device, from, from_device, bytes, nullptr, false, EID_CALL("cudaMemcpyPeer")));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return report(peer(to, to_device, from, from_device, bytes, stream, false, EID_CALL("cudaMemcpyPeerAsync")));
}

// ---- two and three dimensions -------------------------------------------------------------------------------------

EID_DEFAULT_STREAM(
    cudaMemcpy2D,
    (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind),
    report(pitched(to, to_pitch, from, from_pitch, width, height, kind, stream, true, EID_CALL("cudaMemcpy2D"))))
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return report(
      pitched(to, to_pitch, from, from_pitch, width, height, kind, stream, false, EID_CALL("cudaMemcpy2DAsync")));
}
EID_PER_THREAD(8, cudaMemcpy2DAsync)
EID_DEFAULT_STREAM(cudaMemcpy3D, (const cudaMemcpy3DParms *p), report(boxed(p, stream, true, EID_CALL("cudaMemcpy3D"))))
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms *p, cudaStream_t stream) {
  return report(boxed(p, stream, false, EID_CALL("cudaMemcpy3DAsync")));
}
EID_PER_THREAD(2, cudaMemcpy3DAsync)
EID_DEFAULT_STREAM(cudaMemcpy3DPeer, (const cudaMemcpy3DPeerParms *p),
                   report(boxed_peer(p, stream, false, EID_CALL("cudaMemcpy3DPeer"))))
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
  return report(boxed_peer(p, stream, false, EID_CALL("cudaMemcpy3DPeerAsync")));
}
EID_PER_THREAD(2, cudaMemcpy3DPeerAsync)

// ---- variables ----------------------------------------------------------------------------------------------------

EID_DEFAULT_STREAM(cudaMemcpyToSymbol,
                   (const void *variable, const void *from, size_t bytes, size_t offset, cudaMemcpyKind kind),
                   report(to_symbol(variable, from, bytes, offset, kind, stream, true, EID_CALL("cudaMemcpyToSymbol"))))
cudaError_t cudaMemcpyToSymbolAsync(const void *variable, const void *from, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return report(to_symbol(variable, from, bytes, offset, kind, stream, false, EID_CALL("cudaMemcpyToSymbolAsync")));
}
EID_PER_THREAD(6, cudaMemcpyToSymbolAsync)
EID_DEFAULT_STREAM(cudaMemcpyFromSymbol,
                   (void *to, const void *variable, size_t bytes, size_t offset, cudaMemcpyKind kind),
                   report(from_symbol(to, variable, bytes, offset, kind, stream, true,
                                      EID_CALL("cudaMemcpyFromSymbol"))))
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *variable, size_t bytes, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return report(from_symbol(to, variable, bytes, offset, kind, stream, false, EID_CALL("cudaMemcpyFromSymbolAsync")));
}
EID_PER_THREAD(6, cudaMemcpyFromSymbolAsync)

// ---- sets ---------------------------------------------------------------------------------------------------------

EID_DEFAULT_STREAM(cudaMemset, (void *to, int value, size_t bytes),
                   report(fill(to, value, bytes, bytes, 1, 1, 1, stream, true, EID_CALL("cudaMemset"))))
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return report(fill(to, value, bytes, bytes, 1, 1, 1, stream, false, EID_CALL("cudaMemsetAsync")));
}
EID_PER_THREAD(4, cudaMemsetAsync)
EID_DEFAULT_STREAM(cudaMemset2D, (void *to, size_t pitch, int value, size_t width, size_t height),
                   report(fill(to, value, pitch, width, height, 1, height, stream, true, EID_CALL("cudaMemset2D"))))
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return report(fill(to, value, pitch, width, height, 1, height, stream, false, EID_CALL("cudaMemset2DAsync")));
}
EID_PER_THREAD(6, cudaMemset2DAsync)
EID_DEFAULT_STREAM(cudaMemset3D, (cudaPitchedPtr to, int value, cudaExtent extent),
                   report(fill(to.ptr, value, to.pitch, extent.width, extent.height, extent.depth, to.ysize, stream,
                               true, EID_CALL("cudaMemset3D"))))
cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream) {
  return report(fill(to.ptr, value, to.pitch, extent.width, extent.height, extent.depth, to.ysize, stream, false,
                     EID_CALL("cudaMemset3DAsync")));
}
EID_PER_THREAD(4, cudaMemset3DAsync)

} // extern "C"
