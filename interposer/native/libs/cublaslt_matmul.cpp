// cuBLASLt: algorithms, heuristics, and the product itself.
//
// The heuristic answers with one algorithm wherever an sm_90 device has one, and with CUBLAS_STATUS_NOT_SUPPORTED where
// it has none, since frameworks choose their path by that. The algorithms need no workspace of their own: callers bring
// one whose size they chose before asking.
#include "cublaslt_descriptors.h"
#include "status.h"

namespace {
using namespace eidolon;
using namespace eidolon::lt;

constexpr Field kAlgorithm[] = {
    EID_FIELD(CUBLASLT_ALGO_CONFIG_ID, Algorithm, id),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_TILE_ID, Algorithm, tile),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, Algorithm, split_k),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, Algorithm, reduction),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, Algorithm, swizzle),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, Algorithm, custom),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_STAGES_ID, Algorithm, stages),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, Algorithm, inner_shape),
    EID_FIELD(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, Algorithm, cluster_shape),
};
constexpr int kAlgorithmId = 66; // the one algorithm; the number is only a name

bool fp8(int type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
bool four_bit(int type) { return blas::bits_of(type) == 4; }
bool op_transposed(int op) { return op == CUBLAS_OP_T || op == CUBLAS_OP_C; }

struct Problem {
  int64_t m, n, k, batch;
  bool ta, tb;
};

// A row-major matrix is the transpose of a column-major one with swapped sizes. rows and cols always name the logical
// sizes.
bool shape_of(const MatmulDesc &d, const Layout &a, const Layout &b, const Layout &out, Problem *p) {
  p->ta = op_transposed(d.ta);
  p->tb = op_transposed(d.tb);
  p->m = static_cast<int64_t>(p->ta ? a.cols : a.rows);
  p->k = static_cast<int64_t>(p->ta ? a.rows : a.cols);
  p->n = static_cast<int64_t>(p->tb ? b.rows : b.cols);
  p->batch = out.batch;
  const auto k_of_b = static_cast<int64_t>(p->tb ? b.cols : b.rows);
  return p->m == static_cast<int64_t>(out.rows) && p->n == static_cast<int64_t>(out.cols) && p->k == k_of_b;
}

bool layout_fits(const Layout &l) {
  const uint64_t least = l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows;
  const bool plain = l.order == CUBLASLT_ORDER_COL || l.order == CUBLASLT_ORDER_ROW;
  return l.batch >= 0 && (!plain || l.ld >= static_cast<int64_t>(least));
}

// Whether an sm_90 device can run the product. Older and newer devices differ in the 8- and 4-bit types only.
cublasStatus_t supported(const MatmulDesc &d, const Layout &a, const Layout &b, const Layout &c, const Layout &out) {
  Problem p;
  if (!shape_of(d, a, b, out, &p) || !layout_fits(a) || !layout_fits(b) || !layout_fits(c) || !layout_fits(out))
    return CUBLAS_STATUS_INVALID_VALUE;
  const int capability = config().gpu.cc_major * 10 + config().gpu.cc_minor;
  const int a_type = static_cast<int>(a.type), b_type = static_cast<int>(b.type);
  if (four_bit(a_type) || four_bit(b_type))
    return capability >= 100 && p.ta && !p.tb ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  if (fp8(a_type) || fp8(b_type)) {
    if (capability < 89 || !fp8(a_type) || !fp8(b_type))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a_type == CUDA_R_8F_E5M2 && b_type == CUDA_R_8F_E5M2) // there is no such tensor core instruction
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (capability < 100 && (!p.ta || p.tb)) // only "TN"
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.m % 16 != 0 || p.k % 16 != 0 || a.ld % 16 != 0 || b.ld % 16 != 0)
      return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto block_scaled = [](int mode) { return mode == 1 || mode == 2; }; // 16 or 32 elements share a scale
    if (capability < 100 && (block_scaled(d.a_mode) || block_scaled(d.b_mode)))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (capability != 90 && (d.a_mode >= 3 || d.b_mode >= 3)) // outer vectors and 128-wide blocks
      return CUBLAS_STATUS_NOT_SUPPORTED;
  } else if (d.a_mode != 0 || d.b_mode != 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

void fill(cublasLtMatmulAlgo_t *algorithm, int id) {
  std::memset(algorithm, 0, sizeof(*algorithm));
  *as<Algorithm>(algorithm) = {.id = id,
                               .tile = CUBLASLT_MATMUL_TILE_128x128,
                               .split_k = 1,
                               .reduction = CUBLASLT_REDUCTION_SCHEME_NONE,
                               .swizzle = 0,
                               .custom = 0,
                               .stages = 0,
                               .inner_shape = 0,
                               .cluster_shape = 0,
                               .valid = kValid};
}

float waves(const Problem &p) {
  const int64_t tiles = ((p.m + 127) / 128) * ((p.n + 127) / 128) * std::max<int64_t>(p.batch, 1);
  return static_cast<float>(tiles) / static_cast<float>(std::max(config().gpu.sm_count, 1));
}

// Makes the bytes of D unknown, as its layout describes them.
void output_written(void *pointer, const Layout &l) {
  const int type = static_cast<int>(l.type);
  auto rows = static_cast<int64_t>(l.rows), cols = static_cast<int64_t>(l.cols);
  if (l.order == CUBLASLT_ORDER_ROW)
    std::swap(rows, cols);
  else if (l.order != CUBLASLT_ORDER_COL) { // tiled orders are dense
    rows *= cols;
    cols = 1;
  }
  const int64_t ld = cols == 1 ? rows : l.ld;
  if (l.batch_mode == 1)
    blas::for_each_known(pointer, l.batch,
                         [&](void *one, int64_t) { blas::matrix_written(one, type, rows, cols, ld); });
  else
    blas::matrix_written(pointer, type, rows, cols, ld, l.batch_stride, std::max(l.batch, 1));
}

void epilogue_written(const MatmulDesc &d, const Problem &p, const Layout &out) {
  constexpr uint32_t kAux = 128, kReluAux = CUBLASLT_EPILOGUE_RELU_AUX, kGeluAux = CUBLASLT_EPILOGUE_GELU_AUX;
  const bool writes_aux = (d.epilogue & kReluAux) == kReluAux || (d.epilogue & kGeluAux) == kGeluAux;
  if ((d.epilogue & kAux) != 0 && writes_aux && d.aux != nullptr) {
    const bool mask = (d.epilogue & CUBLASLT_EPILOGUE_RELU) != 0; // one bit per element
    const int type = d.aux_type >= 0 ? d.aux_type : static_cast<int>(out.type);
    if (mask)
      blas::written(d.aux, (p.m + 7) / 8, d.aux_ld / 8, p.n * p.batch);
    else
      blas::matrix_written(d.aux, type, p.m, p.n, d.aux_ld, d.aux_stride, p.batch);
  }
  constexpr uint32_t kBiasGradient = 16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;
  if ((d.epilogue & kBiasGradient) != 0 && d.bias != nullptr) {
    const int type = d.bias_type >= 0 ? d.bias_type : static_cast<int>(out.type);
    const int64_t length = (d.epilogue & CUBLASLT_EPILOGUE_BGRADB) != 0 ? p.n : p.m;
    blas::matrix_written(d.bias, type, length, 1, length, d.bias_stride, p.batch);
  }
  for (void *amax : {d.amax, d.aux_amax})
    if (amax != nullptr)
      value_unknown(amax, sizeof(float));
  if (d.d_out_scale != nullptr) // one scale per 32 elements
    value_unknown(d.d_out_scale, static_cast<size_t>(p.m * p.n * p.batch / 32));
}

} // namespace

// ---- heuristics and algorithms -----------------------------------------------------------------------------------

EID_LT cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                      cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                      cublasLtMatmulPreference_t preference, int requested,
                                      cublasLtMatmulHeuristicResult_t results[], int *returned) {
  if (returned != nullptr)
    *returned = 0;
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (operation == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr || preference == nullptr ||
      requested <= 0 || results == nullptr || returned == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto &desc = *as<MatmulDesc>(operation);
  const auto &la = *as<Layout>(a), &lb = *as<Layout>(b), &lc = *as<Layout>(c), &ld = *as<Layout>(d);
  if (cublasStatus_t status = supported(desc, la, lb, lc, ld))
    return status;
  host_cost(EID_CALL("cublasLtMatmulAlgoGetHeuristic"));
  Problem p;
  shape_of(desc, la, lb, ld, &p);
  cublasLtMatmulHeuristicResult_t &result = results[0];
  std::memset(&result, 0, sizeof(result));
  fill(&result.algo, kAlgorithmId);
  result.workspaceSize = 0;
  result.state = CUBLAS_STATUS_SUCCESS;
  result.wavesCount = waves(p);
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

EID_LT cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                cudaDataType_t, cudaDataType_t, cudaDataType_t, int requested, int ids[],
                                int *returned) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested <= 0 || ids == nullptr || returned == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  ids[0] = kAlgorithmId;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

EID_LT cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                              cudaDataType_t, cudaDataType_t, cudaDataType_t, int id, cublasLtMatmulAlgo_t *algorithm) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algorithm == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  fill(algorithm, id);
  return CUBLAS_STATUS_SUCCESS;
}

EID_LT cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (operation == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr || algorithm == nullptr ||
      result == nullptr || as<Algorithm>(algorithm)->valid != kValid)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto &desc = *as<MatmulDesc>(operation);
  const cublasStatus_t status = supported(desc, *as<Layout>(a), *as<Layout>(b), *as<Layout>(c), *as<Layout>(d));
  std::memset(result, 0, sizeof(*result));
  result->algo = *algorithm;
  result->state = status;
  Problem p;
  if (shape_of(desc, *as<Layout>(a), *as<Layout>(b), *as<Layout>(d), &p))
    result->wavesCount = waves(p);
  return status;
}

EID_LT cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algorithm,
                                            cublasLtMatmulAlgoConfigAttributes_t attribute, const void *buffer,
                                            size_t bytes) {
  if (attribute == CUBLASLT_ALGO_CONFIG_ID) // read-only
    return CUBLAS_STATUS_INVALID_VALUE;
  return set(kAlgorithm, algorithm, attribute, buffer, bytes);
}
EID_LT cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                            cublasLtMatmulAlgoConfigAttributes_t attribute, void *buffer, size_t bytes,
                                            size_t *written) {
  return get(kAlgorithm, algorithm, attribute, buffer, bytes, written);
}

EID_LT cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                         cublasLtMatmulAlgoCapAttributes_t attribute, void *buffer, size_t bytes,
                                         size_t *written) {
  if (algorithm == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  uint32_t value = 0;
  switch (attribute) {
  case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT:
  case CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT:
  case CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT:
    value = 1;
    break;
  case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK:
    value = CUBLASLT_REDUCTION_SCHEME_MASK;
    break;
  case CUBLASLT_ALGO_CAP_POINTER_MODE_MASK:
    value = CUBLASLT_POINTER_MODE_MASK_HOST | CUBLASLT_POINTER_MODE_MASK_DEVICE;
    break;
  case CUBLASLT_ALGO_CAP_EPILOGUE_MASK:
    value = ~uint32_t{0};
    break;
  case CUBLASLT_ALGO_CAP_TILE_IDS:
    value = CUBLASLT_MATMUL_TILE_128x128;
    break;
  case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES:
  case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES:
  case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES:
  case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES:
    value = 16;
    break;
  case CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT:
  case CUBLASLT_ALGO_CAP_UPLO_SUPPORT:
  case CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX:
  case CUBLASLT_ALGO_CAP_CUSTOM_MEMORY_ORDER:
  case CUBLASLT_ALGO_CAP_LD_NEGATIVE:
  case CUBLASLT_ALGO_CAP_STAGES_IDS:
    break;
  default:
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (bytes == 0) {
    if (written == nullptr)
      return CUBLAS_STATUS_INVALID_VALUE;
    *written = sizeof(value);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (buffer == nullptr || bytes < sizeof(value))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(buffer, &value, sizeof(value));
  if (written != nullptr)
    *written = sizeof(value);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- operations --------------------------------------------------------------------------------------------------

EID_LT cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                      cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *,
                      const void *, cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t *algorithm, void *, size_t, cudaStream_t stream) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (operation == nullptr || alpha == nullptr || a_layout == nullptr || b_layout == nullptr || c_layout == nullptr ||
      d_layout == nullptr || (algorithm != nullptr && as<Algorithm>(algorithm)->valid != kValid))
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto &desc = *as<MatmulDesc>(operation);
  const auto &la = *as<Layout>(a_layout), &lb = *as<Layout>(b_layout), &out = *as<Layout>(d_layout);
  if (cublasStatus_t status = supported(desc, la, lb, *as<Layout>(c_layout), out))
    return status;
  Problem p;
  shape_of(desc, la, lb, out, &p);
  if (p.m == 0 || p.n == 0 || p.batch == 0)
    return CUBLAS_STATUS_SUCCESS;
  if (d == nullptr || (p.k > 0 && (a == nullptr || b == nullptr)))
    return CUBLAS_STATUS_INVALID_VALUE;
  Stream *lane = stream_of(stream);
  if (lane == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  output_written(d, out);
  epilogue_written(desc, p, out);
  const blas::Gemm gemm = {.m = p.m,
                           .n = p.n,
                           .k = p.k,
                           .batch = p.batch,
                           .ta = p.ta,
                           .tb = p.tb,
                           .a_type = static_cast<int>(la.type),
                           .c_type = static_cast<int>(out.type),
                           .compute = desc.compute,
                           .epilogue = static_cast<int>(desc.epilogue)};
  return blas::status_of(
      launch_operation(lane, blas::signature_of("cublasLtMatmul", gemm), EID_CALL("cublasLtMatmul")));
}

EID_LT cublasLtMatrixTransform(cublasLtHandle_t handle, cublasLtMatrixTransformDesc_t operation, const void *,
                               const void *, cublasLtMatrixLayout_t a_layout, const void *, const void *b,
                               cublasLtMatrixLayout_t b_layout, void *c, cublasLtMatrixLayout_t c_layout,
                               cudaStream_t stream) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  Stream *lane = stream_of(stream);
  if (operation == nullptr || a_layout == nullptr || c_layout == nullptr || c == nullptr || lane == nullptr ||
      (b != nullptr && b_layout == nullptr))
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto bytes = [](const Layout &l) {
    return blas::bytes_of(static_cast<int>(l.type), static_cast<int64_t>(l.rows * l.cols)) * std::max(l.batch, 1);
  };
  const auto &out = *as<Layout>(c_layout);
  output_written(c, out);
  const int64_t moved = bytes(*as<Layout>(a_layout)) + (b != nullptr ? bytes(*as<Layout>(b_layout)) : 0) + bytes(out);
  return blas::status_of(launch_operation(lane, blas::library_signature("cublaslt:cublasLtMatrixTransform", moved, 0),
                                          EID_CALL("cublasLtMatrixTransform")));
}
