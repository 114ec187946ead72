// Runtime: copies and sets.
//
// One call is one copy of the core (linear or pitched). A 3D call is one copy where its slices lie back to back, else
// one per slice. Copies from and to CUDA arrays are not modelled.
#include "cudart.h"

#include "copies.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

Status check_kind(int kind) { return kind >= 0 && kind <= 4 ? kSuccess : kInvalidDirection; }

Status linear(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle, bool synchronous,
              uint16_t call) {
  if (Status status = check_kind(kind))
    return status;
  Stream *stream;
  if (Status status = resolve_work(handle, &stream))
    return status;
  if (bytes == 0)
    return kSuccess;
  return copy_checked(to, from, bytes, kind, stream, synchronous, call);
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
  return copy_2d(to, to_pitch, from, from_pitch, width, height, kind, stream, synchronous, call);
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
                  p->extent.width, p->extent.height, p->extent.depth, p->kind, stream, synchronous, call);
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

// `failed` (may be null): the copy that an error is about, SIZE_MAX if it is about the call.
Status batch(void *const *to, const void *const *from, const size_t *sizes, size_t count, size_t *failed,
             cudaStream_t handle, uint16_t call) {
  if (failed != nullptr)
    *failed = SIZE_MAX;
  if (count == 0 || to == nullptr || from == nullptr || sizes == nullptr)
    return kInvalidValue;
  if (handle == nullptr || handle == cudaStreamLegacy) // as CUDA: batches want a real stream
    return kInvalidValue;
  for (size_t i = 0; i < count; ++i)
    if (Status status = linear(to[i], from[i], sizes[i], cudaMemcpyDefault, handle, false, call)) {
      if (failed != nullptr)
        *failed = i;
      return status;
    }
  return kSuccess;
}

cudaStream_t legacy() { return nullptr; }
cudaStream_t own() { return cudaStreamPerThread; }

} // namespace

extern "C" {

// ---- linear -------------------------------------------------------------------------------------------------------

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return report(linear(to, from, bytes, kind, legacy(), true, EID_CALL("cudaMemcpy")));
}
EID_EXPORT cudaError_t cudaMemcpy_ptds(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return report(linear(to, from, bytes, kind, own(), true, EID_CALL("cudaMemcpy")));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return report(linear(to, from, bytes, kind, stream, false, EID_CALL("cudaMemcpyAsync")));
}
EID_EXPORT cudaError_t cudaMemcpyAsync_ptsz(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                            cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, per_thread(stream));
}
#if EIDOLON_CUDA == 12 // also says which copy failed, and takes its lists as pointers to non-const
cudaError_t cudaMemcpyBatchAsync(void **to, void **from, size_t *sizes, size_t count, cudaMemcpyAttributes *, size_t *,
                                 size_t, size_t *failed, cudaStream_t stream) {
  return report(batch(to, from, sizes, count, failed, stream, EID_CALL("cudaMemcpyBatchAsync")));
}
EID_EXPORT cudaError_t cudaMemcpyBatchAsync_ptsz(void **to, void **from, size_t *sizes, size_t count,
                                                 cudaMemcpyAttributes *attributes, size_t *indices,
                                                 size_t attribute_count, size_t *failed, cudaStream_t stream) {
  return cudaMemcpyBatchAsync(to, from, sizes, count, attributes, indices, attribute_count, failed, per_thread(stream));
}
#else
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *sizes, size_t count,
                                 cudaMemcpyAttributes *, size_t *, size_t, cudaStream_t stream) {
  return report(batch(to, from, sizes, count, nullptr, stream, EID_CALL("cudaMemcpyBatchAsync")));
}
EID_EXPORT cudaError_t cudaMemcpyBatchAsync_ptsz(void *const *to, const void *const *from, const size_t *sizes,
                                                 size_t count, cudaMemcpyAttributes *attributes, size_t *indices,
                                                 size_t attribute_count, cudaStream_t stream) {
  return cudaMemcpyBatchAsync(to, from, sizes, count, attributes, indices, attribute_count, per_thread(stream));
}
#endif

// ---- between devices ----------------------------------------------------------------------------------------------

cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
  return report(peer(to, to_device, from, from_device, bytes, legacy(), false, EID_CALL("cudaMemcpyPeer")));
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  return report(peer(to, to_device, from, from_device, bytes, stream, false, EID_CALL("cudaMemcpyPeerAsync")));
}

// ---- two and three dimensions -------------------------------------------------------------------------------------

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  return report(pitched(to, to_pitch, from, from_pitch, width, height, kind, legacy(), true, EID_CALL("cudaMemcpy2D")));
}
EID_EXPORT cudaError_t cudaMemcpy2D_ptds(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                         size_t height, cudaMemcpyKind kind) {
  return report(pitched(to, to_pitch, from, from_pitch, width, height, kind, own(), true, EID_CALL("cudaMemcpy2D")));
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return report(
      pitched(to, to_pitch, from, from_pitch, width, height, kind, stream, false, EID_CALL("cudaMemcpy2DAsync")));
}
EID_EXPORT cudaError_t cudaMemcpy2DAsync_ptsz(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, per_thread(stream));
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms *p) {
  return report(boxed(p, legacy(), true, EID_CALL("cudaMemcpy3D")));
}
EID_EXPORT cudaError_t cudaMemcpy3D_ptds(const cudaMemcpy3DParms *p) {
  return report(boxed(p, own(), true, EID_CALL("cudaMemcpy3D")));
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms *p, cudaStream_t stream) {
  return report(boxed(p, stream, false, EID_CALL("cudaMemcpy3DAsync")));
}
EID_EXPORT cudaError_t cudaMemcpy3DAsync_ptsz(const cudaMemcpy3DParms *p, cudaStream_t stream) {
  return cudaMemcpy3DAsync(p, per_thread(stream));
}
cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms *p) {
  return report(boxed_peer(p, legacy(), false, EID_CALL("cudaMemcpy3DPeer")));
}
EID_EXPORT cudaError_t cudaMemcpy3DPeer_ptds(const cudaMemcpy3DPeerParms *p) {
  return report(boxed_peer(p, own(), false, EID_CALL("cudaMemcpy3DPeer")));
}
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
  return report(boxed_peer(p, stream, false, EID_CALL("cudaMemcpy3DPeerAsync")));
}
EID_EXPORT cudaError_t cudaMemcpy3DPeerAsync_ptsz(const cudaMemcpy3DPeerParms *p, cudaStream_t stream) {
  return cudaMemcpy3DPeerAsync(p, per_thread(stream));
}

// ---- variables ----------------------------------------------------------------------------------------------------

cudaError_t cudaMemcpyToSymbol(const void *variable, const void *from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  return report(to_symbol(variable, from, bytes, offset, kind, legacy(), true, EID_CALL("cudaMemcpyToSymbol")));
}
EID_EXPORT cudaError_t cudaMemcpyToSymbol_ptds(const void *variable, const void *from, size_t bytes, size_t offset,
                                               cudaMemcpyKind kind) {
  return report(to_symbol(variable, from, bytes, offset, kind, own(), true, EID_CALL("cudaMemcpyToSymbol")));
}
cudaError_t cudaMemcpyToSymbolAsync(const void *variable, const void *from, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return report(to_symbol(variable, from, bytes, offset, kind, stream, false, EID_CALL("cudaMemcpyToSymbolAsync")));
}
EID_EXPORT cudaError_t cudaMemcpyToSymbolAsync_ptsz(const void *variable, const void *from, size_t bytes, size_t offset,
                                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpyToSymbolAsync(variable, from, bytes, offset, kind, per_thread(stream));
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *variable, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return report(from_symbol(to, variable, bytes, offset, kind, legacy(), true, EID_CALL("cudaMemcpyFromSymbol")));
}
EID_EXPORT cudaError_t cudaMemcpyFromSymbol_ptds(void *to, const void *variable, size_t bytes, size_t offset,
                                                 cudaMemcpyKind kind) {
  return report(from_symbol(to, variable, bytes, offset, kind, own(), true, EID_CALL("cudaMemcpyFromSymbol")));
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *variable, size_t bytes, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return report(from_symbol(to, variable, bytes, offset, kind, stream, false, EID_CALL("cudaMemcpyFromSymbolAsync")));
}
EID_EXPORT cudaError_t cudaMemcpyFromSymbolAsync_ptsz(void *to, const void *variable, size_t bytes, size_t offset,
                                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpyFromSymbolAsync(to, variable, bytes, offset, kind, per_thread(stream));
}

// ---- sets ---------------------------------------------------------------------------------------------------------

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  return report(fill(to, value, bytes, bytes, 1, 1, 1, legacy(), true, EID_CALL("cudaMemset")));
}
EID_EXPORT cudaError_t cudaMemset_ptds(void *to, int value, size_t bytes) {
  return report(fill(to, value, bytes, bytes, 1, 1, 1, own(), true, EID_CALL("cudaMemset")));
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return report(fill(to, value, bytes, bytes, 1, 1, 1, stream, false, EID_CALL("cudaMemsetAsync")));
}
EID_EXPORT cudaError_t cudaMemsetAsync_ptsz(void *to, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemsetAsync(to, value, bytes, per_thread(stream));
}
cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
  return report(fill(to, value, pitch, width, height, 1, height, legacy(), true, EID_CALL("cudaMemset2D")));
}
EID_EXPORT cudaError_t cudaMemset2D_ptds(void *to, size_t pitch, int value, size_t width, size_t height) {
  return report(fill(to, value, pitch, width, height, 1, height, own(), true, EID_CALL("cudaMemset2D")));
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return report(fill(to, value, pitch, width, height, 1, height, stream, false, EID_CALL("cudaMemset2DAsync")));
}
EID_EXPORT cudaError_t cudaMemset2DAsync_ptsz(void *to, size_t pitch, int value, size_t width, size_t height,
                                              cudaStream_t stream) {
  return cudaMemset2DAsync(to, pitch, value, width, height, per_thread(stream));
}
cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent) {
  return report(fill(to.ptr, value, to.pitch, extent.width, extent.height, extent.depth, to.ysize, legacy(), true,
                     EID_CALL("cudaMemset3D")));
}
EID_EXPORT cudaError_t cudaMemset3D_ptds(cudaPitchedPtr to, int value, cudaExtent extent) {
  return report(fill(to.ptr, value, to.pitch, extent.width, extent.height, extent.depth, to.ysize, own(), true,
                     EID_CALL("cudaMemset3D")));
}
cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream) {
  return report(fill(to.ptr, value, to.pitch, extent.width, extent.height, extent.depth, to.ysize, stream, false,
                     EID_CALL("cudaMemset3DAsync")));
}
EID_EXPORT cudaError_t cudaMemset3DAsync_ptsz(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream) {
  return cudaMemset3DAsync(to, value, extent, per_thread(stream));
}

} // extern "C"
