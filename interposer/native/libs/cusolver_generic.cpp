// cuSOLVER: the solvers that take their data type as an argument (cusolverDnXgetrf, ...).
#include "cusolver.h"

using namespace eidolon;
using namespace eidolon::solver;

namespace {

Size size_of(cudaDataType type) {
  switch (type) {
  case CUDA_R_32F:
    return kSize<float>;
  case CUDA_R_64F:
    return kSize<double>;
  case CUDA_C_32F:
    return kSize<cuComplex>;
  default:
    return kSize<cuDoubleComplex>; // the largest, so that no output stays partly known
  }
}

cusolverStatus_t size_answer(cusolverDnHandle_t handle, int64_t rows, cudaDataType type, size_t *device, size_t *host) {
  if (!handle)
    return CUSOLVER_STATUS_NOT_INITIALIZED;
  if (!device || !host || rows < 0)
    return CUSOLVER_STATUS_INVALID_VALUE;
  *device = static_cast<size_t>(std::max<int64_t>(rows, 1) * kBlock) * size_of(type).element_bytes;
  *host = 0;
  return CUSOLVER_STATUS_SUCCESS;
}

} // namespace

#define NAMED(function) .name = "cusolver:" #function, .call = EID_CALL(#function)

// ---- factorisations and solves -----------------------------------------------------------------------------------

EID_SOLVER cusolverDnXgetrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                       cudaDataType type, const void *, int64_t, cudaDataType, size_t *device,
                                       size_t *host) {
  return size_answer(handle, std::max(m, n), type, device, host);
}
EID_SOLVER cusolverDnXgetrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n, cudaDataType type,
                            void *a, int64_t lda, int64_t *pivots, cudaDataType, void *, size_t, void *, size_t,
                            int *info) {
  int64_t shorter = std::min(m, n), longer = std::max(m, n);
  written({pivots, shorter, 1, shorter}, sizeof(int64_t));
  Solve what = {NAMED(cusolverDnXgetrf), .flops = lu_flops(static_cast<double>(longer), static_cast<double>(shorter)),
                .elements = m * n, .size = size_of(type), .info = info};
  return solve(handle, what, {{a, m, n, lda}});
}
EID_SOLVER cusolverDnXgetrs(cusolverDnHandle_t handle, cusolverDnParams_t, cublasOperation_t, int64_t n,
                            int64_t columns, cudaDataType, const void *, int64_t, const int64_t *, cudaDataType type,
                            void *b, int64_t ldb, int *info) {
  Solve what = {NAMED(cusolverDnXgetrs),
                .flops = triangular_flops(static_cast<double>(n), static_cast<double>(columns)),
                .elements = n * n + n * columns, .size = size_of(type), .info = info};
  return solve(handle, what, {{b, n, columns, ldb}});
}

EID_SOLVER cusolverDnXpotrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t, int64_t n,
                                       cudaDataType type, const void *, int64_t, cudaDataType, size_t *device,
                                       size_t *host) {
  return size_answer(handle, n, type, device, host);
}
EID_SOLVER cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t, int64_t n,
                            cudaDataType type, void *a, int64_t lda, cudaDataType, void *, size_t, void *, size_t,
                            int *info) {
  Solve what = {NAMED(cusolverDnXpotrf), .flops = cholesky_flops(static_cast<double>(n)), .elements = n * n,
                .size = size_of(type), .info = info};
  return solve(handle, what, {{a, n, n, lda}});
}
EID_SOLVER cusolverDnXpotrs(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t, int64_t n, int64_t columns,
                            cudaDataType, const void *, int64_t, cudaDataType type, void *b, int64_t ldb, int *info) {
  Solve what = {NAMED(cusolverDnXpotrs),
                .flops = triangular_flops(static_cast<double>(n), static_cast<double>(columns)),
                .elements = n * n + n * columns, .size = size_of(type), .info = info};
  return solve(handle, what, {{b, n, columns, ldb}});
}

EID_SOLVER cusolverDnXsytrs_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t, int64_t n, int64_t, cudaDataType,
                                       const void *, int64_t, const int64_t *, cudaDataType type, void *, int64_t,
                                       size_t *device, size_t *host) {
  return size_answer(handle, n, type, device, host);
}
EID_SOLVER cusolverDnXsytrs(cusolverDnHandle_t handle, cublasFillMode_t, int64_t n, int64_t columns, cudaDataType,
                            const void *, int64_t, const int64_t *, cudaDataType type, void *b, int64_t ldb, void *,
                            size_t, void *, size_t, int *info) {
  Solve what = {NAMED(cusolverDnXsytrs),
                .flops = triangular_flops(static_cast<double>(n), static_cast<double>(columns)),
                .elements = n * n + n * columns, .size = size_of(type), .info = info};
  return solve(handle, what, {{b, n, columns, ldb}});
}

EID_SOLVER cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                       cudaDataType type, const void *, int64_t, cudaDataType, const void *,
                                       cudaDataType, size_t *device, size_t *host) {
  return size_answer(handle, std::max(m, n), type, device, host);
}
EID_SOLVER cusolverDnXgeqrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n, cudaDataType type,
                            void *a, int64_t lda, cudaDataType, void *tau, cudaDataType, void *, size_t, void *, size_t,
                            int *info) {
  int64_t shorter = std::min(m, n), longer = std::max(m, n);
  Solve what = {NAMED(cusolverDnXgeqrf), .flops = qr_flops(static_cast<double>(longer), static_cast<double>(shorter)),
                .elements = m * n, .size = size_of(type), .info = info};
  return solve(handle, what, {{a, m, n, lda}, {tau, shorter, 1, shorter}});
}

// ---- eigenvalues and singular values -----------------------------------------------------------------------------

EID_SOLVER cusolverDnXsyevd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t,
                                       cublasFillMode_t, int64_t n, cudaDataType type, const void *, int64_t,
                                       cudaDataType, const void *, cudaDataType, size_t *device, size_t *host) {
  return size_answer(handle, n, type, device, host);
}
EID_SOLVER cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t, cublasFillMode_t,
                            int64_t n, cudaDataType type, void *a, int64_t lda, cudaDataType type_w, void *w,
                            cudaDataType, void *, size_t, void *, size_t, int *info) {
  written({w, n, 1, n}, size_of(type_w).element_bytes);
  Solve what = {NAMED(cusolverDnXsyevd), .flops = symmetric_eigen_flops(static_cast<double>(n)), .elements = n * n,
                .size = size_of(type), .info = info};
  return solve(handle, what, {{a, n, n, lda}});
}

EID_SOLVER cusolverDnXgesvd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, signed char, signed char,
                                       int64_t m, int64_t n, cudaDataType type, const void *, int64_t, cudaDataType,
                                       const void *, cudaDataType, const void *, int64_t, cudaDataType, const void *,
                                       int64_t, cudaDataType, size_t *device, size_t *host) {
  return size_answer(handle, std::max(m, n), type, device, host);
}
EID_SOLVER cusolverDnXgesvd(cusolverDnHandle_t handle, cusolverDnParams_t, signed char, signed char, int64_t m,
                            int64_t n, cudaDataType type, void *a, int64_t lda, cudaDataType type_s, void *s,
                            cudaDataType, void *u, int64_t ldu, cudaDataType, void *vt, int64_t ldvt, cudaDataType,
                            void *, size_t, void *, size_t, int *info) {
  int64_t shorter = std::min(m, n);
  written({s, shorter, 1, shorter}, size_of(type_s).element_bytes);
  Solve what = {NAMED(cusolverDnXgesvd), .flops = svd_flops(static_cast<double>(m), static_cast<double>(n)),
                .elements = m * n, .size = size_of(type), .info = info};
  return solve(handle, what, {{a, m, n, lda}, {u, m, shorter, ldu}, {vt, shorter, n, ldvt}});
}

#if EIDOLON_CUDA >= 13 || CUSOLVER_VERSION >= 11701 // added in CUDA 12.6 update 2
EID_SOLVER cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t,
                                             cublasFillMode_t, int64_t n, cudaDataType type, const void *, int64_t,
                                             cudaDataType, const void *, cudaDataType, size_t *device, size_t *host,
                                             int64_t batch) {
  return size_answer(handle, n * batch, type, device, host);
}
EID_SOLVER cusolverDnXsyevBatched(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t, cublasFillMode_t,
                                  int64_t n, cudaDataType type, void *a, int64_t lda, cudaDataType type_w, void *w,
                                  cudaDataType, void *, size_t, void *, size_t, int *info, int64_t batch) {
  written({w, n, 1, n}, size_of(type_w).element_bytes, batch);
  Solve what = {NAMED(cusolverDnXsyevBatched),
                .flops = symmetric_eigen_flops(static_cast<double>(n)),
                .elements = n * n,
                .size = size_of(type),
                .info = info,
                .batch = batch};
  return solve(handle, what, {{a, n, n, lda}});
}

EID_SOLVER cusolverDnXgeev_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t,
                                      cusolverEigMode_t, int64_t n, cudaDataType type, const void *, int64_t,
                                      cudaDataType, const void *, cudaDataType, const void *, int64_t, cudaDataType,
                                      const void *, int64_t, cudaDataType, size_t *device, size_t *host) {
  return size_answer(handle, n, type, device, host);
}
EID_SOLVER cusolverDnXgeev(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t, cusolverEigMode_t,
                           int64_t n, cudaDataType type, void *a, int64_t lda, cudaDataType type_w, void *w,
                           cudaDataType type_v, void *left, int64_t ldl, cudaDataType, void *right, int64_t ldr,
                           cudaDataType, void *, size_t, void *, size_t, int *info) {
  written({w, n, 1, n}, size_of(type_w).element_bytes);
  written({left, n, n, ldl}, size_of(type_v).element_bytes);
  written({right, n, n, ldr}, size_of(type_v).element_bytes);
  Solve what = {NAMED(cusolverDnXgeev), .flops = general_eigen_flops(static_cast<double>(n)), .elements = n * n,
                .size = size_of(type), .info = info};
  return solve(handle, what, {{a, n, n, lda}});
}
#endif
