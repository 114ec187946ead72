// The handle of the fake cuBLAS and the steps that every computing call shares.
#pragma once
#include "blas.h"

struct cublasContext {
  int device;
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  int sm_target = 0;
  void *workspace = nullptr; // given by the caller
  size_t workspace_bytes = 0;
  void *own = nullptr; // the handle's own device memory (cublas.handle_bytes)
  int emulation_strategy = 0, special_values = 0, mantissa_control = 0, mantissa_max = 0, mantissa_offset = 0;
  int *mantissa_pointer = nullptr;
};

#define EID_BLAS extern "C" EID_API cublasStatus_t

namespace eidolon::blas {

// The stream that the calls of this handle go to, or nullptr.
Stream *stream_of_handle(cublasHandle_t handle);

// Launches one operation on the handle's stream.
cublasStatus_t launch(cublasHandle_t handle, uint32_t sig, uint16_t call);

// Delivers a scalar result, which was never computed. In device pointer mode its bytes become unknown. In host mode the
// call waits for the stream, as the real one does; the value then reads as 0, and the read is counted.
cublasStatus_t scalar_result(cublasHandle_t handle, void *result, size_t bytes, const char *name, uint16_t call);

inline bool valid(cublasOperation_t op) { return op >= CUBLAS_OP_N && op <= CUBLAS_OP_CONJG; }
inline bool transposed(cublasOperation_t op) { return op == CUBLAS_OP_T || op == CUBLAS_OP_C; }

} // namespace eidolon::blas

// Defines one function per data type, once for 32-bit and once for 64-bit sizes ("_64").
#define EID_BLAS_REAL(X)                                                                                               \
  X(S, float, CUDA_R_32F, , int)                                                                                       \
  X(S, float, CUDA_R_32F, _64, int64_t) X(D, double, CUDA_R_64F, , int) X(D, double, CUDA_R_64F, _64, int64_t)
#define EID_BLAS_COMPLEX(X)                                                                                            \
  X(C, cuComplex, CUDA_C_32F, , int)                                                                                   \
  X(C, cuComplex, CUDA_C_32F, _64, int64_t)                                                                            \
  X(Z, cuDoubleComplex, CUDA_C_64F, , int) X(Z, cuDoubleComplex, CUDA_C_64F, _64, int64_t)
#define EID_BLAS_ALL(X) EID_BLAS_REAL(X) EID_BLAS_COMPLEX(X)
