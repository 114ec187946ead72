// cuSPARSE: handles, descriptors, and the products and conversions that frameworks use, as operations of kind
// "library".
//
// Modelled are products of a sparse matrix and a dense vector or matrix, sampled products of two dense matrices, and
// calls that sort and convert indices. Not modelled are triangular solves, and operations whose values decide the shape
// of the result (sparse times sparse); their generated stubs say so. Workspaces have one small size, because the real
// sizes depend on algorithms that the library does not state.
#include <cusparse.h>

#include "operation.h"

using namespace eidolon;

struct cusparseContext {
  cudaStream_t stream = nullptr;
  cusparsePointerMode_t pointer_mode = CUSPARSE_POINTER_MODE_HOST;
};
struct cusparseMatDescr {
  cusparseMatrixType_t type = CUSPARSE_MATRIX_TYPE_GENERAL;
  cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
  cusparseDiagType_t diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
  cusparseIndexBase_t base = CUSPARSE_INDEX_BASE_ZERO;
};
struct cusparseSpMatDescr {
  int64_t rows, columns, nonzeros;
  void *values;
  cudaDataType type;
  int batch = 1;
};
struct cusparseDnMatDescr {
  int64_t rows, columns, leading;
  void *values;
  cudaDataType type;
  cusparseOrder_t order;
  int batch = 1;
  int64_t batch_stride = 0;
};
struct cusparseDnVecDescr {
  int64_t size;
  void *values;
  cudaDataType type;
};

namespace {

constexpr size_t kWorkspaceBytes = 4096;
constexpr int64_t kIndexBytes = 4;

int64_t bytes_of(cudaDataType type) {
  switch (type) {
  case CUDA_R_8I:
  case CUDA_R_8U:
    return 1;
  case CUDA_R_16F:
  case CUDA_R_16BF:
    return 2;
  case CUDA_C_32F:
  case CUDA_R_64F:
    return 8;
  case CUDA_C_64F:
    return 16;
  default:
    return 4;
  }
}

template <class T, class... Arguments> cusparseStatus_t make(T **out, Arguments... arguments) {
  if (!config().active)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  if (!out)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *out = new std::remove_const_t<T>{arguments...};
  return CUSPARSE_STATUS_SUCCESS;
}
template <class T> cusparseStatus_t destroy(T *object) {
  delete object;
  return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t run(cusparseHandle_t handle, const char *name, Work work, uint16_t call) {
  if (!handle)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  Status status = launch_library(name, work, handle->stream, call);
  return status == kSuccess       ? CUSPARSE_STATUS_SUCCESS
         : status == kOutOfMemory ? CUSPARSE_STATUS_ALLOC_FAILED
                                  : CUSPARSE_STATUS_EXECUTION_FAILED;
}

void overwritten(void *data, int64_t bytes) {
  if (data && bytes > 0)
    value_unknown(data, static_cast<size_t>(bytes));
}

int64_t extent(const cusparseDnMatDescr &matrix) {
  int64_t lines = matrix.order == CUSPARSE_ORDER_COL ? matrix.columns : matrix.rows;
  int64_t one = matrix.leading * lines;
  return (matrix.batch - 1) * matrix.batch_stride + one;
}
int64_t sparse_bytes(const cusparseSpMatDescr &matrix) {
  return matrix.nonzeros * (bytes_of(matrix.type) + kIndexBytes) + matrix.rows * kIndexBytes;
}

cusparseStatus_t workspace(cusparseHandle_t handle, size_t *out) {
  if (!handle)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  if (!out)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *out = kWorkspaceBytes;
  return CUSPARSE_STATUS_SUCCESS;
}

} // namespace

#define EID_SPARSE extern "C" EID_API cusparseStatus_t
#define NAMED(function) "cusparse:" #function

// ---- handle and versions -----------------------------------------------------------------------------------------

EID_SPARSE cusparseCreate(cusparseHandle_t *out) {
  if (config().active && ensure_context(current_device()) != kSuccess)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  return make(out);
}
EID_SPARSE cusparseDestroy(cusparseHandle_t handle) {
  return handle ? destroy(handle) : CUSPARSE_STATUS_NOT_INITIALIZED;
}
EID_SPARSE cusparseGetVersion(cusparseHandle_t handle, int *version) {
  if (!handle || !version)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *version = CUSPARSE_VERSION;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseGetProperty(libraryPropertyType type, int *value) {
  if (!value)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *value = type == MAJOR_VERSION ? CUSPARSE_VER_MAJOR : type == MINOR_VERSION ? CUSPARSE_VER_MINOR : CUSPARSE_VER_PATCH;
  return CUSPARSE_STATUS_SUCCESS;
}
extern "C" EID_API const char *cusparseGetErrorName(cusparseStatus_t status) {
  switch (status) {
  case CUSPARSE_STATUS_SUCCESS:
    return "CUSPARSE_STATUS_SUCCESS";
  case CUSPARSE_STATUS_NOT_INITIALIZED:
    return "CUSPARSE_STATUS_NOT_INITIALIZED";
  case CUSPARSE_STATUS_ALLOC_FAILED:
    return "CUSPARSE_STATUS_ALLOC_FAILED";
  case CUSPARSE_STATUS_INVALID_VALUE:
    return "CUSPARSE_STATUS_INVALID_VALUE";
  case CUSPARSE_STATUS_EXECUTION_FAILED:
    return "CUSPARSE_STATUS_EXECUTION_FAILED";
  case CUSPARSE_STATUS_NOT_SUPPORTED:
    return "CUSPARSE_STATUS_NOT_SUPPORTED";
  default:
    return "unknown cuSPARSE status";
  }
}
extern "C" EID_API const char *cusparseGetErrorString(cusparseStatus_t status) {
  return status == CUSPARSE_STATUS_NOT_SUPPORTED ? "operation not modelled by eidolon" : cusparseGetErrorName(status);
}
EID_SPARSE cusparseSetStream(cusparseHandle_t handle, cudaStream_t stream) {
  if (!handle)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseGetStream(cusparseHandle_t handle, cudaStream_t *out) {
  if (!handle || !out)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *out = handle->stream;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseSetPointerMode(cusparseHandle_t handle, cusparsePointerMode_t mode) {
  if (!handle)
    return CUSPARSE_STATUS_NOT_INITIALIZED;
  handle->pointer_mode = mode;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseGetPointerMode(cusparseHandle_t handle, cusparsePointerMode_t *out) {
  if (!handle || !out)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *out = handle->pointer_mode;
  return CUSPARSE_STATUS_SUCCESS;
}

// ---- descriptors -------------------------------------------------------------------------------------------------

EID_SPARSE cusparseCreateMatDescr(cusparseMatDescr_t *out) { return make(out); }
EID_SPARSE cusparseDestroyMatDescr(cusparseMatDescr_t matrix) { return destroy(matrix); }
EID_SPARSE cusparseSetMatType(cusparseMatDescr_t matrix, cusparseMatrixType_t type) {
  matrix->type = type;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseSetMatFillMode(cusparseMatDescr_t matrix, cusparseFillMode_t fill) {
  matrix->fill = fill;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseSetMatDiagType(cusparseMatDescr_t matrix, cusparseDiagType_t diagonal) {
  matrix->diagonal = diagonal;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseSetMatIndexBase(cusparseMatDescr_t matrix, cusparseIndexBase_t base) {
  matrix->base = base;
  return CUSPARSE_STATUS_SUCCESS;
}
extern "C" EID_API cusparseMatrixType_t cusparseGetMatType(const cusparseMatDescr_t matrix) { return matrix->type; }
extern "C" EID_API cusparseFillMode_t cusparseGetMatFillMode(const cusparseMatDescr_t matrix) { return matrix->fill; }
extern "C" EID_API cusparseDiagType_t cusparseGetMatDiagType(const cusparseMatDescr_t matrix) {
  return matrix->diagonal;
}
extern "C" EID_API cusparseIndexBase_t cusparseGetMatIndexBase(const cusparseMatDescr_t matrix) { return matrix->base; }

// Compressed rows, compressed columns and coordinates are described alike, since only the sizes and the place of the
// values matter here.
#define EID_COMPRESSED(Name)                                                                                           \
  EID_SPARSE cusparseCreate##Name(cusparseSpMatDescr_t *out, int64_t rows, int64_t columns, int64_t nonzeros, void *,  \
                                  void *, void *values, cusparseIndexType_t, cusparseIndexType_t, cusparseIndexBase_t, \
                                  cudaDataType type) {                                                                 \
    return make(out, rows, columns, nonzeros, values, type);                                                           \
  }                                                                                                                    \
  EID_SPARSE cusparseCreateConst##Name(                                                                                \
      cusparseConstSpMatDescr_t *out, int64_t rows, int64_t columns, int64_t nonzeros, const void *, const void *,     \
      const void *values, cusparseIndexType_t, cusparseIndexType_t, cusparseIndexBase_t, cudaDataType type) {          \
    return make(out, rows, columns, nonzeros, const_cast<void *>(values), type);                                       \
  }
EID_COMPRESSED(Csr)
EID_COMPRESSED(Csc)
EID_SPARSE cusparseCreateCoo(cusparseSpMatDescr_t *out, int64_t rows, int64_t columns, int64_t nonzeros, void *, void *,
                             void *values, cusparseIndexType_t, cusparseIndexBase_t, cudaDataType type) {
  return make(out, rows, columns, nonzeros, values, type);
}
EID_SPARSE cusparseCreateConstCoo(cusparseConstSpMatDescr_t *out, int64_t rows, int64_t columns, int64_t nonzeros,
                                  const void *, const void *, const void *values, cusparseIndexType_t,
                                  cusparseIndexBase_t, cudaDataType type) {
  return make(out, rows, columns, nonzeros, const_cast<void *>(values), type);
}
EID_SPARSE cusparseDestroySpMat(cusparseConstSpMatDescr_t matrix) { return destroy(matrix); }
EID_SPARSE cusparseCsrSetPointers(cusparseSpMatDescr_t matrix, void *, void *, void *values) {
  matrix->values = values;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseCsrSetStridedBatch(cusparseSpMatDescr_t matrix, int batch, int64_t, int64_t) {
  matrix->batch = batch;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseCooSetStridedBatch(cusparseSpMatDescr_t matrix, int batch, int64_t) {
  matrix->batch = batch;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseSpMatGetSize(cusparseConstSpMatDescr_t matrix, int64_t *rows, int64_t *columns, int64_t *nonzeros) {
  if (!matrix || !rows || !columns || !nonzeros)
    return CUSPARSE_STATUS_INVALID_VALUE;
  *rows = matrix->rows;
  *columns = matrix->columns;
  *nonzeros = matrix->nonzeros;
  return CUSPARSE_STATUS_SUCCESS;
}

EID_SPARSE cusparseCreateDnMat(cusparseDnMatDescr_t *out, int64_t rows, int64_t columns, int64_t leading, void *values,
                               cudaDataType type, cusparseOrder_t order) {
  return make(out, rows, columns, leading, values, type, order);
}
EID_SPARSE cusparseCreateConstDnMat(cusparseConstDnMatDescr_t *out, int64_t rows, int64_t columns, int64_t leading,
                                    const void *values, cudaDataType type, cusparseOrder_t order) {
  return make(out, rows, columns, leading, const_cast<void *>(values), type, order);
}
EID_SPARSE cusparseDestroyDnMat(cusparseConstDnMatDescr_t matrix) { return destroy(matrix); }
EID_SPARSE cusparseDnMatSetStridedBatch(cusparseDnMatDescr_t matrix, int batch, int64_t stride) {
  matrix->batch = batch;
  matrix->batch_stride = stride;
  return CUSPARSE_STATUS_SUCCESS;
}
EID_SPARSE cusparseCreateDnVec(cusparseDnVecDescr_t *out, int64_t size, void *values, cudaDataType type) {
  return make(out, size, values, type);
}
EID_SPARSE cusparseCreateConstDnVec(cusparseConstDnVecDescr_t *out, int64_t size, const void *values,
                                    cudaDataType type) {
  return make(out, size, const_cast<void *>(values), type);
}
EID_SPARSE cusparseDestroyDnVec(cusparseConstDnVecDescr_t vector) { return destroy(vector); }

// ---- products ----------------------------------------------------------------------------------------------------

EID_SPARSE cusparseSpMV_bufferSize(cusparseHandle_t handle, cusparseOperation_t, const void *,
                                   cusparseConstSpMatDescr_t, cusparseConstDnVecDescr_t, const void *,
                                   cusparseDnVecDescr_t, cudaDataType, cusparseSpMVAlg_t, size_t *out) {
  return workspace(handle, out);
}
EID_SPARSE cusparseSpMV(cusparseHandle_t handle, cusparseOperation_t, const void *, cusparseConstSpMatDescr_t a,
                        cusparseConstDnVecDescr_t x, const void *, cusparseDnVecDescr_t y, cudaDataType,
                        cusparseSpMVAlg_t, void *) {
  if (!a || !x || !y)
    return CUSPARSE_STATUS_INVALID_VALUE;
  Work work = {.bytes = sparse_bytes(*a) + x->size * bytes_of(x->type) + y->size * bytes_of(y->type),
               .flops = 2 * a->nonzeros};
  cusparseStatus_t status = run(handle, NAMED(cusparseSpMV), work, EID_CALL("cusparseSpMV"));
  overwritten(y->values, y->size * bytes_of(y->type));
  return status;
}

EID_SPARSE cusparseSpMM_bufferSize(cusparseHandle_t handle, cusparseOperation_t, cusparseOperation_t, const void *,
                                   cusparseConstSpMatDescr_t, cusparseConstDnMatDescr_t, const void *,
                                   cusparseDnMatDescr_t, cudaDataType, cusparseSpMMAlg_t, size_t *out) {
  return workspace(handle, out);
}
EID_SPARSE cusparseSpMM(cusparseHandle_t handle, cusparseOperation_t, cusparseOperation_t, const void *,
                        cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b, const void *, cusparseDnMatDescr_t c,
                        cudaDataType, cusparseSpMMAlg_t, void *) {
  if (!a || !b || !c)
    return CUSPARSE_STATUS_INVALID_VALUE;
  int64_t written = extent(*c) * bytes_of(c->type);
  Work work = {.bytes = sparse_bytes(*a) * a->batch + extent(*b) * bytes_of(b->type) + written,
               .flops = 2 * a->nonzeros * c->columns * c->batch};
  cusparseStatus_t status = run(handle, NAMED(cusparseSpMM), work, EID_CALL("cusparseSpMM"));
  overwritten(c->values, written);
  return status;
}

EID_SPARSE cusparseSDDMM_bufferSize(cusparseHandle_t handle, cusparseOperation_t, cusparseOperation_t, const void *,
                                    cusparseConstDnMatDescr_t, cusparseConstDnMatDescr_t, const void *,
                                    cusparseSpMatDescr_t, cudaDataType, cusparseSDDMMAlg_t, size_t *out) {
  return workspace(handle, out);
}
// Prepares what the product then uses. The cost of the product includes this.
EID_SPARSE cusparseSDDMM_preprocess(cusparseHandle_t handle, cusparseOperation_t, cusparseOperation_t, const void *,
                                    cusparseConstDnMatDescr_t, cusparseConstDnMatDescr_t, const void *,
                                    cusparseSpMatDescr_t, cudaDataType, cusparseSDDMMAlg_t, void *) {
  return handle ? CUSPARSE_STATUS_SUCCESS : CUSPARSE_STATUS_NOT_INITIALIZED;
}
EID_SPARSE cusparseSDDMM(cusparseHandle_t handle, cusparseOperation_t op, cusparseOperation_t, const void *,
                         cusparseConstDnMatDescr_t a, cusparseConstDnMatDescr_t b, const void *, cusparseSpMatDescr_t c,
                         cudaDataType, cusparseSDDMMAlg_t, void *) {
  if (!a || !b || !c)
    return CUSPARSE_STATUS_INVALID_VALUE;
  int64_t inner = op == CUSPARSE_OPERATION_NON_TRANSPOSE ? a->columns : a->rows;
  Work work = {.bytes = sparse_bytes(*c) + extent(*a) * bytes_of(a->type) + extent(*b) * bytes_of(b->type),
               .flops = 2 * c->nonzeros * inner * c->batch};
  cusparseStatus_t status = run(handle, NAMED(cusparseSDDMM), work, EID_CALL("cusparseSDDMM"));
  overwritten(c->values, c->nonzeros * bytes_of(c->type) * c->batch);
  return status;
}

// ---- indices -----------------------------------------------------------------------------------------------------

EID_SPARSE cusparseXcoo2csr(cusparseHandle_t handle, const int *, int nonzeros, int rows, int *offsets,
                            cusparseIndexBase_t) {
  Work work = {.bytes = (int64_t{nonzeros} + rows + 1) * kIndexBytes};
  cusparseStatus_t status = run(handle, NAMED(cusparseXcoo2csr), work, EID_CALL("cusparseXcoo2csr"));
  overwritten(offsets, (int64_t{rows} + 1) * kIndexBytes);
  return status;
}
EID_SPARSE cusparseXcsr2coo(cusparseHandle_t handle, const int *, int nonzeros, int rows, int *row_indices,
                            cusparseIndexBase_t) {
  Work work = {.bytes = (int64_t{nonzeros} + rows + 1) * kIndexBytes};
  cusparseStatus_t status = run(handle, NAMED(cusparseXcsr2coo), work, EID_CALL("cusparseXcsr2coo"));
  overwritten(row_indices, int64_t{nonzeros} * kIndexBytes);
  return status;
}
EID_SPARSE cusparseXcoosort_bufferSizeExt(cusparseHandle_t handle, int, int, int, const int *, const int *,
                                          size_t *out) {
  return workspace(handle, out);
}
EID_SPARSE cusparseXcoosortByRow(cusparseHandle_t handle, int, int, int nonzeros, int *rows, int *columns,
                                 int *permutation, void *) {
  Work work = {.bytes = 6 * int64_t{nonzeros} * kIndexBytes};
  cusparseStatus_t status = run(handle, NAMED(cusparseXcoosortByRow), work, EID_CALL("cusparseXcoosortByRow"));
  for (int *indices : {rows, columns, permutation})
    overwritten(indices, int64_t{nonzeros} * kIndexBytes);
  return status;
}
EID_SPARSE cusparseXcsrsort_bufferSizeExt(cusparseHandle_t handle, int, int, int, const int *, const int *,
                                          size_t *out) {
  return workspace(handle, out);
}
EID_SPARSE cusparseXcsrsort(cusparseHandle_t handle, int, int, int nonzeros, const cusparseMatDescr_t, const int *,
                            int *columns, int *permutation, void *) {
  Work work = {.bytes = 4 * int64_t{nonzeros} * kIndexBytes};
  cusparseStatus_t status = run(handle, NAMED(cusparseXcsrsort), work, EID_CALL("cusparseXcsrsort"));
  for (int *indices : {columns, permutation})
    overwritten(indices, int64_t{nonzeros} * kIndexBytes);
  return status;
}
