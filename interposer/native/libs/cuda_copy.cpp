// Driver: copies and sets.
//
// One call is one copy of the core (linear or pitched). A 3D call is one copy where its slices lie back to back, else
// one per slice. Copies from and to CUDA arrays are not modelled.
#include "cuda_driver.h"

#include "copies.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

Status linear(void *to, const void *from, size_t bytes, CopyKind kind, CUstream handle, bool synchronous,
              uint16_t call) {
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  if (bytes == 0)
    return kSuccess;
  return copy_checked(to, from, bytes, kind, on, synchronous, call);
}

// Reads one end of a copy from the structure that describes it. Returns false for an array.
template <class Description> bool box_of(const Description &d, bool source, size_t rows, size_t z, Box *out) {
  const CUmemorytype type = source ? d.srcMemoryType : d.dstMemoryType;
  if (type == CU_MEMORYTYPE_ARRAY)
    return false;
  const void *at =
      type == CU_MEMORYTYPE_HOST ? (source ? d.srcHost : d.dstHost) : pointer(source ? d.srcDevice : d.dstDevice);
  *out = {at, source ? d.srcPitch : d.dstPitch, rows, source ? d.srcXInBytes : d.dstXInBytes, source ? d.srcY : d.dstY,
          z};
  return true;
}

Status boxed(const Box &to, const Box &from, size_t width, size_t height, size_t depth, CUstream handle,
             bool synchronous, uint16_t call) {
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  return copy_box(to, from, width, height, depth, CopyKind::kByAddress, on, synchronous, call);
}

Status arrays() {
  unmodelled("cuda", "copies with arrays");
  return kNotSupported;
}

Status flat(const CUDA_MEMCPY2D *p, CUstream handle, bool synchronous, uint16_t call) {
  Box to, from;
  if (p == nullptr)
    return kInvalidValue;
  CUDA_MEMCPY2D d = *p; // rows without gaps may leave the pitch out
  if (d.srcPitch == 0)
    d.srcPitch = d.WidthInBytes + d.srcXInBytes;
  if (d.dstPitch == 0)
    d.dstPitch = d.WidthInBytes + d.dstXInBytes;
  if (!box_of(d, false, d.Height, 0, &to) || !box_of(d, true, d.Height, 0, &from))
    return arrays();
  return boxed(to, from, d.WidthInBytes, d.Height, 1, handle, synchronous, call);
}

template <class Description> Status solid(const Description *p, CUstream handle, bool synchronous, uint16_t call) {
  Box to, from;
  if (p == nullptr)
    return kInvalidValue;
  Description d = *p;
  if (d.srcPitch == 0)
    d.srcPitch = d.WidthInBytes + d.srcXInBytes;
  if (d.dstPitch == 0)
    d.dstPitch = d.WidthInBytes + d.dstXInBytes;
  if (!box_of(d, false, d.dstHeight != 0 ? d.dstHeight : d.Height, d.dstZ, &to) ||
      !box_of(d, true, d.srcHeight != 0 ? d.srcHeight : d.Height, d.srcZ, &from))
    return arrays();
  return boxed(to, from, d.WidthInBytes, d.Height, d.Depth, handle, synchronous, call);
}

Status fill(CUdeviceptr to, unsigned value, size_t element_bytes, size_t pitch, size_t width, size_t height,
            CUstream handle, bool synchronous, uint16_t call) {
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  if (to % element_bytes != 0 || (height > 1 && pitch % element_bytes != 0))
    return kInvalidValue;
  return set_box(pointer(to), value, element_bytes, pitch, width, height, 1, height, on, synchronous, call);
}

} // namespace

extern "C" {

// ---- linear -------------------------------------------------------------------------------------------------------
EID_DEFAULT_STREAM(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
                   result(linear(pointer(to), pointer(from), bytes, CopyKind::kByAddress, stream, true,
                                 EID_CALL("cuMemcpy"))))
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return result(
      linear(pointer(to), pointer(from), bytes, CopyKind::kByAddress, handle, false, EID_CALL("cuMemcpyAsync")));
}
EID_PER_THREAD(4, cuMemcpyAsync)
EID_DEFAULT_STREAM(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes),
                   result(linear(pointer(to), from, bytes, CopyKind::kHostToDevice, stream, true,
                                 EID_CALL("cuMemcpyHtoD"))))
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
  return result(
      linear(pointer(to), from, bytes, CopyKind::kHostToDevice, handle, false, EID_CALL("cuMemcpyHtoDAsync")));
}
EID_PER_THREAD(4, cuMemcpyHtoDAsync_v2)
EID_DEFAULT_STREAM(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes),
                   result(linear(to, pointer(from), bytes, CopyKind::kDeviceToHost, stream, true,
                                 EID_CALL("cuMemcpyDtoH"))))
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return result(
      linear(to, pointer(from), bytes, CopyKind::kDeviceToHost, handle, false, EID_CALL("cuMemcpyDtoHAsync")));
}
EID_PER_THREAD(4, cuMemcpyDtoHAsync_v2)
EID_DEFAULT_STREAM(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
                   result(linear(pointer(to), pointer(from), bytes, CopyKind::kDeviceToDevice, stream, true,
                                 EID_CALL("cuMemcpyDtoD"))))
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return result(linear(pointer(to), pointer(from), bytes, CopyKind::kDeviceToDevice, handle, false,
                       EID_CALL("cuMemcpyDtoDAsync")));
}
EID_PER_THREAD(4, cuMemcpyDtoDAsync_v2)
// The contexts are not needed, since the addresses say on which device the memory is.
EID_DEFAULT_STREAM(cuMemcpyPeer, (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes),
                   result(linear(pointer(to), pointer(from), bytes, CopyKind::kByAddress, stream, false,
                                 EID_CALL("cuMemcpyPeer"))))
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream handle) {
  return result(
      linear(pointer(to), pointer(from), bytes, CopyKind::kByAddress, handle, false, EID_CALL("cuMemcpyPeerAsync")));
}
EID_PER_THREAD(6, cuMemcpyPeerAsync)

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *,
                               size_t *, size_t, CUstream handle) {
  if (count == 0 || to == nullptr || from == nullptr || sizes == nullptr || handle == nullptr ||
      handle == CU_STREAM_LEGACY) // the driver refuses them too: batches want a real stream
    return result(kInvalidValue);
  for (size_t i = 0; i < count; ++i)
    if (Status status = linear(pointer(to[i]), pointer(from[i]), sizes[i], CopyKind::kByAddress, handle, false,
                               EID_CALL("cuMemcpyBatchAsync")))
      return result(status);
  return result(kSuccess);
}
EID_PER_THREAD(8, cuMemcpyBatchAsync_v2)

// ---- two and three dimensions ---------------------------------------------------------------------------------------
EID_DEFAULT_STREAM(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *p), result(flat(p, stream, true, EID_CALL("cuMemcpy2D"))))
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream handle) {
  return result(flat(p, handle, false, EID_CALL("cuMemcpy2DAsync")));
}
EID_PER_THREAD(2, cuMemcpy2DAsync_v2)
EID_DEFAULT_STREAM(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *p),
                   result(flat(p, stream, true, EID_CALL("cuMemcpy2D"))))
EID_DEFAULT_STREAM(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *p), result(solid(p, stream, true, EID_CALL("cuMemcpy3D"))))
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream handle) {
  return result(solid(p, handle, false, EID_CALL("cuMemcpy3DAsync")));
}
EID_PER_THREAD(2, cuMemcpy3DAsync_v2)
EID_DEFAULT_STREAM(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *p),
                   result(solid(p, stream, true, EID_CALL("cuMemcpy3DPeer"))))
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream handle) {
  return result(solid(p, handle, false, EID_CALL("cuMemcpy3DPeerAsync")));
}
EID_PER_THREAD(2, cuMemcpy3DPeerAsync)

// ---- sets ---------------------------------------------------------------------------------------------------------

// Defines cuMemsetD8, cuMemsetD16, cuMemsetD32 and cuMemsetD2D8, cuMemsetD2D16, cuMemsetD2D32, each in its four forms.
#define EID_SETS(bits, Value)                                                                                          \
  EID_DEFAULT_STREAM(cuMemsetD##bits##_v2, (CUdeviceptr to, Value value, size_t count),                                \
                     result(fill(to, value, sizeof(Value), count * sizeof(Value), count, 1, stream, true,              \
                                 EID_CALL("cuMemsetD" #bits))))                                                        \
  CUresult cuMemsetD##bits##Async(CUdeviceptr to, Value value, size_t count, CUstream handle) {                        \
    return result(fill(to, value, sizeof(Value), count * sizeof(Value), count, 1, handle, false,                       \
                       EID_CALL("cuMemsetD" #bits "Async")));                                                          \
  }                                                                                                                    \
  EID_PER_THREAD(4, cuMemsetD##bits##Async)                                                                            \
  EID_DEFAULT_STREAM(                                                                                                  \
      cuMemsetD2D##bits##_v2, (CUdeviceptr to, size_t pitch, Value value, size_t width, size_t height),                \
      result(fill(to, value, sizeof(Value), pitch, width, height, stream, true, EID_CALL("cuMemsetD2D" #bits))))       \
  CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, Value value, size_t width, size_t height,            \
                                    CUstream handle) {                                                                 \
    return result(                                                                                                     \
        fill(to, value, sizeof(Value), pitch, width, height, handle, false, EID_CALL("cuMemsetD2D" #bits "Async")));   \
  }                                                                                                                    \
  EID_PER_THREAD(6, cuMemsetD2D##bits##Async)

EID_SETS(8, unsigned char)
EID_SETS(16, unsigned short)
EID_SETS(32, unsigned)

} // extern "C"
