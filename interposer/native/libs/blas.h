// What the fake cuBLAS and cuBLASLt share: element sizes, status mapping, and how a matrix product is reported.
//
// Neither library computes. A call checks its arguments as the real one does, makes exactly the bytes it would have
// written unknown, and launches one operation whose signature says what its cost depends on.
#pragma once
#include <cublas_v2.h>
#include <library_types.h>

#include <algorithm>
#include <cstdint>

#include "core.h"

namespace eidolon::blas {

// Bits of one element; 4-bit types are packed.
constexpr int64_t bits_of(int type) {
  switch (type) {
  case CUDA_R_4I:
  case CUDA_R_4U:
  case 33: // CUDA_R_4F_E2M1
    return 4;
  case CUDA_R_8I:
  case CUDA_R_8U:
  case CUDA_C_4I:
  case CUDA_C_4U:
  case CUDA_R_8F_E4M3:
  case CUDA_R_8F_E5M2:
  case 30: // CUDA_R_8F_UE8M0
    return 8;
  case CUDA_R_16F:
  case CUDA_R_16BF:
  case CUDA_R_16I:
  case CUDA_R_16U:
  case CUDA_C_8I:
  case CUDA_C_8U:
    return 16;
  case CUDA_R_64F:
  case CUDA_R_64I:
  case CUDA_R_64U:
  case CUDA_C_32F:
  case CUDA_C_32I:
  case CUDA_C_32U:
    return 64;
  case CUDA_C_64F:
  case CUDA_C_64I:
  case CUDA_C_64U:
    return 128;
  default:
    return 32; // R_32F, R_32I, R_32U, C_16F, C_16BF, C_16I, C_16U
  }
}
constexpr int64_t bytes_of(int type, int64_t elements) { return (bits_of(type) * elements + 7) / 8; }

inline cublasStatus_t status_of(Status status) {
  switch (status) {
  case kSuccess:
    return CUBLAS_STATUS_SUCCESS;
  case kInvalidValue:
    return CUBLAS_STATUS_INVALID_VALUE;
  case kOutOfMemory:
    return CUBLAS_STATUS_ALLOC_FAILED;
  case kNotInitialized:
    return CUBLAS_STATUS_NOT_INITIALIZED;
  case kNotSupported:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  default:
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

inline const char *status_name(cublasStatus_t status) {
#define EID_CASE(name)                                                                                                 \
  case name:                                                                                                           \
    return #name;
  switch (status) {
    EID_CASE(CUBLAS_STATUS_SUCCESS)
    EID_CASE(CUBLAS_STATUS_NOT_INITIALIZED)
    EID_CASE(CUBLAS_STATUS_ALLOC_FAILED)
    EID_CASE(CUBLAS_STATUS_INVALID_VALUE)
    EID_CASE(CUBLAS_STATUS_ARCH_MISMATCH)
    EID_CASE(CUBLAS_STATUS_MAPPING_ERROR)
    EID_CASE(CUBLAS_STATUS_EXECUTION_FAILED)
    EID_CASE(CUBLAS_STATUS_INTERNAL_ERROR)
    EID_CASE(CUBLAS_STATUS_NOT_SUPPORTED)
    EID_CASE(CUBLAS_STATUS_LICENSE_ERROR)
  }
#undef EID_CASE
  return "unknown cuBLAS status";
}

inline const char *status_text(cublasStatus_t status) {
  switch (status) {
  case CUBLAS_STATUS_SUCCESS:
    return "success";
  case CUBLAS_STATUS_NOT_INITIALIZED:
    return "the library was not initialized";
  case CUBLAS_STATUS_ALLOC_FAILED:
    return "resource allocation failed inside the library";
  case CUBLAS_STATUS_INVALID_VALUE:
    return "an unsupported value or parameter was passed";
  case CUBLAS_STATUS_NOT_SUPPORTED:
    return "the requested functionality is not supported (emulated device)";
  case CUBLAS_STATUS_EXECUTION_FAILED:
    return "the operation failed to execute";
  default:
    return status_name(status);
  }
}

// Makes `runs` runs of `run_bytes` unknown that lie `pitch_bytes` apart, such as the columns of a matrix or the
// matrices of a batch.
inline void written(void *start, int64_t run_bytes, int64_t pitch_bytes, int64_t runs) {
  if (start == nullptr || run_bytes <= 0 || runs <= 0)
    return;
  if (pitch_bytes == run_bytes) {
    value_unknown(start, static_cast<size_t>(run_bytes * runs));
    return;
  }
  for (int64_t i = 0; i < runs; ++i)
    value_unknown(static_cast<char *>(start) + i * pitch_bytes, static_cast<size_t>(run_bytes));
}

// A column-major matrix, or a batch of them `stride` elements apart.
inline void matrix_written(void *start, int type, int64_t rows, int64_t cols, int64_t ld, int64_t stride = 0,
                           int64_t batch = 1) {
  const int64_t column = bytes_of(type, rows), pitch = bytes_of(type, ld), matrix = column * cols;
  if (pitch == column) {
    written(start, matrix, batch > 1 ? bytes_of(type, stride) : matrix, batch);
    return;
  }
  for (int64_t i = 0; i < batch; ++i)
    written(static_cast<char *>(start) + i * bytes_of(type, stride), column, pitch, cols);
}

// Says where the matrices of a pointer array lie, as far as the shim knows the bytes of the array.
template <class Visit> void for_each_known(const void *device_array, int64_t count, Visit visit) {
  if (device_array == nullptr)
    return;
  for (int64_t i = 0; i < count; ++i) {
    const char *at = static_cast<const char *>(device_array) + i * 8;
    void *pointer = nullptr;
    if (!is_device(at)) // some callers pass host arrays
      pointer = *reinterpret_cast<void *const *>(at);
    else if (value_known(at, 8) == 8)
      value_read(at, 8, &pointer);
    if (pointer != nullptr)
      visit(pointer, i);
  }
}

struct Gemm {
  int64_t m, n, k, batch;
  bool ta, tb;
  int a_type, c_type, compute, epilogue;
};
// The "gemm" signature of a call.
inline uint32_t signature_of(const char *call, const Gemm &g) {
  const signatures::Gemm fields = {.m = g.m,
                                   .n = g.n,
                                   .k = g.k,
                                   .batch = g.batch,
                                   .ta = g.ta,
                                   .tb = g.tb,
                                   .atype = g.a_type,
                                   .ctype = g.c_type,
                                   .computetype = g.compute,
                                   .epilogue = g.epilogue,
                                   .op = current_operator()};
  return signature(call, fields);
}

// The "library" signature of anything else; `name` is "cublas:cublasSaxpy_v2".
inline uint32_t library_signature(const char *name, int64_t bytes, int64_t flops) {
  const signatures::Library fields = {.bytes = bytes, .flops = flops, .op = current_operator()};
  return signature(name, fields);
}

} // namespace eidolon::blas
