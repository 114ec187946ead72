// cuBLASLt: handles, descriptors and their attributes.
#include "cublaslt_descriptors.h"
#include "status.h"

#include <cstdlib>
#include <new>

struct cublasLtContext {
  int device;
};

namespace {
using namespace eidolon;
using namespace eidolon::lt;

constexpr Field kMatmul[] = {
    EID_FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, MatmulDesc, compute),
    EID_FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, MatmulDesc, scale_type),
    EID_FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, MatmulDesc, pointer_mode),
    EID_FIELD(CUBLASLT_MATMUL_DESC_TRANSA, MatmulDesc, ta),
    EID_FIELD(CUBLASLT_MATMUL_DESC_TRANSB, MatmulDesc, tb),
    EID_FIELD(CUBLASLT_MATMUL_DESC_TRANSC, MatmulDesc, tc),
    EID_FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, MatmulDesc, fill),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, MatmulDesc, epilogue),
    EID_FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, MatmulDesc, bias),
    EID_FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, MatmulDesc, bias_stride),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, MatmulDesc, aux),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, MatmulDesc, aux_ld),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, MatmulDesc, aux_stride),
    EID_FIELD(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, MatmulDesc, alpha_stride),
    EID_FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, MatmulDesc, sm_target),
    EID_FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, MatmulDesc, a_scale),
    EID_FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, MatmulDesc, b_scale),
    EID_FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, MatmulDesc, c_scale),
    EID_FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, MatmulDesc, d_scale),
    EID_FIELD(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, MatmulDesc, amax),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, MatmulDesc, aux_type),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, MatmulDesc, aux_scale),
    EID_FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, MatmulDesc, aux_amax),
    EID_FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, MatmulDesc, fast_accumulation),
    EID_FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, MatmulDesc, bias_type),
    EID_FIELD(27, MatmulDesc, atomic_rows), // ATOMIC_SYNC_NUM_CHUNKS_D_ROWS and its kin, gone since CUDA 13
    EID_FIELD(28, MatmulDesc, atomic_cols),
    EID_FIELD(29, MatmulDesc, atomic_in),
    EID_FIELD(30, MatmulDesc, atomic_out),
    EID_FIELD(31, MatmulDesc, a_mode), // A_SCALE_MODE ...
    EID_FIELD(32, MatmulDesc, b_mode),
    EID_FIELD(33, MatmulDesc, c_mode),
    EID_FIELD(34, MatmulDesc, d_mode),
    EID_FIELD(35, MatmulDesc, aux_mode),
    EID_FIELD(36, MatmulDesc, d_out_scale),
    EID_FIELD(37, MatmulDesc, d_out_mode),
    EID_FIELD(38, MatmulDesc, emulation),
};
constexpr Field kLayout[] = {
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, cols),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, ld),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batch),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, batch_stride),
    EID_FIELD(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, Layout, plane_offset),
    EID_FIELD(8, Layout, batch_mode), // BATCH_MODE
};
constexpr Field kPreference[] = {
    EID_FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, Preference, search_mode),
    EID_FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, max_workspace),
    EID_FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Preference, reduction_mask),
    EID_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, align_a),
    EID_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, align_b),
    EID_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, align_c),
    EID_FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, align_d),
    EID_FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, Preference, max_waves),
    EID_FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, Preference, impl_mask),
};
constexpr Field kTransform[] = {
    EID_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, Transform, scale_type),
    EID_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE, Transform, pointer_mode),
    EID_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, Transform, ta),
    EID_FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB, Transform, tb),
};

template <class Opaque> cublasStatus_t create(Opaque **out) {
  if (out == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  *out = static_cast<Opaque *>(std::calloc(1, sizeof(Opaque)));
  return *out != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
template <class Opaque> cublasStatus_t destroy(Opaque *descriptor) {
  std::free(descriptor);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque> cublasStatus_t clear(Opaque *descriptor, size_t bytes) {
  if (descriptor == nullptr || bytes < sizeof(Opaque))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memset(descriptor, 0, sizeof(Opaque));
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace

// ---- the library -------------------------------------------------------------------------------------------------

EID_LT cublasLtCreate(cublasLtHandle_t *handle) {
  if (handle == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (context() != kSuccess)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new (std::nothrow) cublasLtContext{current_device()};
  host_cost(EID_CALL("cublasLtCreate"));
  return *handle != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
EID_LT cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
extern "C" EID_API size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
extern "C" EID_API size_t cublasLtGetCudartVersion(void) { return kCudaVersion; }
extern "C" EID_API const char *cublasLtGetStatusName(cublasStatus_t status) { return blas::status_name(status); }
extern "C" EID_API const char *cublasLtGetStatusString(cublasStatus_t status) { return blas::status_text(status); }
EID_LT cublasLtGetProperty(libraryPropertyType type, int *value) {
  if (value == nullptr || type < MAJOR_VERSION || type > PATCH_LEVEL)
    return CUBLAS_STATUS_INVALID_VALUE;
  constexpr int kParts[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH};
  *value = kParts[type];
  return CUBLAS_STATUS_SUCCESS;
}

static size_t cache_capacity = 8192;
EID_LT cublasLtHeuristicsCacheGetCapacity(size_t *capacity) {
  if (capacity == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  *capacity = cache_capacity;
  return CUBLAS_STATUS_SUCCESS;
}
EID_LT cublasLtHeuristicsCacheSetCapacity(size_t capacity) {
  cache_capacity = capacity;
  return CUBLAS_STATUS_SUCCESS;
}
extern "C" EID_API unsigned cublasLtDisableCpuInstructionsSetMask(unsigned) { return 0; }

// Calls about logging are accepted. Nothing is logged, as when logging is off.
EID_LT cublasLtLoggerSetCallback(cublasLtLoggerCallback_t) { return CUBLAS_STATUS_SUCCESS; }
EID_LT cublasLtLoggerSetFile(FILE *) { return CUBLAS_STATUS_SUCCESS; }
EID_LT cublasLtLoggerOpenFile(const char *) { return CUBLAS_STATUS_SUCCESS; }
EID_LT cublasLtLoggerSetLevel(int) { return CUBLAS_STATUS_SUCCESS; }
EID_LT cublasLtLoggerSetMask(int) { return CUBLAS_STATUS_SUCCESS; }
EID_LT cublasLtLoggerForceDisable(void) { return CUBLAS_STATUS_SUCCESS; }

// ---- products ----------------------------------------------------------------------------------------------------

EID_LT cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t descriptor, size_t bytes, cublasComputeType_t compute,
                                       cudaDataType_t scale_type) {
  if (cublasStatus_t status = clear(descriptor, bytes))
    return status;
  auto *d = as<MatmulDesc>(descriptor);
  d->compute = compute;
  d->scale_type = scale_type;
  d->fill = CUBLAS_FILL_MODE_FULL;
  d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  d->bias_type = d->aux_type = -1;
  return CUBLAS_STATUS_SUCCESS;
}
EID_LT cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *descriptor, cublasComputeType_t compute,
                                cudaDataType_t scale_type) {
  if (cublasStatus_t status = create(descriptor))
    return status;
  return cublasLtMatmulDescInit_internal(*descriptor, sizeof(**descriptor), compute, scale_type);
}
EID_LT cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) { return destroy(descriptor); }
EID_LT cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute,
                                      const void *buffer, size_t bytes) {
  return set(kMatmul, descriptor, attribute, buffer, bytes);
}
EID_LT cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute,
                                      void *buffer, size_t bytes, size_t *written) {
  return get(kMatmul, descriptor, attribute, buffer, bytes, written);
}

// ---- layouts -----------------------------------------------------------------------------------------------------

EID_LT cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes, cudaDataType type, uint64_t rows,
                                         uint64_t cols, int64_t ld) {
  if (cublasStatus_t status = clear(layout, bytes))
    return status;
  auto *l = as<Layout>(layout);
  l->type = type;
  l->rows = rows;
  l->cols = cols;
  l->ld = ld;
  l->batch = 1;
  return CUBLAS_STATUS_SUCCESS;
}
EID_LT cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                  int64_t ld) {
  if (cublasStatus_t status = create(layout))
    return status;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof(**layout), type, rows, cols, ld);
}
EID_LT cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
EID_LT cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                        const void *buffer, size_t bytes) {
  return set(kLayout, layout, attribute, buffer, bytes);
}
EID_LT cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                        void *buffer, size_t bytes, size_t *written) {
  return get(kLayout, layout, attribute, buffer, bytes, written);
}

// ---- preferences -------------------------------------------------------------------------------------------------

EID_LT cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t bytes) {
  if (cublasStatus_t status = clear(preference, bytes))
    return status;
  auto *p = as<Preference>(preference);
  p->reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  p->align_a = p->align_b = p->align_c = p->align_d = 256;
  p->impl_mask = ~uint64_t{0};
  return CUBLAS_STATUS_SUCCESS;
}
EID_LT cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  if (cublasStatus_t status = create(preference))
    return status;
  return cublasLtMatmulPreferenceInit_internal(*preference, sizeof(**preference));
}
EID_LT cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
EID_LT cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                            cublasLtMatmulPreferenceAttributes_t attribute, const void *buffer,
                                            size_t bytes) {
  return set(kPreference, preference, attribute, buffer, bytes);
}
EID_LT cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                            cublasLtMatmulPreferenceAttributes_t attribute, void *buffer, size_t bytes,
                                            size_t *written) {
  return get(kPreference, preference, attribute, buffer, bytes, written);
}

// ---- transformations ---------------------------------------------------------------------------------------------

EID_LT cublasLtMatrixTransformDescInit_internal(cublasLtMatrixTransformDesc_t descriptor, size_t bytes,
                                                cudaDataType scale_type) {
  if (cublasStatus_t status = clear(descriptor, bytes))
    return status;
  as<Transform>(descriptor)->scale_type = scale_type;
  return CUBLAS_STATUS_SUCCESS;
}
EID_LT cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t *descriptor, cudaDataType scale_type) {
  if (cublasStatus_t status = create(descriptor))
    return status;
  return cublasLtMatrixTransformDescInit_internal(*descriptor, sizeof(**descriptor), scale_type);
}
EID_LT cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t descriptor) { return destroy(descriptor); }
EID_LT cublasLtMatrixTransformDescSetAttribute(cublasLtMatrixTransformDesc_t descriptor,
                                               cublasLtMatrixTransformDescAttributes_t attribute, const void *buffer,
                                               size_t bytes) {
  return set(kTransform, descriptor, attribute, buffer, bytes);
}
EID_LT cublasLtMatrixTransformDescGetAttribute(cublasLtMatrixTransformDesc_t descriptor,
                                               cublasLtMatrixTransformDescAttributes_t attribute, void *buffer,
                                               size_t bytes, size_t *written) {
  return get(kTransform, descriptor, attribute, buffer, bytes, written);
}

// ---- emulated precision ------------------------------------------------------------------------------------------

#if CUBLAS_VERSION >= 130000
namespace {
struct Emulation {
  int *bit_count;
  int32_t strategy, special_values, mantissa_control, max_bits, bit_offset;
};
static_assert(sizeof(Emulation) <= sizeof(cublasLtEmulationDescOpaque_t));
constexpr Field kEmulation[] = {
    EID_FIELD(CUBLASLT_EMULATION_DESC_STRATEGY, Emulation, strategy),
    EID_FIELD(CUBLASLT_EMULATION_DESC_SPECIAL_VALUES_SUPPORT, Emulation, special_values),
    EID_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_CONTROL, Emulation, mantissa_control),
    EID_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MAX_MANTISSA_BIT_COUNT, Emulation, max_bits),
    EID_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_OFFSET, Emulation, bit_offset),
    EID_FIELD(CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER, Emulation, bit_count),
};
} // namespace

EID_LT cublasLtEmulationDescInit_internal(cublasLtEmulationDesc_t descriptor, size_t bytes) {
  return clear(descriptor, bytes);
}
EID_LT cublasLtEmulationDescCreate(cublasLtEmulationDesc_t *descriptor) { return create(descriptor); }
EID_LT cublasLtEmulationDescDestroy(cublasLtEmulationDesc_t descriptor) { return destroy(descriptor); }
EID_LT cublasLtEmulationDescSetAttribute(cublasLtEmulationDesc_t descriptor,
                                         cublasLtEmulationDescAttributes_t attribute, const void *buffer,
                                         size_t bytes) {
  return set(kEmulation, descriptor, attribute, buffer, bytes);
}
EID_LT cublasLtEmulationDescGetAttribute(cublasLtEmulationDesc_t descriptor,
                                         cublasLtEmulationDescAttributes_t attribute, void *buffer, size_t bytes,
                                         size_t *written) {
  return get(kEmulation, descriptor, attribute, buffer, bytes, written);
}
#endif
