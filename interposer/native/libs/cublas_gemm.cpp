// cuBLAS: every form of the general matrix product. All of them call `gemm`, `gemm_batched` or `gemm_grouped`.
#include "cublas.h"
#include "status.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {
using namespace eidolon;
using namespace eidolon::blas;

struct Call {
  const char *name;
  uint16_t id;
};
#define EID_GEMM_CALL(name) (Call{name, EID_CALL(name)})

struct Shape {
  cublasOperation_t ta, tb;
  int64_t m, n, k;
};
struct Types {
  int a, b, c, compute;
};

// The type that an operation really computes in, which is TF32 if the handle's math mode allows it.
int compute_of(cublasHandle_t handle, const Types &types) {
  const bool tf32 = (handle->math & 0xF) == CUBLAS_TF32_TENSOR_OP_MATH;
  const bool single = types.a == CUDA_R_32F || types.a == CUDA_C_32F;
  return tf32 && single && types.compute == CUBLAS_COMPUTE_32F ? CUBLAS_COMPUTE_32F_FAST_TF32 : types.compute;
}

cublasStatus_t check(cublasHandle_t handle, const Shape &s, int64_t lda, int64_t ldb, int64_t ldc, int64_t batch) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool bad = !valid(s.ta) || !valid(s.tb) || s.m < 0 || s.n < 0 || s.k < 0 || batch < 0 ||
                   lda < std::max<int64_t>(1, transposed(s.ta) ? s.k : s.m) ||
                   ldb < std::max<int64_t>(1, transposed(s.tb) ? s.n : s.k) || ldc < std::max<int64_t>(1, s.m);
  return bad ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t issue(cublasHandle_t handle, Call call, const Shape &s, const Types &types, int64_t batch) {
  const Gemm gemm = {.m = s.m,
                     .n = s.n,
                     .k = s.k,
                     .batch = batch,
                     .ta = transposed(s.ta),
                     .tb = transposed(s.tb),
                     .a_type = types.a,
                     .c_type = types.c,
                     .compute = compute_of(handle, types),
                     .epilogue = 0};
  return launch(handle, signature_of(call.name, gemm), call.id);
}

// One product, or a batch with a constant stride between the matrices.
cublasStatus_t gemm(cublasHandle_t handle, Call call, const Shape &s, const Types &types, int64_t lda, int64_t ldb,
                    void *c, int64_t ldc, int64_t stride_c = 0, int64_t batch = 1) {
  if (cublasStatus_t status = check(handle, s, lda, ldb, ldc, batch))
    return status;
  if (s.m == 0 || s.n == 0 || batch == 0)
    return CUBLAS_STATUS_SUCCESS;
  if (c == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  matrix_written(c, types.c, s.m, s.n, ldc, stride_c, batch);
  return issue(handle, call, s, types, batch);
}

// A batch that is given by arrays of pointers in device memory.
cublasStatus_t gemm_batched(cublasHandle_t handle, Call call, const Shape &s, const Types &types, int64_t lda,
                            int64_t ldb, const void *c_array, int64_t ldc, int64_t batch) {
  if (cublasStatus_t status = check(handle, s, lda, ldb, ldc, batch))
    return status;
  if (s.m == 0 || s.n == 0 || batch == 0)
    return CUBLAS_STATUS_SUCCESS;
  for_each_known(c_array, batch, [&](void *c, int64_t) { matrix_written(c, types.c, s.m, s.n, ldc); });
  return issue(handle, call, s, types, batch);
}

// Groups of batches, each with its own shape. The shapes are host arrays, and the pointers are a device array.
template <class Int>
cublasStatus_t gemm_grouped(cublasHandle_t handle, Call call, const cublasOperation_t *ta, const cublasOperation_t *tb,
                            const Int *m, const Int *n, const Int *k, const Types &types, const Int *lda,
                            const Int *ldb, const void *c_array, const Int *ldc, Int groups, const Int *size) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (groups < 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  for (Int g = 0; g < groups; ++g)
    if (cublasStatus_t status = check(handle, {ta[g], tb[g], m[g], n[g], k[g]}, lda[g], ldb[g], ldc[g], size[g]))
      return status;
  int64_t first = 0;
  for (Int g = 0; g < groups; ++g) {
    const Shape s = {ta[g], tb[g], m[g], n[g], k[g]};
    if (s.m != 0 && s.n != 0 && size[g] != 0) {
      for_each_known(static_cast<const char *>(c_array) + first * 8, size[g],
                     [&](void *c, int64_t) { matrix_written(c, types.c, s.m, s.n, ldc[g]); });
      if (cublasStatus_t status = issue(handle, call, s, types, size[g]))
        return status;
    }
    first += size[g];
  }
  return CUBLAS_STATUS_SUCCESS;
}

constexpr int compute_type(int type) {
  return type == CUDA_R_16F                         ? CUBLAS_COMPUTE_16F
         : type == CUDA_R_64F || type == CUDA_C_64F ? CUBLAS_COMPUTE_64F
                                                    : CUBLAS_COMPUTE_32F;
}
constexpr Types types_of(int type) { return {type, type, type, compute_type(type)}; }

} // namespace

// ---- one data type -----------------------------------------------------------------------------------------------

#define EID_GEMM(name, T, type, suffix, Int)                                                                           \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,        \
                        const T *, const T *, Int lda, const T *, Int ldb, const T *, T *c, Int ldc) {                 \
    return gemm(handle, EID_GEMM_CALL(#name #suffix), {ta, tb, m, n, k}, types_of(type), lda, ldb, c, ldc);            \
  }
#define EID_GEMM_BATCHED(name, T, type, suffix, Int)                                                                   \
  EID_BLAS name##Batched##suffix(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n,      \
                                 Int k, const T *, const T *const[], Int lda, const T *const[], Int ldb, const T *,    \
                                 T *const c[], Int ldc, Int batch) {                                                   \
    return gemm_batched(handle, EID_GEMM_CALL(#name "Batched" #suffix), {ta, tb, m, n, k}, types_of(type), lda, ldb,   \
                        c, ldc, batch);                                                                                \
  }                                                                                                                    \
  EID_BLAS name##StridedBatched##suffix(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m,      \
                                        Int n, Int k, const T *, const T *, Int lda, long long, const T *, Int ldb,    \
                                        long long, const T *, T *c, Int ldc, long long stride_c, Int batch) {          \
    return gemm(handle, EID_GEMM_CALL(#name "StridedBatched" #suffix), {ta, tb, m, n, k}, types_of(type), lda, ldb, c, \
                ldc, stride_c, batch);                                                                                 \
  }
#define EID_GEMM_TYPE(letter, T, type, suffix, Int)                                                                    \
  EID_GEMM(cublas##letter##gemm_v2, T, type, suffix, Int)                                                              \
  EID_GEMM_BATCHED(cublas##letter##gemm, T, type, suffix, Int)
EID_BLAS_ALL(EID_GEMM_TYPE)

#define EID_GEMM_3M(letter, T, type, suffix, Int) EID_GEMM(cublas##letter##gemm3m, T, type, suffix, Int)
EID_BLAS_COMPLEX(EID_GEMM_3M)
EID_GEMM_BATCHED(cublasCgemm3m, cuComplex, CUDA_C_32F, , int)
EID_GEMM_BATCHED(cublasCgemm3m, cuComplex, CUDA_C_32F, _64, int64_t)

EID_GEMM(cublasHgemm, __half, CUDA_R_16F, , int)
EID_GEMM(cublasHgemm, __half, CUDA_R_16F, _64, int64_t)
EID_GEMM_BATCHED(cublasHgemm, __half, CUDA_R_16F, , int)
EID_GEMM_BATCHED(cublasHgemm, __half, CUDA_R_16F, _64, int64_t)

// ---- chosen data types -------------------------------------------------------------------------------------------

#define EID_GEMM_EX(name, Scalar, suffix, Int)                                                                         \
  EID_BLAS name##suffix(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,        \
                        const Scalar *, const void *, cudaDataType a_type, Int lda, const void *, cudaDataType b_type, \
                        Int ldb, const Scalar *, void *c, cudaDataType c_type, Int ldc) {                              \
    return gemm(handle, EID_GEMM_CALL(#name #suffix), {ta, tb, m, n, k}, {a_type, b_type, c_type, CUBLAS_COMPUTE_32F}, \
                lda, ldb, c, ldc);                                                                                     \
  }
EID_GEMM_EX(cublasSgemmEx, float, , int)
EID_GEMM_EX(cublasSgemmEx, float, _64, int64_t)
EID_GEMM_EX(cublasCgemmEx, cuComplex, , int)
EID_GEMM_EX(cublasCgemmEx, cuComplex, _64, int64_t)
EID_GEMM_EX(cublasCgemm3mEx, cuComplex, , int)
EID_GEMM_EX(cublasCgemm3mEx, cuComplex, _64, int64_t)

#define EID_GEMM_ANY(suffix, Int)                                                                                      \
  EID_BLAS cublasGemmEx##suffix(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n,       \
                                Int k, const void *, const void *, cudaDataType a_type, Int lda, const void *,         \
                                cudaDataType b_type, Int ldb, const void *, void *c, cudaDataType c_type, Int ldc,     \
                                cublasComputeType_t compute, cublasGemmAlgo_t) {                                       \
    return gemm(handle, EID_GEMM_CALL("cublasGemmEx" #suffix), {ta, tb, m, n, k}, {a_type, b_type, c_type, compute},   \
                lda, ldb, c, ldc);                                                                                     \
  }                                                                                                                    \
  EID_BLAS cublasGemmBatchedEx##suffix(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m,       \
                                       Int n, Int k, const void *, const void *const[], cudaDataType a_type, Int lda,  \
                                       const void *const[], cudaDataType b_type, Int ldb, const void *,                \
                                       void *const c[], cudaDataType c_type, Int ldc, Int batch,                       \
                                       cublasComputeType_t compute, cublasGemmAlgo_t) {                                \
    return gemm_batched(handle, EID_GEMM_CALL("cublasGemmBatchedEx" #suffix), {ta, tb, m, n, k},                       \
                        {a_type, b_type, c_type, compute}, lda, ldb, c, ldc, batch);                                   \
  }                                                                                                                    \
  EID_BLAS cublasGemmStridedBatchedEx##suffix(                                                                         \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k, const void *,            \
      const void *, cudaDataType a_type, Int lda, long long, const void *, cudaDataType b_type, Int ldb, long long,    \
      const void *, void *c, cudaDataType c_type, Int ldc, long long stride_c, Int batch, cublasComputeType_t compute, \
      cublasGemmAlgo_t) {                                                                                              \
    return gemm(handle, EID_GEMM_CALL("cublasGemmStridedBatchedEx" #suffix), {ta, tb, m, n, k},                        \
                {a_type, b_type, c_type, compute}, lda, ldb, c, ldc, stride_c, batch);                                 \
  }
EID_GEMM_ANY(, int)
EID_GEMM_ANY(_64, int64_t)

// ---- groups ------------------------------------------------------------------------------------------------------

#if CUBLAS_VERSION >= 120500
#define EID_GEMM_GROUPED(letter, T, type, suffix, Int)                                                                 \
  EID_BLAS cublas##letter##gemmGroupedBatched##suffix(                                                                 \
      cublasHandle_t handle, const cublasOperation_t ta[], const cublasOperation_t tb[], const Int m[], const Int n[], \
      const Int k[], const T[], const T *const[], const Int lda[], const T *const[], const Int ldb[], const T[],       \
      T *const c[], const Int ldc[], Int groups, const Int size[]) {                                                   \
    return gemm_grouped<Int>(handle, EID_GEMM_CALL("cublas" #letter "gemmGroupedBatched" #suffix), ta, tb, m, n, k,    \
                             types_of(type), lda, ldb, c, ldc, groups, size);                                          \
  }
EID_BLAS_REAL(EID_GEMM_GROUPED)

#define EID_GEMM_GROUPED_EX(suffix, Int)                                                                               \
  EID_BLAS cublasGemmGroupedBatchedEx##suffix(                                                                         \
      cublasHandle_t handle, const cublasOperation_t ta[], const cublasOperation_t tb[], const Int m[], const Int n[], \
      const Int k[], const void *, const void *const[], cudaDataType a_type, const Int lda[], const void *const[],     \
      cudaDataType b_type, const Int ldb[], const void *, void *const c[], cudaDataType c_type, const Int ldc[],       \
      Int groups, const Int size[], cublasComputeType_t compute) {                                                     \
    return gemm_grouped<Int>(handle, EID_GEMM_CALL("cublasGemmGroupedBatchedEx" #suffix), ta, tb, m, n, k,             \
                             {a_type, b_type, c_type, compute}, lda, ldb, c, ldc, groups, size);                       \
  }
EID_GEMM_GROUPED_EX(, int)
EID_GEMM_GROUPED_EX(_64, int64_t)
#endif
