// cuBLAS: handles, modes, versions, and copies between host and device vectors and matrices.
#include "cublas.h"
#include "status.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace eidolon::blas {

Stream *stream_of_handle(cublasHandle_t handle) {
  if (handle == nullptr)
    return nullptr;
  DeviceScope scope(handle->device); // the default stream is that of the handle's device
  return stream_of(handle->stream);
}

cublasStatus_t launch(cublasHandle_t handle, uint32_t sig, uint16_t call) {
  Stream *stream = stream_of_handle(handle);
  if (stream == nullptr)
    return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_EXECUTION_FAILED;
  return status_of(launch_operation(stream, sig, call));
}

cublasStatus_t scalar_result(cublasHandle_t handle, void *result, size_t bytes, const char *name, uint16_t call) {
  if (handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE || is_device(result)) {
    value_unknown(result, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (Status status = stream_synchronize(stream_of_handle(handle), call))
    return status_of(status);
  std::memset(result, 0, bytes);
  const signatures::Read fields = {.op = current_operator(), .default_ = static_cast<int64_t>(Origin::kNothing)};
  emit({.kind = Kind::kUnknownRead, .call = call, .sig = signature(name, fields), .value = bytes});
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace eidolon::blas

using namespace eidolon;
using namespace eidolon::blas;

EID_BLAS cublasCreate_v2(cublasHandle_t *handle) {
  if (handle == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (context() != kSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  auto *made = new (std::nothrow) cublasContext{.device = current_device()};
  if (made == nullptr)
    return CUBLAS_STATUS_ALLOC_FAILED;
  if (const auto bytes = static_cast<size_t>(setting_number("cublas.handle_bytes")))
    if (mem_alloc(made->device, bytes, &made->own) != kSuccess) {
      delete made;
      return CUBLAS_STATUS_ALLOC_FAILED;
    }
  host_cost(EID_CALL("cublasCreate_v2"));
  *handle = made;
  return CUBLAS_STATUS_SUCCESS;
}

EID_BLAS cublasDestroy_v2(cublasHandle_t handle) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (handle->own != nullptr)
    mem_free(handle->own);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

EID_BLAS cublasGetVersion_v2(cublasHandle_t, int *version) {
  if (version == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

EID_BLAS cublasGetProperty(libraryPropertyType type, int *value) {
  if (value == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  switch (type) {
  case MAJOR_VERSION:
    *value = CUBLAS_VER_MAJOR;
    return CUBLAS_STATUS_SUCCESS;
  case MINOR_VERSION:
    *value = CUBLAS_VER_MINOR;
    return CUBLAS_STATUS_SUCCESS;
  case PATCH_LEVEL:
    *value = CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

extern "C" EID_API size_t cublasGetCudartVersion(void) { return kCudaVersion; }
extern "C" EID_API const char *cublasGetStatusName(cublasStatus_t status) { return status_name(status); }
extern "C" EID_API const char *cublasGetStatusString(cublasStatus_t status) { return status_text(status); }

// ---- state of a handle -------------------------------------------------------------------------------------------

EID_BLAS cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

EID_BLAS cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  handle->workspace = nullptr; // back to the library's own, as documented
  handle->workspace_bytes = 0;
  return CUBLAS_STATUS_SUCCESS;
}

// Defines the setter and getter of one field of the handle.
#define EID_BLAS_FIELD(Set, Get, Type, field)                                                                          \
  EID_BLAS Set(cublasHandle_t handle, Type value) {                                                                    \
    if (handle == nullptr)                                                                                             \
      return CUBLAS_STATUS_NOT_INITIALIZED;                                                                            \
    handle->field = static_cast<decltype(handle->field)>(value);                                                       \
    return CUBLAS_STATUS_SUCCESS;                                                                                      \
  }                                                                                                                    \
  EID_BLAS_GETTER(Get, Type, field)
#define EID_BLAS_GETTER(Get, Type, field)                                                                              \
  EID_BLAS Get(cublasHandle_t handle, Type *value) {                                                                   \
    if (handle == nullptr)                                                                                             \
      return CUBLAS_STATUS_NOT_INITIALIZED;                                                                            \
    if (value == nullptr)                                                                                              \
      return CUBLAS_STATUS_INVALID_VALUE;                                                                              \
    *value = static_cast<Type>(handle->field);                                                                         \
    return CUBLAS_STATUS_SUCCESS;                                                                                      \
  }

EID_BLAS_GETTER(cublasGetStream_v2, cudaStream_t, stream)
EID_BLAS_FIELD(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointer_mode)
EID_BLAS_FIELD(cublasSetAtomicsMode, cublasGetAtomicsMode, cublasAtomicsMode_t, atomics)
EID_BLAS_FIELD(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math)
EID_BLAS_FIELD(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_target)
#if CUBLAS_VERSION >= 130000 // emulated precision
EID_BLAS_FIELD(cublasSetEmulationStrategy, cublasGetEmulationStrategy, cublasEmulationStrategy_t, emulation_strategy)
EID_BLAS_FIELD(cublasSetEmulationSpecialValuesSupport, cublasGetEmulationSpecialValuesSupport,
               cudaEmulationSpecialValuesSupport, special_values)
EID_BLAS_FIELD(cublasSetFixedPointEmulationMantissaControl, cublasGetFixedPointEmulationMantissaControl,
               cudaEmulationMantissaControl, mantissa_control)
EID_BLAS_FIELD(cublasSetFixedPointEmulationMaxMantissaBitCount, cublasGetFixedPointEmulationMaxMantissaBitCount, int,
               mantissa_max)
EID_BLAS_FIELD(cublasSetFixedPointEmulationMantissaBitOffset, cublasGetFixedPointEmulationMantissaBitOffset, int,
               mantissa_offset)
EID_BLAS_FIELD(cublasSetFixedPointEmulationMantissaBitCountPointer, cublasGetFixedPointEmulationMantissaBitCountPointer,
               int *, mantissa_pointer)
#endif

// ---- logging: accepted and ignored, as a library with logging off does ------------------------------------------

static cublasLogCallback logger;
EID_BLAS cublasLoggerConfigure(int, int, int, const char *) { return CUBLAS_STATUS_SUCCESS; }
EID_BLAS cublasSetLoggerCallback(cublasLogCallback callback) {
  logger = callback;
  return CUBLAS_STATUS_SUCCESS;
}
EID_BLAS cublasGetLoggerCallback(cublasLogCallback *callback) {
  if (callback == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  *callback = logger;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- vectors and matrices between host and device ----------------------------------------------------------------

static cublasStatus_t move(void *to, int64_t to_pitch, const void *from, int64_t from_pitch, int64_t width,
                           int64_t height, CopyKind kind, cudaStream_t stream, bool synchronous, uint16_t call) {
  if (width < 0 || height < 0 || to_pitch < width || from_pitch < width)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (context() != kSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  Stream *lane = stream_of(stream);
  if (lane == nullptr)
    return CUBLAS_STATUS_MAPPING_ERROR;
  Status status = copy_2d(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                          static_cast<size_t>(width), static_cast<size_t>(height), kind, lane, synchronous, call);
  return status == kSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

#define EID_BLAS_MOVES(Direction, kind, suffix, Int)                                                                   \
  EID_BLAS cublas##Direction##Vector##suffix(Int n, Int size, const void *x, Int incx, void *y, Int incy) {            \
    return move(y, int64_t{incy} * size, x, int64_t{incx} * size, size, n, kind, nullptr, true,                        \
                EID_CALL("cublas" #Direction "Vector"));                                                               \
  }                                                                                                                    \
  EID_BLAS cublas##Direction##VectorAsync##suffix(Int n, Int size, const void *x, Int incx, void *y, Int incy,         \
                                                  cudaStream_t stream) {                                               \
    return move(y, int64_t{incy} * size, x, int64_t{incx} * size, size, n, kind, stream, false,                        \
                EID_CALL("cublas" #Direction "VectorAsync"));                                                          \
  }                                                                                                                    \
  EID_BLAS cublas##Direction##Matrix##suffix(Int rows, Int cols, Int size, const void *a, Int lda, void *b, Int ldb) { \
    return move(b, int64_t{ldb} * size, a, int64_t{lda} * size, int64_t{rows} * size, cols, kind, nullptr, true,       \
                EID_CALL("cublas" #Direction "Matrix"));                                                               \
  }                                                                                                                    \
  EID_BLAS cublas##Direction##MatrixAsync##suffix(Int rows, Int cols, Int size, const void *a, Int lda, void *b,       \
                                                  Int ldb, cudaStream_t stream) {                                      \
    return move(b, int64_t{ldb} * size, a, int64_t{lda} * size, int64_t{rows} * size, cols, kind, stream, false,       \
                EID_CALL("cublas" #Direction "MatrixAsync"));                                                          \
  }
EID_BLAS_MOVES(Set, CopyKind::kHostToDevice, , int)
EID_BLAS_MOVES(Set, CopyKind::kHostToDevice, _64, int64_t)
EID_BLAS_MOVES(Get, CopyKind::kDeviceToHost, , int)
EID_BLAS_MOVES(Get, CopyKind::kDeviceToHost, _64, int64_t)
