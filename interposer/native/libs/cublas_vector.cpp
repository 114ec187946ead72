// cuBLAS levels 1 and 2: vectors, and matrix times vector.
#include "cublas.h"

#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {
using namespace eidolon;
using namespace eidolon::blas;

// Launches an operation on `vectors` vectors of n elements and on `matrix` more elements.
cublasStatus_t run(cublasHandle_t handle, const char *name, uint16_t call, int64_t n, int64_t vectors, int64_t matrix,
                   int type, int64_t flops) {
  return launch(handle, library_signature(name, bytes_of(type, n * vectors + matrix), flops), call);
}

void vector_written(void *x, int type, int64_t n, int64_t increment) {
  const int64_t step = std::abs(increment);
  if (step != 0) // strided, so only the elements themselves are written
    written(x, bytes_of(type, 1), bytes_of(type, step), n);
}

// Makes y of a matrix-vector product unknown. op(A) has the shape rows x cols.
cublasStatus_t matrix_vector(cublasHandle_t handle, const char *name, uint16_t call, cublasOperation_t trans, int64_t m,
                             int64_t n, int type, int out_type, int64_t lda, int64_t incx, void *y, int64_t incy,
                             int64_t stride_y = 0, int64_t batch = 1) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!valid(trans) || m < 0 || n < 0 || batch < 0 || lda < std::max<int64_t>(1, m) || incx == 0 || incy == 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0 || batch == 0)
    return CUBLAS_STATUS_SUCCESS;
  for (int64_t i = 0; y != nullptr && i < batch; ++i)
    vector_written(static_cast<char *>(y) + i * bytes_of(out_type, stride_y), out_type, transposed(trans) ? n : m,
                   incy);
  return run(handle, name, call, (m + n) * batch, 1, m * n * batch, type, 2 * m * n * batch);
}

} // namespace

#define EID_NAME(name) "cublas:" name, EID_CALL(name)
#define EID_NEEDS(handle, condition)                                                                                   \
  if (handle == nullptr)                                                                                               \
    return CUBLAS_STATUS_NOT_INITIALIZED;                                                                              \
  if (!(condition))                                                                                                    \
    return CUBLAS_STATUS_INVALID_VALUE;

// ---- level 1 -----------------------------------------------------------------------------------------------------

#define EID_LEVEL1(letter, T, type, suffix, Int)                                                                       \
  EID_BLAS cublas##letter##axpy_v2##suffix(cublasHandle_t handle, Int n, const T *, const T *, Int, T *y, Int incy) {  \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(y, type, n, incy);                                                                                  \
    return run(handle, EID_NAME("cublas" #letter "axpy"), n, 3, 0, type, 2 * int64_t{n});                              \
  }                                                                                                                    \
  EID_BLAS cublas##letter##copy_v2##suffix(cublasHandle_t handle, Int n, const T *, Int, T *y, Int incy) {             \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(y, type, n, incy);                                                                                  \
    return run(handle, EID_NAME("cublas" #letter "copy"), n, 2, 0, type, 0);                                           \
  }                                                                                                                    \
  EID_BLAS cublas##letter##swap_v2##suffix(cublasHandle_t handle, Int n, T *x, Int incx, T *y, Int incy) {             \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(x, type, n, incx);                                                                                  \
    vector_written(y, type, n, incy);                                                                                  \
    return run(handle, EID_NAME("cublas" #letter "swap"), n, 4, 0, type, 0);                                           \
  }                                                                                                                    \
  EID_BLAS cublas##letter##scal_v2##suffix(cublasHandle_t handle, Int n, const T *, T *x, Int incx) {                  \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0 || incx <= 0)                                                                                           \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(x, type, n, incx);                                                                                  \
    return run(handle, EID_NAME("cublas" #letter "scal"), n, 2, 0, type, n);                                           \
  }
EID_BLAS_ALL(EID_LEVEL1)

// Functions that reduce two vectors, or one vector, to one scalar.
#define EID_DOT(name, T, type, suffix, Int)                                                                            \
  EID_BLAS name##suffix(cublasHandle_t handle, Int n, const T *, Int, const T *, Int, T *result) {                     \
    EID_NEEDS(handle, result != nullptr)                                                                               \
    if (cublasStatus_t status = run(handle, EID_NAME(#name), n > 0 ? n : 0, 2, 0, type, 2 * int64_t{n}))               \
      return status;                                                                                                   \
    return scalar_result(handle, result, sizeof(T), #name, EID_CALL(#name));                                           \
  }
#define EID_REDUCE(name, T, type, R, suffix, Int)                                                                      \
  EID_BLAS name##suffix(cublasHandle_t handle, Int n, const T *, Int, R *result) {                                     \
    EID_NEEDS(handle, result != nullptr)                                                                               \
    if (cublasStatus_t status = run(handle, EID_NAME(#name), n > 0 ? n : 0, 1, 0, type, 2 * int64_t{n}))               \
      return status;                                                                                                   \
    return scalar_result(handle, result, sizeof(R), #name, EID_CALL(#name));                                           \
  }
#define EID_REAL_SCALARS(letter, T, type, suffix, Int)                                                                 \
  EID_DOT(cublas##letter##dot_v2, T, type, suffix, Int)                                                                \
  EID_REDUCE(cublas##letter##nrm2_v2, T, type, T, suffix, Int)                                                         \
  EID_REDUCE(cublas##letter##asum_v2, T, type, T, suffix, Int)
EID_BLAS_REAL(EID_REAL_SCALARS)
#define EID_COMPLEX_SCALARS(letter, T, type, suffix, Int)                                                              \
  EID_DOT(cublas##letter##dotu_v2, T, type, suffix, Int) EID_DOT(cublas##letter##dotc_v2, T, type, suffix, Int)
EID_BLAS_COMPLEX(EID_COMPLEX_SCALARS)
#define EID_COMPLEX_NORMS(suffix, Int)                                                                                 \
  EID_REDUCE(cublasScnrm2_v2, cuComplex, CUDA_C_32F, float, suffix, Int)                                               \
  EID_REDUCE(cublasDznrm2_v2, cuDoubleComplex, CUDA_C_64F, double, suffix, Int)                                        \
  EID_REDUCE(cublasScasum_v2, cuComplex, CUDA_C_32F, float, suffix, Int)                                               \
  EID_REDUCE(cublasDzasum_v2, cuDoubleComplex, CUDA_C_64F, double, suffix, Int)
EID_COMPLEX_NORMS(, int)
EID_COMPLEX_NORMS(_64, int64_t)
#define EID_INDEX(letter, T, type, suffix, Int)                                                                        \
  EID_REDUCE(cublasI##letter##amax_v2, T, type, Int, suffix, Int)                                                      \
  EID_REDUCE(cublasI##letter##amin_v2, T, type, Int, suffix, Int)
#define EID_INDICES(suffix, Int)                                                                                       \
  EID_INDEX(s, float, CUDA_R_32F, suffix, Int)                                                                         \
  EID_INDEX(d, double, CUDA_R_64F, suffix, Int)                                                                        \
  EID_INDEX(c, cuComplex, CUDA_C_32F, suffix, Int) EID_INDEX(z, cuDoubleComplex, CUDA_C_64F, suffix, Int)
EID_INDICES(, int)
EID_INDICES(_64, int64_t)

#define EID_REAL_SCALE(name, Scalar, T, type, suffix, Int)                                                             \
  EID_BLAS name##suffix(cublasHandle_t handle, Int n, const Scalar *, T *x, Int incx) {                                \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0 || incx <= 0)                                                                                           \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(x, type, n, incx);                                                                                  \
    return run(handle, EID_NAME(#name), n, 2, 0, type, 2 * int64_t{n});                                                \
  }
EID_REAL_SCALE(cublasCsscal_v2, float, cuComplex, CUDA_C_32F, , int)
EID_REAL_SCALE(cublasCsscal_v2, float, cuComplex, CUDA_C_32F, _64, int64_t)
EID_REAL_SCALE(cublasZdscal_v2, double, cuDoubleComplex, CUDA_C_64F, , int)
EID_REAL_SCALE(cublasZdscal_v2, double, cuDoubleComplex, CUDA_C_64F, _64, int64_t)

#define EID_LEVEL1_EX(suffix, Int)                                                                                     \
  EID_BLAS cublasDotEx##suffix(cublasHandle_t handle, Int n, const void *, cudaDataType type, Int, const void *,       \
                               cudaDataType, Int, void *result, cudaDataType result_type, cudaDataType) {              \
    EID_NEEDS(handle, result != nullptr)                                                                               \
    if (cublasStatus_t status = run(handle, EID_NAME("cublasDotEx"), n > 0 ? n : 0, 2, 0, type, 2 * int64_t{n}))       \
      return status;                                                                                                   \
    return scalar_result(handle, result, static_cast<size_t>(bytes_of(result_type, 1)), "cublasDotEx",                 \
                         EID_CALL("cublasDotEx"));                                                                     \
  }                                                                                                                    \
  EID_BLAS cublasDotcEx##suffix(cublasHandle_t handle, Int n, const void *x, cudaDataType x_type, Int incx,            \
                                const void *y, cudaDataType y_type, Int incy, void *result, cudaDataType result_type,  \
                                cudaDataType execution) {                                                              \
    return cublasDotEx##suffix(handle, n, x, x_type, incx, y, y_type, incy, result, result_type, execution);           \
  }                                                                                                                    \
  EID_BLAS cublasNrm2Ex##suffix(cublasHandle_t handle, Int n, const void *, cudaDataType type, Int, void *result,      \
                                cudaDataType result_type, cudaDataType) {                                              \
    EID_NEEDS(handle, result != nullptr)                                                                               \
    if (cublasStatus_t status = run(handle, EID_NAME("cublasNrm2Ex"), n > 0 ? n : 0, 1, 0, type, 2 * int64_t{n}))      \
      return status;                                                                                                   \
    return scalar_result(handle, result, static_cast<size_t>(bytes_of(result_type, 1)), "cublasNrm2Ex",                \
                         EID_CALL("cublasNrm2Ex"));                                                                    \
  }                                                                                                                    \
  EID_BLAS cublasAxpyEx##suffix(cublasHandle_t handle, Int n, const void *, cudaDataType, const void *, cudaDataType,  \
                                Int, void *y, cudaDataType type, Int incy, cudaDataType) {                             \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(y, type, n, incy);                                                                                  \
    return run(handle, EID_NAME("cublasAxpyEx"), n, 3, 0, type, 2 * int64_t{n});                                       \
  }                                                                                                                    \
  EID_BLAS cublasScalEx##suffix(cublasHandle_t handle, Int n, const void *, cudaDataType, void *x, cudaDataType type,  \
                                Int incx, cudaDataType) {                                                              \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0 || incx <= 0)                                                                                           \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(x, type, n, incx);                                                                                  \
    return run(handle, EID_NAME("cublasScalEx"), n, 2, 0, type, n);                                                    \
  }                                                                                                                    \
  EID_BLAS cublasCopyEx##suffix(cublasHandle_t handle, Int n, const void *, cudaDataType, Int, void *y,                \
                                cudaDataType type, Int incy) {                                                         \
    EID_NEEDS(handle, true)                                                                                            \
    if (n <= 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    vector_written(y, type, n, incy);                                                                                  \
    return run(handle, EID_NAME("cublasCopyEx"), n, 2, 0, type, 0);                                                    \
  }
EID_LEVEL1_EX(, int)
EID_LEVEL1_EX(_64, int64_t)

// ---- level 2 -----------------------------------------------------------------------------------------------------

#define EID_GEMV(letter, T, type, suffix, Int)                                                                         \
  EID_BLAS cublas##letter##gemv_v2##suffix(cublasHandle_t handle, cublasOperation_t trans, Int m, Int n, const T *,    \
                                           const T *, Int lda, const T *, Int incx, const T *, T *y, Int incy) {       \
    return matrix_vector(handle, EID_NAME("cublas" #letter "gemv"), trans, m, n, type, type, lda, incx, y, incy);      \
  }
EID_BLAS_ALL(EID_GEMV)

#define EID_GEMV_BATCHED(prefix, In, in_type, Out, out_type, Scalar, suffix, Int)                                      \
  EID_BLAS cublas##prefix##gemvBatched##suffix(cublasHandle_t handle, cublasOperation_t trans, Int m, Int n,           \
                                               const Scalar *, const In *const[], Int lda, const In *const[],          \
                                               Int incx, const Scalar *, Out *const y[], Int incy, Int batch) {        \
    for_each_known(y, batch,                                                                                           \
                   [&](void *one, int64_t) { vector_written(one, out_type, transposed(trans) ? n : m, incy); });       \
    return matrix_vector(handle, EID_NAME("cublas" #prefix "gemvBatched"), trans, m, n, in_type, out_type, lda, incx,  \
                         nullptr, incy, 0, batch);                                                                     \
  }                                                                                                                    \
  EID_BLAS cublas##prefix##gemvStridedBatched##suffix(                                                                 \
      cublasHandle_t handle, cublasOperation_t trans, Int m, Int n, const Scalar *, const In *, Int lda, long long,    \
      const In *, Int incx, long long, const Scalar *, Out *y, Int incy, long long stride_y, Int batch) {              \
    return matrix_vector(handle, EID_NAME("cublas" #prefix "gemvStridedBatched"), trans, m, n, in_type, out_type, lda, \
                         incx, y, incy, stride_y, batch);                                                              \
  }
#define EID_GEMV_SAME(letter, T, type, suffix, Int) EID_GEMV_BATCHED(letter, T, type, T, type, T, suffix, Int)
EID_BLAS_ALL(EID_GEMV_SAME)
#define EID_GEMV_MIXED(suffix, Int)                                                                                    \
  EID_GEMV_BATCHED(HSH, __half, CUDA_R_16F, __half, CUDA_R_16F, float, suffix, Int)                                    \
  EID_GEMV_BATCHED(HSS, __half, CUDA_R_16F, float, CUDA_R_32F, float, suffix, Int)                                     \
  EID_GEMV_BATCHED(TST, __nv_bfloat16, CUDA_R_16BF, __nv_bfloat16, CUDA_R_16BF, float, suffix, Int)                    \
  EID_GEMV_BATCHED(TSS, __nv_bfloat16, CUDA_R_16BF, float, CUDA_R_32F, float, suffix, Int)
EID_GEMV_MIXED(, int)
EID_GEMV_MIXED(_64, int64_t)

#define EID_GER(name, T, type, suffix, Int)                                                                            \
  EID_BLAS name##suffix(cublasHandle_t handle, Int m, Int n, const T *, const T *, Int, const T *, Int, T *a,          \
                        Int lda) {                                                                                     \
    EID_NEEDS(handle, m >= 0 && n >= 0 && lda >= (m > 1 ? m : 1))                                                      \
    if (m == 0 || n == 0)                                                                                              \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    matrix_written(a, type, m, n, lda);                                                                                \
    return run(handle, EID_NAME(#name), int64_t{m} + n, 1, 2 * int64_t{m} * n, type, 2 * int64_t{m} * n);              \
  }
#define EID_GER_REAL(letter, T, type, suffix, Int) EID_GER(cublas##letter##ger_v2, T, type, suffix, Int)
EID_BLAS_REAL(EID_GER_REAL)
#define EID_GER_COMPLEX(letter, T, type, suffix, Int)                                                                  \
  EID_GER(cublas##letter##geru_v2, T, type, suffix, Int) EID_GER(cublas##letter##gerc_v2, T, type, suffix, Int)
EID_BLAS_COMPLEX(EID_GER_COMPLEX)

// A symmetric or Hermitian A times x, and rank-2 updates of such an A.
#define EID_SYMV(name, T, type, suffix, Int)                                                                           \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasFillMode_t, Int n, const T *, const T *, Int lda, const T *,      \
                        Int incx, const T *, T *y, Int incy) {                                                         \
    return matrix_vector(handle, EID_NAME(#name), CUBLAS_OP_N, n, n, type, type, lda, incx, y, incy);                  \
  }
#define EID_SYR2(name, T, type, suffix, Int)                                                                           \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasFillMode_t, Int n, const T *, const T *, Int, const T *, Int,     \
                        T *a, Int lda) {                                                                               \
    EID_NEEDS(handle, n >= 0 && lda >= (n > 1 ? n : 1))                                                                \
    if (n == 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    matrix_written(a, type, n, n, lda);                                                                                \
    return run(handle, EID_NAME(#name), n, 2, int64_t{n} * n, type, 2 * int64_t{n} * n);                               \
  }
#define EID_SYR(name, Scalar, T, type, suffix, Int)                                                                    \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasFillMode_t, Int n, const Scalar *, const T *, Int, T *a,          \
                        Int lda) {                                                                                     \
    EID_NEEDS(handle, n >= 0 && lda >= (n > 1 ? n : 1))                                                                \
    if (n == 0)                                                                                                        \
      return CUBLAS_STATUS_SUCCESS;                                                                                    \
    matrix_written(a, type, n, n, lda);                                                                                \
    return run(handle, EID_NAME(#name), n, 1, int64_t{n} * n, type, int64_t{n} * n);                                   \
  }
#define EID_SYMMETRIC2(letter, T, type, suffix, Int)                                                                   \
  EID_SYMV(cublas##letter##symv_v2, T, type, suffix, Int)                                                              \
  EID_SYR2(cublas##letter##syr2_v2, T, type, suffix, Int) EID_SYR(cublas##letter##syr_v2, T, T, type, suffix, Int)
EID_BLAS_ALL(EID_SYMMETRIC2)
#define EID_HERMITIAN2(letter, T, type, suffix, Int)                                                                   \
  EID_SYMV(cublas##letter##hemv_v2, T, type, suffix, Int) EID_SYR2(cublas##letter##her2_v2, T, type, suffix, Int)
EID_BLAS_COMPLEX(EID_HERMITIAN2)
EID_SYR(cublasCher_v2, float, cuComplex, CUDA_C_32F, , int)
EID_SYR(cublasCher_v2, float, cuComplex, CUDA_C_32F, _64, int64_t)
EID_SYR(cublasZher_v2, double, cuDoubleComplex, CUDA_C_64F, , int)
EID_SYR(cublasZher_v2, double, cuDoubleComplex, CUDA_C_64F, _64, int64_t)

// A triangular A times x, and the solution of A x = b; both in place.
#define EID_TRV(name, T, type, suffix, Int)                                                                            \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, Int n,           \
                        const T *, Int lda, T *x, Int incx) {                                                          \
    return matrix_vector(handle, EID_NAME(#name), CUBLAS_OP_N, n, n, type, type, lda, incx, x, incx);                  \
  }
#define EID_TRIANGULAR2(letter, T, type, suffix, Int)                                                                  \
  EID_TRV(cublas##letter##trmv_v2, T, type, suffix, Int) EID_TRV(cublas##letter##trsv_v2, T, type, suffix, Int)
EID_BLAS_ALL(EID_TRIANGULAR2)
