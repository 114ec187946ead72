// cuBLAS level 3 besides GEMM (symmetric, Hermitian and triangular matrices), extensions, and batched factorisations.
#include "cublas.h"

namespace {
using namespace eidolon;
using namespace eidolon::blas;

cublasStatus_t product(cublasHandle_t handle, const char *name, uint16_t call, int64_t m, int64_t n, int64_t k,
                       int type) {
  const int compute = type == CUDA_R_64F || type == CUDA_C_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  const Gemm gemm = {.m = m,
                     .n = n,
                     .k = k,
                     .batch = 1,
                     .ta = false,
                     .tb = false,
                     .a_type = type,
                     .c_type = type,
                     .compute = compute,
                     .epilogue = 0};
  return launch(handle, signature_of(name, gemm), call);
}

cublasStatus_t library(cublasHandle_t handle, const char *name, uint16_t call, int64_t elements, int type,
                       int64_t flops) {
  return launch(handle, library_signature(name, bytes_of(type, elements), flops), call);
}

} // namespace

#define EID_NEEDS(handle, condition)                                                                                   \
  if (handle == nullptr)                                                                                               \
    return CUBLAS_STATUS_NOT_INITIALIZED;                                                                              \
  if (!(condition))                                                                                                    \
    return CUBLAS_STATUS_INVALID_VALUE;
#define EID_NOTHING(condition)                                                                                         \
  if (condition)                                                                                                       \
    return CUBLAS_STATUS_SUCCESS;

// ---- symmetric and Hermitian -------------------------------------------------------------------------------------

#define EID_SYMM(name, T, type, suffix, Int)                                                                           \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t, Int m, Int n, const T *,       \
                        const T *, Int lda, const T *, Int ldb, const T *, T *c, Int ldc) {                            \
    EID_NEEDS(handle, m >= 0 && n >= 0 && lda >= 1 && ldb >= (m > 1 ? m : 1) && ldc >= (m > 1 ? m : 1))                \
    EID_NOTHING(m == 0 || n == 0)                                                                                      \
    matrix_written(c, type, m, n, ldc);                                                                                \
    return product(handle, #name, EID_CALL(#name), m, n, side == CUBLAS_SIDE_LEFT ? m : n, type);                      \
  }
#define EID_RANK_K(name, A, B, T, type, suffix, Int)                                                                   \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasFillMode_t, cublasOperation_t, Int n, Int k, const A *,           \
                        const T *, Int lda, const B *, T *c, Int ldc) {                                                \
    EID_NEEDS(handle, n >= 0 && k >= 0 && lda >= 1 && ldc >= (n > 1 ? n : 1))                                          \
    EID_NOTHING(n == 0)                                                                                                \
    matrix_written(c, type, n, n, ldc);                                                                                \
    return product(handle, #name, EID_CALL(#name), n, n, k, type);                                                     \
  }
#define EID_RANK_2K(name, A, B, T, type, suffix, Int)                                                                  \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasFillMode_t, cublasOperation_t, Int n, Int k, const A *,           \
                        const T *, Int lda, const T *, Int ldb, const B *, T *c, Int ldc) {                            \
    EID_NEEDS(handle, n >= 0 && k >= 0 && lda >= 1 && ldb >= 1 && ldc >= (n > 1 ? n : 1))                              \
    EID_NOTHING(n == 0)                                                                                                \
    matrix_written(c, type, n, n, ldc);                                                                                \
    return product(handle, #name, EID_CALL(#name), n, n, 2 * int64_t{k}, type);                                        \
  }
#define EID_SYMMETRIC3(letter, T, type, suffix, Int)                                                                   \
  EID_SYMM(cublas##letter##symm_v2, T, type, suffix, Int)                                                              \
  EID_RANK_K(cublas##letter##syrk_v2, T, T, T, type, suffix, Int)                                                      \
  EID_RANK_2K(cublas##letter##syr2k_v2, T, T, T, type, suffix, Int)                                                    \
  EID_RANK_2K(cublas##letter##syrkx, T, T, T, type, suffix, Int)
EID_BLAS_ALL(EID_SYMMETRIC3)
#define EID_HERMITIAN3(letter, T, Real, type, suffix, Int)                                                             \
  EID_SYMM(cublas##letter##hemm_v2, T, type, suffix, Int)                                                              \
  EID_RANK_K(cublas##letter##herk_v2, Real, Real, T, type, suffix, Int)                                                \
  EID_RANK_2K(cublas##letter##her2k_v2, T, Real, T, type, suffix, Int)                                                 \
  EID_RANK_2K(cublas##letter##herkx, T, Real, T, type, suffix, Int)
EID_HERMITIAN3(C, cuComplex, float, CUDA_C_32F, , int)
EID_HERMITIAN3(C, cuComplex, float, CUDA_C_32F, _64, int64_t)
EID_HERMITIAN3(Z, cuDoubleComplex, double, CUDA_C_64F, , int)
EID_HERMITIAN3(Z, cuDoubleComplex, double, CUDA_C_64F, _64, int64_t)

// ---- triangular --------------------------------------------------------------------------------------------------

#define EID_TRIANGULAR3(letter, T, type, suffix, Int)                                                                  \
  EID_BLAS cublas##letter##trmm_v2##suffix(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t,             \
                                           cublasOperation_t, cublasDiagType_t, Int m, Int n, const T *, const T *,    \
                                           Int lda, const T *, Int ldb, T *c, Int ldc) {                               \
    EID_NEEDS(handle, m >= 0 && n >= 0 && lda >= 1 && ldb >= (m > 1 ? m : 1) && ldc >= (m > 1 ? m : 1))                \
    EID_NOTHING(m == 0 || n == 0)                                                                                      \
    matrix_written(c, type, m, n, ldc);                                                                                \
    const int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;                                                            \
    return library(handle, "cublas:cublas" #letter "trmm", EID_CALL("cublas" #letter "trmm_v2"),                       \
                   order * order / 2 + 2 * int64_t{m} * n, type, order * m * n);                                       \
  }                                                                                                                    \
  EID_BLAS cublas##letter##trsm_v2##suffix(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t,             \
                                           cublasOperation_t, cublasDiagType_t, Int m, Int n, const T *, const T *,    \
                                           Int lda, T *b, Int ldb) {                                                   \
    EID_NEEDS(handle, m >= 0 && n >= 0 && lda >= 1 && ldb >= (m > 1 ? m : 1))                                          \
    EID_NOTHING(m == 0 || n == 0)                                                                                      \
    matrix_written(b, type, m, n, ldb);                                                                                \
    const int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;                                                            \
    return library(handle, "cublas:cublas" #letter "trsm", EID_CALL("cublas" #letter "trsm_v2"),                       \
                   order * order / 2 + 2 * int64_t{m} * n, type, order * m * n);                                       \
  }                                                                                                                    \
  EID_BLAS cublas##letter##trsmBatched##suffix(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t,         \
                                               cublasOperation_t, cublasDiagType_t, Int m, Int n, const T *,           \
                                               const T *const[], Int lda, T *const b[], Int ldb, Int batch) {          \
    EID_NEEDS(handle, m >= 0 && n >= 0 && batch >= 0 && lda >= 1 && ldb >= (m > 1 ? m : 1))                            \
    EID_NOTHING(m == 0 || n == 0 || batch == 0)                                                                        \
    for_each_known(b, batch, [&](void *one, int64_t) { matrix_written(one, type, m, n, ldb); });                       \
    const int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;                                                            \
    return library(handle, "cublas:cublas" #letter "trsmBatched", EID_CALL("cublas" #letter "trsmBatched"),            \
                   batch * (order * order / 2 + 2 * int64_t{m} * n), type, batch * order * m * n);                     \
  }
EID_BLAS_ALL(EID_TRIANGULAR3)

// ---- extensions --------------------------------------------------------------------------------------------------

#define EID_EXTENSIONS(letter, T, type, suffix, Int)                                                                   \
  EID_BLAS cublas##letter##geam##suffix(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, Int m, Int n,     \
                                        const T *, const T *, Int lda, const T *, const T *, Int ldb, T *c, Int ldc) { \
    EID_NEEDS(handle, m >= 0 && n >= 0 && lda >= 1 && ldb >= 1 && ldc >= (m > 1 ? m : 1))                              \
    EID_NOTHING(m == 0 || n == 0)                                                                                      \
    matrix_written(c, type, m, n, ldc);                                                                                \
    return library(handle, "cublas:cublas" #letter "geam", EID_CALL("cublas" #letter "geam"), 3 * int64_t{m} * n,      \
                   type, 3 * int64_t{m} * n);                                                                          \
  }                                                                                                                    \
  EID_BLAS cublas##letter##dgmm##suffix(cublasHandle_t handle, cublasSideMode_t, Int m, Int n, const T *, Int lda,     \
                                        const T *, Int, T *c, Int ldc) {                                               \
    EID_NEEDS(handle, m >= 0 && n >= 0 && lda >= (m > 1 ? m : 1) && ldc >= (m > 1 ? m : 1))                            \
    EID_NOTHING(m == 0 || n == 0)                                                                                      \
    matrix_written(c, type, m, n, ldc);                                                                                \
    return library(handle, "cublas:cublas" #letter "dgmm", EID_CALL("cublas" #letter "dgmm"), 2 * int64_t{m} * n,      \
                   type, int64_t{m} * n);                                                                              \
  }
EID_BLAS_ALL(EID_EXTENSIONS)

// ---- batched factorisations: one small matrix per entry of a pointer array ---------------------------------------

namespace {

// Status words on the device, one per matrix. They are never computed, so they read as 0, which is success.
void info_written(int *info, int64_t count) {
  if (info != nullptr)
    value_unknown(info, static_cast<size_t>(count) * sizeof(int));
}

cublasStatus_t host_info(int *info, bool valid) {
  if (info == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  *info = valid ? 0 : -1;
  return valid ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

} // namespace

#define EID_BATCHED(letter, T, type)                                                                                   \
  EID_BLAS cublas##letter##getrfBatched(cublasHandle_t handle, int n, T *const a[], int lda, int *pivots, int *info,   \
                                        int batch) {                                                                   \
    EID_NEEDS(handle, n >= 0 && batch >= 0 && lda >= (n > 1 ? n : 1))                                                  \
    EID_NOTHING(n == 0 || batch == 0)                                                                                  \
    for_each_known(a, batch, [&](void *one, int64_t) { matrix_written(one, type, n, n, lda); });                       \
    info_written(pivots, int64_t{n} * batch);                                                                          \
    info_written(info, batch);                                                                                         \
    return library(handle, "cublas:cublas" #letter "getrfBatched", EID_CALL("cublas" #letter "getrfBatched"),          \
                   2 * int64_t{batch} * n * n, type, int64_t{batch} * n * n * n * 2 / 3);                              \
  }                                                                                                                    \
  EID_BLAS cublas##letter##getriBatched(cublasHandle_t handle, int n, const T *const[], int lda, const int *,          \
                                        T *const c[], int ldc, int *info, int batch) {                                 \
    EID_NEEDS(handle, n >= 0 && batch >= 0 && lda >= (n > 1 ? n : 1) && ldc >= (n > 1 ? n : 1))                        \
    EID_NOTHING(n == 0 || batch == 0)                                                                                  \
    for_each_known(c, batch, [&](void *one, int64_t) { matrix_written(one, type, n, n, ldc); });                       \
    info_written(info, batch);                                                                                         \
    return library(handle, "cublas:cublas" #letter "getriBatched", EID_CALL("cublas" #letter "getriBatched"),          \
                   2 * int64_t{batch} * n * n, type, int64_t{batch} * n * n * n * 4 / 3);                              \
  }                                                                                                                    \
  EID_BLAS cublas##letter##getrsBatched(cublasHandle_t handle, cublasOperation_t, int n, int nrhs, const T *const[],   \
                                        int lda, const int *, T *const b[], int ldb, int *info, int batch) {           \
    EID_NEEDS(handle, true)                                                                                            \
    const bool fine = n >= 0 && nrhs >= 0 && batch >= 0 && lda >= (n > 1 ? n : 1) && ldb >= (n > 1 ? n : 1);           \
    if (cublasStatus_t status = host_info(info, fine))                                                                 \
      return status;                                                                                                   \
    EID_NOTHING(n == 0 || nrhs == 0 || batch == 0)                                                                     \
    for_each_known(b, batch, [&](void *one, int64_t) { matrix_written(one, type, n, nrhs, ldb); });                    \
    return library(handle, "cublas:cublas" #letter "getrsBatched", EID_CALL("cublas" #letter "getrsBatched"),          \
                   int64_t{batch} * n * (n + 2 * int64_t{nrhs}), type, 2 * int64_t{batch} * n * n * nrhs);             \
  }                                                                                                                    \
  EID_BLAS cublas##letter##geqrfBatched(cublasHandle_t handle, int m, int n, T *const a[], int lda, T *const tau[],    \
                                        int *info, int batch) {                                                        \
    EID_NEEDS(handle, true)                                                                                            \
    const bool fine = m >= 0 && n >= 0 && batch >= 0 && lda >= (m > 1 ? m : 1);                                        \
    if (cublasStatus_t status = host_info(info, fine))                                                                 \
      return status;                                                                                                   \
    EID_NOTHING(m == 0 || n == 0 || batch == 0)                                                                        \
    for_each_known(a, batch, [&](void *one, int64_t) { matrix_written(one, type, m, n, lda); });                       \
    for_each_known(tau, batch, [&](void *one, int64_t) { written(one, bytes_of(type, m < n ? m : n), 0, 1); });        \
    return library(handle, "cublas:cublas" #letter "geqrfBatched", EID_CALL("cublas" #letter "geqrfBatched"),          \
                   2 * int64_t{batch} * m * n, type, 2 * int64_t{batch} * m * n * n);                                  \
  }                                                                                                                    \
  EID_BLAS cublas##letter##gelsBatched(cublasHandle_t handle, cublasOperation_t, int m, int n, int nrhs, T *const a[], \
                                       int lda, T *const c[], int ldc, int *info, int *device_info, int batch) {       \
    EID_NEEDS(handle, true)                                                                                            \
    const bool fine = m >= 0 && n >= 0 && nrhs >= 0 && batch >= 0 && lda >= (m > 1 ? m : 1) && ldc >= 1;               \
    if (cublasStatus_t status = host_info(info, fine))                                                                 \
      return status;                                                                                                   \
    EID_NOTHING(m == 0 || n == 0 || batch == 0)                                                                        \
    for_each_known(a, batch, [&](void *one, int64_t) { matrix_written(one, type, m, n, lda); });                       \
    for_each_known(c, batch, [&](void *one, int64_t) { matrix_written(one, type, m > n ? m : n, nrhs, ldc); });        \
    info_written(device_info, batch);                                                                                  \
    return library(handle, "cublas:cublas" #letter "gelsBatched", EID_CALL("cublas" #letter "gelsBatched"),            \
                   2 * int64_t{batch} * m * n, type, 2 * int64_t{batch} * m * n * n);                                  \
  }                                                                                                                    \
  EID_BLAS cublas##letter##matinvBatched(cublasHandle_t handle, int n, const T *const[], int lda, T *const inverse[],  \
                                         int ld_inverse, int *info, int batch) {                                       \
    EID_NEEDS(handle, n >= 0 && n <= 32 && batch >= 0 && lda >= (n > 1 ? n : 1) && ld_inverse >= (n > 1 ? n : 1))      \
    EID_NOTHING(n == 0 || batch == 0)                                                                                  \
    for_each_known(inverse, batch, [&](void *one, int64_t) { matrix_written(one, type, n, n, ld_inverse); });          \
    info_written(info, batch);                                                                                         \
    return library(handle, "cublas:cublas" #letter "matinvBatched", EID_CALL("cublas" #letter "matinvBatched"),        \
                   2 * int64_t{batch} * n * n, type, 2 * int64_t{batch} * n * n * n);                                  \
  }
EID_BATCHED(S, float, CUDA_R_32F)
EID_BATCHED(D, double, CUDA_R_64F)
EID_BATCHED(C, cuComplex, CUDA_C_32F)
EID_BATCHED(Z, cuDoubleComplex, CUDA_C_64F)
