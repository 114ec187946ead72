// cuSOLVER: the solvers that exist once per data type (cusolverDnSgetrf, ...).
#include "cusolver.h"

using namespace eidolon;
using namespace eidolon::solver;

namespace {

cusolverStatus_t size_answer(cusolverDnHandle_t handle, int64_t rows, int *out) {
  if (!handle)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (!out || rows < 0)
    return CUSOLVER_STATUS_INVALID_VALUE;
  *out = workspace(rows);
  return CUSOLVER_STATUS_SUCCESS;
}

} // namespace

#define NAMED(function) .name = "cusolver:" #function, .call = EID_CALL(#function)

// ---- LU and Cholesky ---------------------------------------------------------------------------------------------

#define EID_FACTOR(X, T, R, sy, gqr, mqr)                                                                              \
  EID_SOLVER cusolverDn##X##getrf_bufferSize(cusolverDnHandle_t handle, int m, int n, T *, int, int *lwork) {          \
    return size_answer(handle, std::max(m, n), lwork);                                                                 \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##getrf(cusolverDnHandle_t handle, int m, int n, T *a, int lda, T *, int *pivots,            \
                                  int *info) {                                                                         \
    written({pivots, std::min(m, n), 1, std::min(m, n)}, sizeof(int));                                                 \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##getrf), .flops = lu_flops(std::max(m, n), std::min(m, n)),                      \
                  .elements = int64_t{m} * n, .size = kSize<T>, .info = info},                                         \
                 {{a, m, n, lda}});                                                                                    \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##getrs(cusolverDnHandle_t handle, cublasOperation_t, int n, int columns, const T *, int,    \
                                  const int *, T *b, int ldb, int *info) {                                             \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##getrs), .flops = triangular_flops(n, columns),                                  \
                  .elements = int64_t{n} * n + int64_t{n} * columns, .size = kSize<T>, .info = info},                  \
                 {{b, n, columns, ldb}});                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##potrf_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t, int n, T *, int,             \
                                             int *lwork) {                                                             \
    return size_answer(handle, n, lwork);                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##potrf(cusolverDnHandle_t handle, cublasFillMode_t, int n, T *a, int lda, T *, int,         \
                                  int *info) {                                                                         \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##potrf), .flops = cholesky_flops(n), .elements = int64_t{n} * n,                 \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, n, n, lda}});                                                                                    \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##potrs(cusolverDnHandle_t handle, cublasFillMode_t, int n, int columns, const T *, int,     \
                                  T *b, int ldb, int *info) {                                                          \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##potrs), .flops = triangular_flops(n, columns),                                  \
                  .elements = int64_t{n} * n + int64_t{n} * columns, .size = kSize<T>, .info = info},                  \
                 {{b, n, columns, ldb}});                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##potri_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t, int n, T *, int,             \
                                             int *lwork) {                                                             \
    return size_answer(handle, n, lwork);                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##potri(cusolverDnHandle_t handle, cublasFillMode_t, int n, T *a, int lda, T *, int,         \
                                  int *info) {                                                                         \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##potri), .flops = 2 * cholesky_flops(n), .elements = int64_t{n} * n,             \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, n, n, lda}});                                                                                    \
  }                                                                                                                    \
  /* The matrices of a pointer array are not known to be written: their addresses lie in device memory. */             \
  EID_SOLVER cusolverDn##X##potrfBatched(cusolverDnHandle_t handle, cublasFillMode_t, int n, T *[], int, int *info,    \
                                         int batch) {                                                                  \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##potrfBatched), .flops = cholesky_flops(n), .elements = int64_t{n} * n,          \
                  .size = kSize<T>, .info = info, .batch = batch},                                                     \
                 {});                                                                                                  \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##potrsBatched(cusolverDnHandle_t handle, cublasFillMode_t, int n, int columns, T *[], int,  \
                                         T *[], int, int *info, int batch) {                                           \
    /* one info for the whole batch */                                                                                 \
    if (info)                                                                                                          \
      value_write(info, sizeof *info, "\0\0\0");                                                                       \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##potrsBatched), .flops = triangular_flops(n, columns),                           \
                  .elements = int64_t{n} * n + int64_t{n} * columns, .size = kSize<T>, .batch = batch},                \
                 {});                                                                                                  \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sytrf_bufferSize(cusolverDnHandle_t handle, int n, T *, int, int *lwork) {                 \
    return size_answer(handle, n, lwork);                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sytrf(cusolverDnHandle_t handle, cublasFillMode_t, int n, T *a, int lda, int *pivots, T *, \
                                  int, int *info) {                                                                    \
    written({pivots, n, 1, n}, sizeof(int));                                                                           \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##sytrf), .flops = cholesky_flops(n), .elements = int64_t{n} * n,                 \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, n, n, lda}});                                                                                    \
  }
EID_SOLVER_TYPES(EID_FACTOR)

// ---- QR ----------------------------------------------------------------------------------------------------------

#define EID_QR(X, T, R, sy, gqr, mqr)                                                                                  \
  EID_SOLVER cusolverDn##X##geqrf_bufferSize(cusolverDnHandle_t handle, int m, int n, T *, int, int *lwork) {          \
    return size_answer(handle, std::max(m, n), lwork);                                                                 \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##geqrf(cusolverDnHandle_t handle, int m, int n, T *a, int lda, T *tau, T *, int,            \
                                  int *info) {                                                                         \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##geqrf), .flops = qr_flops(std::max(m, n), std::min(m, n)),                      \
                  .elements = int64_t{m} * n, .size = kSize<T>, .info = info},                                         \
                 {{a, m, n, lda}, {tau, std::min(m, n), 1, std::min(m, n)}});                                          \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gqr##_bufferSize(cusolverDnHandle_t handle, int m, int, int, const T *, int, const T *,    \
                                             int *lwork) {                                                             \
    return size_answer(handle, m, lwork);                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gqr(cusolverDnHandle_t handle, int m, int n, int k, T *a, int lda, const T *, T *, int,    \
                                int *info) {                                                                           \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##gqr), .flops = reflect_flops(m, n, k), .elements = int64_t{m} * n,              \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, m, n, lda}});                                                                                    \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##mqr##_bufferSize(cusolverDnHandle_t handle, cublasSideMode_t, cublasOperation_t, int m,    \
                                             int n, int, const T *, int, const T *, const T *, int, int *lwork) {      \
    return size_answer(handle, std::max(m, n), lwork);                                                                 \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##mqr(cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t, int m, int n,     \
                                int k, const T *, int, const T *, T *c, int ldc, T *, int, int *info) {                \
    int order = side == CUBLAS_SIDE_LEFT ? m : n;                                                                      \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##mqr), .flops = 4.0 * m * n * k - 2.0 * (m + n - order) * k * k,                 \
                  .elements = int64_t{m} * n + int64_t{order} * k, .size = kSize<T>, .info = info},                    \
                 {{c, m, n, ldc}});                                                                                    \
  }
EID_SOLVER_TYPES(EID_QR)

// ---- singular values and eigenvalues -----------------------------------------------------------------------------

// Singular values and eigenvalues are real even where the matrices are complex. So they are marked as written with the
// size of a real number.
#define EID_SVD(X, T, R, sy, gqr, mqr)                                                                                 \
  EID_SOLVER cusolverDn##X##gesvd_bufferSize(cusolverDnHandle_t handle, int m, int n, int *lwork) {                    \
    return size_answer(handle, std::max(m, n), lwork);                                                                 \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvd(cusolverDnHandle_t handle, signed char, signed char, int m, int n, T *a, int lda,    \
                                  R *s, T *u, int ldu, T *vt, int ldvt, T *, int, R *, int *info) {                    \
    written({s, std::min(m, n), 1, std::min(m, n)}, sizeof(R));                                                        \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##gesvd), .flops = svd_flops(m, n), .elements = int64_t{m} * n, .size = kSize<T>, \
                  .info = info},                                                                                       \
                 {{a, m, n, lda}, {u, m, std::min(m, n), ldu}, {vt, std::min(m, n), n, ldvt}});                        \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvdj_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t, int, int m, int n,         \
                                              const T *, int, const R *, const T *, int, const T *, int, int *lwork,   \
                                              gesvdjInfo_t) {                                                          \
    return size_answer(handle, std::max(m, n), lwork);                                                                 \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvdj(cusolverDnHandle_t handle, cusolverEigMode_t, int, int m, int n, T *a, int lda,     \
                                   R *s, T *u, int ldu, T *v, int ldv, T *, int, int *info, gesvdjInfo_t) {            \
    written({s, std::min(m, n), 1, std::min(m, n)}, sizeof(R));                                                        \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##gesvdj), .flops = svd_flops(m, n), .elements = int64_t{m} * n,                  \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, m, n, lda}, {u, m, std::min(m, n), ldu}, {v, n, std::min(m, n), ldv}});                          \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvdjBatched_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t, int m, int n,       \
                                                     const T *, int, const R *, const T *, int, const T *, int,        \
                                                     int *lwork, gesvdjInfo_t, int batch) {                            \
    return size_answer(handle, int64_t{std::max(m, n)} * batch, lwork);                                                \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvdjBatched(cusolverDnHandle_t handle, cusolverEigMode_t, int m, int n, T *a, int lda,   \
                                          R *s, T *u, int ldu, T *v, int ldv, T *, int, int *info, gesvdjInfo_t,       \
                                          int batch) {                                                                 \
    written({s, std::min(m, n), 1, std::min(m, n)}, sizeof(R), batch);                                                 \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##gesvdjBatched), .flops = svd_flops(m, n), .elements = int64_t{m} * n,           \
                  .size = kSize<T>, .info = info, .batch = batch},                                                     \
                 {{a, m, n, lda}, {u, m, m, ldu}, {v, n, n, ldv}});                                                    \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvdaStridedBatched_bufferSize(                                                           \
      cusolverDnHandle_t handle, cusolverEigMode_t, int, int m, int n, const T *, int, long long, const R *,           \
      long long, const T *, int, long long, const T *, int, long long, int *lwork, int batch) {                        \
    return size_answer(handle, int64_t{std::max(m, n)} * batch, lwork);                                                \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##gesvdaStridedBatched(cusolverDnHandle_t handle, cusolverEigMode_t, int rank, int m, int n, \
                                                 const T *, int, long long, R *s, long long stride_s, T *u, int ldu,   \
                                                 long long stride_u, T *v, int ldv, long long stride_v, T *, int,      \
                                                 int *info, double *residuals, int batch) {                            \
    written({s, rank, 1, rank, stride_s}, sizeof(R), batch);                                                           \
    if (residuals) /* host memory */                                                                                   \
      std::fill_n(residuals, batch, 0.0);                                                                              \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##gesvdaStridedBatched), .flops = svd_flops(m, n), .elements = int64_t{m} * n,    \
                  .size = kSize<T>, .info = info, .batch = batch},                                                     \
                 {{u, m, rank, ldu, stride_u}, {v, n, rank, ldv, stride_v}});                                          \
  }
EID_SOLVER_TYPES(EID_SVD)

#define EID_EIGEN(X, T, R, sy, gqr, mqr)                                                                               \
  EID_SOLVER cusolverDn##X##sy##evd_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n,  \
                                               const T *, int, const R *, int *lwork) {                                \
    return size_answer(handle, n, lwork);                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sy##evd(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n, T *a,       \
                                    int lda, R *w, T *, int, int *info) {                                              \
    written({w, n, 1, n}, sizeof(R));                                                                                  \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##sy##evd), .flops = symmetric_eigen_flops(n), .elements = int64_t{n} * n,        \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, n, n, lda}});                                                                                    \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sy##evj_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n,  \
                                               const T *, int, const R *, int *lwork, syevjInfo_t) {                   \
    return size_answer(handle, n, lwork);                                                                              \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sy##evj(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n, T *a,       \
                                    int lda, R *w, T *, int, int *info, syevjInfo_t) {                                 \
    written({w, n, 1, n}, sizeof(R));                                                                                  \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##sy##evj), .flops = symmetric_eigen_flops(n), .elements = int64_t{n} * n,        \
                  .size = kSize<T>, .info = info},                                                                     \
                 {{a, n, n, lda}});                                                                                    \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sy##evjBatched_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t,  \
                                                      int n, const T *, int, const R *, int *lwork, syevjInfo_t,       \
                                                      int batch) {                                                     \
    return size_answer(handle, int64_t{n} * batch, lwork);                                                             \
  }                                                                                                                    \
  EID_SOLVER cusolverDn##X##sy##evjBatched(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n,      \
                                           T *a, int lda, R *w, T *, int, int *info, syevjInfo_t, int batch) {         \
    written({w, n, 1, n}, sizeof(R), batch);                                                                           \
    return solve(handle,                                                                                               \
                 {NAMED(cusolverDn##X##sy##evjBatched), .flops = symmetric_eigen_flops(n), .elements = int64_t{n} * n, \
                  .size = kSize<T>, .info = info, .batch = batch},                                                     \
                 {{a, n, n, lda}});                                                                                    \
  }
EID_SOLVER_TYPES(EID_EIGEN)
