// Driver: copies and sets.
//
// One call is one copy of the core (linear or pitched); a 3D call is one where its slices lie back to back, else one
// per slice. Copies from and to CUDA arrays are not modelled.
#include "cuda_driver.h"

#include "copies.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

enum Kind { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kByAddress = 4 };

const CUstream kLegacy = nullptr;
const CUstream kOwn = CU_STREAM_PER_THREAD;

Status linear(void *to, const void *from, size_t bytes, Kind kind, CUstream handle, bool synchronous, uint16_t call) {
  Stream *on;
  if (Status status = work_stream(handle, &on))
    return status;
  if (bytes == 0)
    return kSuccess;
  return copy_checked(to, from, bytes, kind, on, synchronous, call);
}

// An end of a copy that is described by a structure. False for an array.
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
  return copy_box(to, from, width, height, depth, kByAddress, on, synchronous, call);
}

Status arrays() {
  unmodelled("cuda", "copies with arrays");
  return kNotSupported;
}

Status flat(const CUDA_MEMCPY2D *p, CUstream handle, bool synchronous, uint16_t call) {
  Box to, from;
  if (p == nullptr)
    return kInvalidValue;
  CUDA_MEMCPY2D d = *p; // rows that are not apart: the pitch may be left out
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
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return result(linear(pointer(to), pointer(from), bytes, kByAddress, kLegacy, true, EID_CALL("cuMemcpy")));
}
EID_EXPORT CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return result(linear(pointer(to), pointer(from), bytes, kByAddress, kOwn, true, EID_CALL("cuMemcpy")));
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return result(linear(pointer(to), pointer(from), bytes, kByAddress, handle, false, EID_CALL("cuMemcpyAsync")));
}
EID_EXPORT CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return cuMemcpyAsync(to, from, bytes, per_thread(handle));
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  return result(linear(pointer(to), from, bytes, kHostToDevice, kLegacy, true, EID_CALL("cuMemcpyHtoD")));
}
EID_EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
  return result(linear(pointer(to), from, bytes, kHostToDevice, kOwn, true, EID_CALL("cuMemcpyHtoD")));
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
  return result(linear(pointer(to), from, bytes, kHostToDevice, handle, false, EID_CALL("cuMemcpyHtoDAsync")));
}
EID_EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream handle) {
  return cuMemcpyHtoDAsync_v2(to, from, bytes, per_thread(handle));
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  return result(linear(to, pointer(from), bytes, kDeviceToHost, kLegacy, true, EID_CALL("cuMemcpyDtoH")));
}
EID_EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
  return result(linear(to, pointer(from), bytes, kDeviceToHost, kOwn, true, EID_CALL("cuMemcpyDtoH")));
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return result(linear(to, pointer(from), bytes, kDeviceToHost, handle, false, EID_CALL("cuMemcpyDtoHAsync")));
}
EID_EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return cuMemcpyDtoHAsync_v2(to, from, bytes, per_thread(handle));
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return result(linear(pointer(to), pointer(from), bytes, kDeviceToDevice, kLegacy, true, EID_CALL("cuMemcpyDtoD")));
}
EID_EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return result(linear(pointer(to), pointer(from), bytes, kDeviceToDevice, kOwn, true, EID_CALL("cuMemcpyDtoD")));
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return result(
      linear(pointer(to), pointer(from), bytes, kDeviceToDevice, handle, false, EID_CALL("cuMemcpyDtoDAsync")));
}
EID_EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return cuMemcpyDtoDAsync_v2(to, from, bytes, per_thread(handle));
}
// The contexts say nothing that the addresses do not.
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return result(linear(pointer(to), pointer(from), bytes, kByAddress, kLegacy, false, EID_CALL("cuMemcpyPeer")));
}
EID_EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return result(linear(pointer(to), pointer(from), bytes, kByAddress, kOwn, false, EID_CALL("cuMemcpyPeer")));
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream handle) {
  return result(linear(pointer(to), pointer(from), bytes, kByAddress, handle, false, EID_CALL("cuMemcpyPeerAsync")));
}
EID_EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                           CUcontext from_context, size_t bytes, CUstream handle) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, per_thread(handle));
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *,
                               size_t *, size_t, CUstream handle) {
  if (count == 0 || to == nullptr || from == nullptr || sizes == nullptr || handle == nullptr ||
      handle == CU_STREAM_LEGACY) // as the driver: batches want a real stream
    return result(kInvalidValue);
  for (size_t i = 0; i < count; ++i)
    if (Status status = linear(pointer(to[i]), pointer(from[i]), sizes[i], kByAddress, handle, false,
                               EID_CALL("cuMemcpyBatchAsync")))
      return result(status);
  return result(kSuccess);
}
EID_EXPORT CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                               CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                                               CUstream handle) {
  return cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, indices, attribute_count, per_thread(handle));
}

// ---- two and three dimensions ---------------------------------------------------------------------------------------
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) { return result(flat(p, kLegacy, true, EID_CALL("cuMemcpy2D"))); }
EID_EXPORT CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p) {
  return result(flat(p, kOwn, true, EID_CALL("cuMemcpy2D")));
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream handle) {
  return result(flat(p, handle, false, EID_CALL("cuMemcpy2DAsync")));
}
EID_EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *p, CUstream handle) {
  return cuMemcpy2DAsync_v2(p, per_thread(handle));
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) {
  return result(flat(p, kLegacy, true, EID_CALL("cuMemcpy2D")));
}
EID_EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p) {
  return result(flat(p, kOwn, true, EID_CALL("cuMemcpy2D")));
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) { return result(solid(p, kLegacy, true, EID_CALL("cuMemcpy3D"))); }
EID_EXPORT CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *p) {
  return result(solid(p, kOwn, true, EID_CALL("cuMemcpy3D")));
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream handle) {
  return result(solid(p, handle, false, EID_CALL("cuMemcpy3DAsync")));
}
EID_EXPORT CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *p, CUstream handle) {
  return cuMemcpy3DAsync_v2(p, per_thread(handle));
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p) {
  return result(solid(p, kLegacy, true, EID_CALL("cuMemcpy3DPeer")));
}
EID_EXPORT CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *p) {
  return result(solid(p, kOwn, true, EID_CALL("cuMemcpy3DPeer")));
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream handle) {
  return result(solid(p, handle, false, EID_CALL("cuMemcpy3DPeerAsync")));
}
EID_EXPORT CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *p, CUstream handle) {
  return cuMemcpy3DPeerAsync(p, per_thread(handle));
}

// ---- sets ---------------------------------------------------------------------------------------------------------

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return result(fill(to, value, 1, count * 1, count, 1, kLegacy, true, EID_CALL("cuMemsetD8")));
}
EID_EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
  return result(fill(to, value, 1, count * 1, count, 1, kOwn, true, EID_CALL("cuMemsetD8")));
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream handle) {
  return result(fill(to, value, 1, count * 1, count, 1, handle, false, EID_CALL("cuMemsetD8Async")));
}
EID_EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream handle) {
  return cuMemsetD8Async(to, value, count, per_thread(handle));
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return result(fill(to, value, 1, pitch, width, height, kLegacy, true, EID_CALL("cuMemsetD2D8")));
}
EID_EXPORT CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                         size_t height) {
  return result(fill(to, value, 1, pitch, width, height, kOwn, true, EID_CALL("cuMemsetD2D8")));
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream handle) {
  return result(fill(to, value, 1, pitch, width, height, handle, false, EID_CALL("cuMemsetD2D8Async")));
}
EID_EXPORT CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                           size_t height, CUstream handle) {
  return cuMemsetD2D8Async(to, pitch, value, width, height, per_thread(handle));
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return result(fill(to, value, 2, count * 2, count, 1, kLegacy, true, EID_CALL("cuMemsetD16")));
}
EID_EXPORT CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
  return result(fill(to, value, 2, count * 2, count, 1, kOwn, true, EID_CALL("cuMemsetD16")));
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream handle) {
  return result(fill(to, value, 2, count * 2, count, 1, handle, false, EID_CALL("cuMemsetD16Async")));
}
EID_EXPORT CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream handle) {
  return cuMemsetD16Async(to, value, count, per_thread(handle));
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return result(fill(to, value, 2, pitch, width, height, kLegacy, true, EID_CALL("cuMemsetD2D16")));
}
EID_EXPORT CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                          size_t height) {
  return result(fill(to, value, 2, pitch, width, height, kOwn, true, EID_CALL("cuMemsetD2D16")));
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream handle) {
  return result(fill(to, value, 2, pitch, width, height, handle, false, EID_CALL("cuMemsetD2D16Async")));
}
EID_EXPORT CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                            size_t height, CUstream handle) {
  return cuMemsetD2D16Async(to, pitch, value, width, height, per_thread(handle));
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  return result(fill(to, value, 4, count * 4, count, 1, kLegacy, true, EID_CALL("cuMemsetD32")));
}
EID_EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) {
  return result(fill(to, value, 4, count * 4, count, 1, kOwn, true, EID_CALL("cuMemsetD32")));
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream handle) {
  return result(fill(to, value, 4, count * 4, count, 1, handle, false, EID_CALL("cuMemsetD32Async")));
}
EID_EXPORT CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream handle) {
  return cuMemsetD32Async(to, value, count, per_thread(handle));
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return result(fill(to, value, 4, pitch, width, height, kLegacy, true, EID_CALL("cuMemsetD2D32")));
}
EID_EXPORT CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return result(fill(to, value, 4, pitch, width, height, kOwn, true, EID_CALL("cuMemsetD2D32")));
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream handle) {
  return result(fill(to, value, 4, pitch, width, height, handle, false, EID_CALL("cuMemsetD2D32Async")));
}
EID_EXPORT CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                                            CUstream handle) {
  return cuMemsetD2D32Async(to, pitch, value, width, height, per_thread(handle));
}

} // extern "C"
