// cuBLAS and cuBLASLt without a simulation behind them: argument checks, what a product forgets, descriptors.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <vector>

#include "core.h"
#include "harness.h"

using namespace eidolon;

static constexpr char kMark = 7;

// Device memory whose bytes are all known.
static void *known(size_t bytes) {
  void *pointer;
  CHECK_EQUAL(mem_alloc(0, bytes, &pointer), kSuccess);
  std::vector<char> data(bytes, kMark);
  value_write(pointer, bytes, data.data());
  return pointer;
}
static size_t known_at(const void *pointer, size_t offset, size_t bytes) {
  return value_known(static_cast<const char *>(pointer) + offset, bytes);
}

static void a_handle_keeps_what_it_is_told() {
  cublasHandle_t handle;
  CHECK_EQUAL(cublasCreate_v2(nullptr), CUBLAS_STATUS_INVALID_VALUE);
  CHECK_EQUAL(cublasCreate_v2(&handle), CUBLAS_STATUS_SUCCESS);
  int version;
  cublasGetVersion_v2(handle, &version);
  CHECK_EQUAL(version, CUBLAS_VERSION);
  cublasMath_t math;
  CHECK_EQUAL(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH), CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(cublasGetMathMode(handle, &math), CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(math, CUBLAS_TF32_TENSOR_OP_MATH);
  cublasPointerMode_t mode;
  CHECK_EQUAL(cublasGetPointerMode_v2(handle, &mode), CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(mode, CUBLAS_POINTER_MODE_HOST);
  CHECK_EQUAL(cublasSetWorkspace_v2(handle, reinterpret_cast<void *>(8), 16), CUBLAS_STATUS_INVALID_VALUE);
  CHECK_EQUAL(strcmp(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED"), 0);
  CHECK_EQUAL(cublasDestroy_v2(handle), CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(cublasDestroy_v2(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
}

static void a_product_forgets_exactly_its_result() {
  cublasHandle_t handle;
  cublasCreate_v2(&handle);
  const float one = 1;
  // C is 2 x 3 inside a matrix with 5 rows: the rows between keep their bytes.
  void *a = known(64), *b = known(64), *c = known(5 * 3 * 4);
  auto *fa = static_cast<float *>(a), *fb = static_cast<float *>(b), *fc = static_cast<float *>(c);
  CHECK_EQUAL(cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, &one, fa, 1, fb, 4, &one, fc, 5),
              CUBLAS_STATUS_INVALID_VALUE); // lda is too small
  CHECK_EQUAL(known_at(c, 0, 60), 60);
  CHECK_EQUAL(cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_N, 0, 3, 4, &one, fa, 2, fb, 4, &one, fc, 5),
              CUBLAS_STATUS_SUCCESS); // nothing to do
  CHECK_EQUAL(known_at(c, 0, 60), 60);
  CHECK_EQUAL(cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 3, 4, &one, fa, 2, fb, 4, &one, fc, 5),
              CUBLAS_STATUS_SUCCESS);
  for (size_t column = 0; column < 3; ++column) {
    CHECK_EQUAL(known_at(c, column * 20, 1), 0);
    CHECK_EQUAL(known_at(c, column * 20 + 7, 1), 0);
    CHECK_EQUAL(known_at(c, column * 20 + 8, 12), 12);
  }
  CHECK_EQUAL(known_at(a, 0, 64), 64);
  // A batch whose matrices lie apart.
  void *d = known(64);
  CHECK_EQUAL(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 2, &one, a, CUDA_R_16BF, 2, 4, b,
                                         CUDA_R_16BF, 2, 4, &one, d, CUDA_R_16BF, 2, 16, 2, CUBLAS_COMPUTE_32F,
                                         CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(known_at(d, 0, 8), 0);
  CHECK_EQUAL(known_at(d, 8, 24), 24);
  CHECK_EQUAL(known_at(d, 32, 8), 0);
  CHECK_EQUAL(known_at(d, 40, 24), 24);
  // A batch by pointers: the array is in device memory and its bytes are known.
  void *e = known(16), *f = known(16), *array;
  mem_alloc(0, 16, &array);
  void *pointers[] = {e, f};
  value_write(array, sizeof(pointers), pointers);
  const double two = 2;
  CHECK_EQUAL(cublasDgemmBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &two, static_cast<double **>(array), 1,
                                 static_cast<double **>(array), 1, &two, static_cast<double **>(array), 1, 2),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(known_at(e, 0, 8), 0);
  CHECK_EQUAL(known_at(e, 8, 8), 8);
  CHECK_EQUAL(known_at(f, 0, 8), 0);
  cublasDestroy_v2(handle);
}

static void a_scalar_comes_back_as_zero() {
  cublasHandle_t handle;
  cublasCreate_v2(&handle);
  void *x = known(64);
  float host = 3;
  CHECK_EQUAL(cublasSdot_v2(handle, 4, static_cast<float *>(x), 1, static_cast<float *>(x), 1, &host),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(host, 0);
  void *result = known(4);
  cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_DEVICE);
  CHECK_EQUAL(cublasSnrm2_v2(handle, 4, static_cast<float *>(x), 1, static_cast<float *>(result)),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(known_at(result, 0, 4), 0);
  // Every other element of a strided vector.
  CHECK_EQUAL(
      cublasSaxpy_v2(handle, 2, static_cast<float *>(result), static_cast<float *>(x), 1, static_cast<float *>(x), 2),
      CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(known_at(x, 0, 4), 0);
  CHECK_EQUAL(known_at(x, 4, 4), 4);
  CHECK_EQUAL(known_at(x, 8, 4), 0);
  CHECK_EQUAL(known_at(x, 12, 4), 4);
  cublasDestroy_v2(handle);
}

static void lt_descriptors_give_back_their_attributes() {
  cublasLtMatmulDesc_t operation;
  CHECK_EQUAL(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  int32_t transpose = CUBLAS_OP_T, read = -1;
  size_t written = 0;
  CHECK_EQUAL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 4),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 8),
              CUBLAS_STATUS_INVALID_VALUE);
  CHECK_EQUAL(cublasLtMatmulDescGetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &read, 4, &written),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(read, CUBLAS_OP_T);
  CHECK_EQUAL(written, 4);
  CHECK_EQUAL(cublasLtMatmulDescGetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr, 0, &written),
              CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(written, 8);
  CHECK_EQUAL(cublasLtMatmulDescDestroy(operation), CUBLAS_STATUS_SUCCESS);
  // The inline initialisers of the header write into the caller's structure, and not past it.
  struct {
    cublasLtMatmulDescOpaque_t descriptor;
    uint64_t after;
  } local = {.descriptor = {}, .after = 42};
  CHECK_EQUAL(cublasLtMatmulDescInit(&local.descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(local.after, 42);
}

struct LtProblem {
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulPreference_t preference;

  LtProblem(cudaDataType type, cublasOperation_t ta, int m, int n, int k) {
    cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const int32_t transpose = ta;
    cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose));
    const bool t = ta == CUBLAS_OP_T;
    const auto um = static_cast<uint64_t>(m), un = static_cast<uint64_t>(n), uk = static_cast<uint64_t>(k);
    cublasLtMatrixLayoutCreate(&a, type, t ? uk : um, t ? um : uk, t ? k : m);
    cublasLtMatrixLayoutCreate(&b, type, uk, un, k);
    cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, um, un, m);
    cublasLtMatmulPreferenceCreate(&preference);
  }
  ~LtProblem() {
    cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a, b, c})
      cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation);
  }
  cublasStatus_t ask(cublasLtHandle_t handle, cublasLtMatmulHeuristicResult_t *result, int *found) {
    return cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, c, preference, 1, result, found);
  }
};

static void lt_heuristics_answer_as_sm_90() {
  cublasLtHandle_t handle;
  CHECK_EQUAL(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulHeuristicResult_t result;
  int found;
  LtProblem plain(CUDA_R_16BF, CUBLAS_OP_N, 32, 32, 32);
  CHECK_EQUAL(plain.ask(handle, &result, &found), CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(found, 1);
  CHECK_EQUAL(result.state, CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(result.workspaceSize, 0);
  LtProblem not_transposed(CUDA_R_8F_E4M3, CUBLAS_OP_N, 32, 32, 32); // sm_90 multiplies 8-bit floats as "TN" only
  CHECK_EQUAL(not_transposed.ask(handle, &result, &found), CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK_EQUAL(found, 0);
  LtProblem small(CUDA_R_8F_E4M3, CUBLAS_OP_T, 32, 32, 32);
  CHECK_EQUAL(small.ask(handle, &result, &found), CUBLAS_STATUS_SUCCESS);
  const int32_t block = 2; // scales of 32 elements: sm_100
  cublasLtMatmulDescSetAttribute(small.operation, static_cast<cublasLtMatmulDescAttributes_t>(31), &block, 4);
  CHECK_EQUAL(small.ask(handle, &result, &found), CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtDestroy(handle);
}

static void lt_epilogues_forget_what_they_write() {
  cublasLtHandle_t handle;
  cublasLtCreate(&handle);
  LtProblem p(CUDA_R_16BF, CUBLAS_OP_N, 16, 8, 4);
  void *a = known(128), *b = known(64), *d = known(16 * 8 * 2), *aux = known(16 * 8 * 2), *bias = known(32);
  const uint32_t epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const int64_t aux_ld = 16;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    CHECK_EQUAL(cublasLtMatmulDescSetAttribute(p.operation, attribute, value, bytes), CUBLAS_STATUS_SUCCESS);
  };
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof(aux_ld));
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
  const float one = 1, zero = 0;
  CHECK_EQUAL(
      cublasLtMatmul(handle, p.operation, &one, a, p.a, b, p.b, &zero, d, p.c, d, p.c, nullptr, nullptr, 0, nullptr),
      CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(known_at(d, 0, 1), 0);
  CHECK_EQUAL(known_at(d, 255, 1), 0);
  CHECK_EQUAL(known_at(aux, 0, 1), 0);
  CHECK_EQUAL(known_at(bias, 0, 32), 32); // only read
  const uint32_t gradient = CUBLASLT_EPILOGUE_BGRADB;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, &gradient, sizeof(gradient));
  CHECK_EQUAL(
      cublasLtMatmul(handle, p.operation, &one, a, p.a, b, p.b, &zero, d, p.c, d, p.c, nullptr, nullptr, 0, nullptr),
      CUBLAS_STATUS_SUCCESS);
  CHECK_EQUAL(known_at(bias, 0, 1), 0); // n values of bf16
  CHECK_EQUAL(known_at(bias, 16, 16), 16);
  cublasLtDestroy(handle);
}

int main() {
  test::enter_server("mode=null\ndevices=1\ngpu.memory_bytes=1073741824\ngpu.context_bytes=0\ngpu.cc=9.0\n"
                     "gpu.sm_count=132\n");
  CHECK_EQUAL(ensure_context(0), kSuccess);
  a_handle_keeps_what_it_is_told();
  a_product_forgets_exactly_its_result();
  a_scalar_comes_back_as_zero();
  lt_descriptors_give_back_their_attributes();
  lt_heuristics_answer_as_sm_90();
  lt_epilogues_forget_what_they_write();
  return test::result();
}
