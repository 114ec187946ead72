// cuDNN: what a convolution costs, and the legacy convolution calls.
//
// The legacy calls offer one algorithm per direction. It is the implicit product, with the workspace of the backend's
// engine.
#include "cudnn_internal.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace eidolon::dnn {

// Signatures are two-dimensional. Further spatial dimensions are folded into the height, which keeps bytes and work the
// same.
uint32_t signature_of(const Convolution &c) {
  const int spatial = c.spatial, last = spatial + 1;
  const auto fold = [&](const Tensor &tensor) {
    int64_t product = 1;
    for (int i = 2; i < last; ++i)
      product *= tensor.dims[i];
    return product;
  };
  const int64_t groups = c.w.dims[1] > 0 ? std::max<int64_t>(1, c.x.dims[1] / c.w.dims[1]) : 1;
  const signatures::Conv fields = {.n = c.x.dims[0],
                                   .c = c.x.dims[1],
                                   .h = fold(c.x),
                                   .w = c.x.dims[last],
                                   .k = c.w.dims[0],
                                   .r = fold(c.w),
                                   .s = c.w.dims[last],
                                   .oh = fold(c.y),
                                   .ow = c.y.dims[last],
                                   .stride_h = spatial > 1 ? c.stride[spatial - 2] : 1,
                                   .stride_w = c.stride[spatial - 1],
                                   .pad_h = spatial > 1 ? c.pad[spatial - 2] : 0,
                                   .pad_w = c.pad[spatial - 1],
                                   .dil_h = spatial > 1 ? c.dilation[spatial - 2] : 1,
                                   .dil_w = c.dilation[spatial - 1],
                                   .groups = groups,
                                   .dtype = c.x.type,
                                   .op = current_operator()};
  const signatures::ConvName name = c.direction == Direction::kForward        ? signatures::ConvName("forward")
                                    : c.direction == Direction::kDataGradient ? signatures::ConvName("dgrad")
                                                                              : signatures::ConvName("wgrad");
  return signature(name, fields);
}

} // namespace eidolon::dnn

using namespace eidolon;
using namespace eidolon::dnn;

Tensor cudnnFilterStruct::tensor() const {
  Tensor out;
  out.type = type;
  out.n = n;
  int order[CUDNN_DIM_MAX], count = 0; // dimensions, outermost first
  order[count++] = 0;
  if (format == CUDNN_TENSOR_NHWC) {
    for (int i = 2; i < n; ++i)
      order[count++] = i;
    if (n > 1)
      order[count++] = 1;
  } else {
    for (int i = 1; i < n; ++i)
      order[count++] = i;
  }
  int64_t stride = 1;
  for (int i = n - 1; i >= 0; --i) {
    out.dims[order[i]] = dims[order[i]];
    out.strides[order[i]] = stride;
    stride *= dims[order[i]];
  }
  return out;
}

namespace {

Convolution describe(Direction direction, const Tensor &x, const Tensor &w, const Tensor &y,
                     const cudnnConvolutionStruct &c) {
  Convolution out{.direction = direction, .x = x, .w = w, .y = y, .spatial = c.spatial};
  for (int i = 0; i < c.spatial; ++i) {
    out.stride[i] = c.stride[i];
    out.pad[i] = c.pad[i];
    out.dilation[i] = c.dilation[i];
  }
  return out;
}

bool consistent(const Tensor &x, const Tensor &w, const Tensor &y, const cudnnConvolutionStruct &c) {
  return c.spatial > 0 && x.n == c.spatial + 2 && w.n == x.n && y.n == x.n && w.dims[1] * c.groups == x.dims[1] &&
         w.dims[0] == y.dims[1] && x.dims[0] == y.dims[0];
}

template <class Performance, class Algorithm>
void report(Performance *out, Algorithm algorithm, const Convolution &convolution,
            const cudnnConvolutionStruct &descriptor) {
  std::memset(out, 0, sizeof(*out));
  out->algo = algorithm;
  out->status = CUDNN_STATUS_SUCCESS;
  out->time = -1; // never measured
  out->memory = static_cast<size_t>(workspace_bytes(convolution));
  out->determinism = CUDNN_DETERMINISTIC;
  out->mathType = descriptor.math;
}

} // namespace

EID_DNN_DESCRIPTOR(Convolution, cudnnConvolutionStruct)

EID_DNN cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t c, int spatial, const int pad[],
                                        const int stride[], const int dilation[], cudnnConvolutionMode_t mode,
                                        cudnnDataType_t compute) {
  EID_DNN_NEEDS(c != nullptr && spatial > 0 && spatial <= CUDNN_DIM_MAX - 2 && pad && stride && dilation);
  for (int i = 0; i < spatial; ++i)
    EID_DNN_NEEDS(pad[i] >= 0 && stride[i] > 0 && dilation[i] > 0);
  c->spatial = spatial;
  std::copy_n(pad, spatial, c->pad);
  std::copy_n(stride, spatial, c->stride);
  std::copy_n(dilation, spatial, c->dilation);
  c->mode = mode;
  c->compute = compute;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int pad_h, int pad_w, int u, int v,
                                        int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                        cudnnDataType_t compute) {
  const int pad[] = {pad_h, pad_w}, stride[] = {u, v}, dilation[] = {dilation_h, dilation_w};
  return cudnnSetConvolutionNdDescriptor(c, 2, pad, stride, dilation, mode, compute);
}
EID_DNN cudnnGetConvolutionNdDescriptor(const cudnnConvolutionDescriptor_t c, int requested, int *spatial, int pad[],
                                        int stride[], int dilation[], cudnnConvolutionMode_t *mode,
                                        cudnnDataType_t *compute) {
  EID_DNN_NEEDS(c != nullptr && requested >= 0);
  const int n = std::min(requested, c->spatial);
  if (spatial != nullptr)
    *spatial = c->spatial;
  if (pad != nullptr)
    std::copy_n(c->pad, n, pad);
  if (stride != nullptr)
    std::copy_n(c->stride, n, stride);
  if (dilation != nullptr)
    std::copy_n(c->dilation, n, dilation);
  if (mode != nullptr)
    *mode = c->mode;
  if (compute != nullptr)
    *compute = c->compute;
  return CUDNN_STATUS_SUCCESS;
}
#define EID_CONVOLUTION_FIELD(Name, Type, field)                                                                       \
  EID_DNN cudnnSetConvolution##Name(cudnnConvolutionDescriptor_t c, Type value) {                                      \
    EID_DNN_NEEDS(c != nullptr);                                                                                       \
    c->field = value;                                                                                                  \
    return CUDNN_STATUS_SUCCESS;                                                                                       \
  }                                                                                                                    \
  EID_DNN cudnnGetConvolution##Name(cudnnConvolutionDescriptor_t c, Type *value) {                                     \
    EID_DNN_NEEDS(c != nullptr && value != nullptr);                                                                   \
    *value = c->field;                                                                                                 \
    return CUDNN_STATUS_SUCCESS;                                                                                       \
  }
EID_CONVOLUTION_FIELD(MathType, cudnnMathType_t, math)
EID_CONVOLUTION_FIELD(GroupCount, int, groups)
EID_CONVOLUTION_FIELD(ReorderType, cudnnReorderType_t, reorder)

EID_DNN cudnnGetConvolutionNdForwardOutputDim(const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t x,
                                              const cudnnFilterDescriptor_t w, int n, int out[]) {
  EID_DNN_NEEDS(c != nullptr && x != nullptr && w != nullptr && out != nullptr && n == x->n && n == c->spatial + 2);
  out[0] = static_cast<int>(x->dims[0]);
  out[1] = w->dims[0];
  for (int i = 0; i < c->spatial; ++i) {
    const int window = (w->dims[i + 2] - 1) * c->dilation[i] + 1;
    out[i + 2] = (static_cast<int>(x->dims[i + 2]) + 2 * c->pad[i] - window) / c->stride[i] + 1;
  }
  return CUDNN_STATUS_SUCCESS;
}

// ---- forward -----------------------------------------------------------------------------------------------------

#define EID_ONE_ALGORITHM(kind, algorithm)                                                                             \
  EID_DNN_NEEDS(handle && x && w && y && c && requested > 0 && returned && results);                                   \
  const Tensor tx = *x, tw = w->tensor(), ty = *y;                                                                     \
  EID_DNN_NEEDS(consistent(tx, tw, ty, *c));                                                                           \
  report(results, algorithm, describe(kind, tx, tw, ty, *c), *c);                                                      \
  *returned = 1;                                                                                                       \
  return CUDNN_STATUS_SUCCESS;

EID_DNN cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                               const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t c,
                                               const cudnnTensorDescriptor_t y, const int requested, int *returned,
                                               cudnnConvolutionFwdAlgoPerf_t *results){
    EID_ONE_ALGORITHM(Direction::kForward, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)} EID_DNN
    cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *,
                                           const cudnnFilterDescriptor_t w, const void *,
                                           const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t y,
                                           void *, const int requested, int *returned,
                                           cudnnConvolutionFwdAlgoPerf_t *results, void *, size_t) {
  return cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, c, y, requested, returned, results);
}
EID_DNN cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                const cudnnFilterDescriptor_t w, const cudnnConvolutionDescriptor_t c,
                                                const cudnnTensorDescriptor_t y, cudnnConvolutionFwdAlgo_t,
                                                size_t *bytes) {
  EID_DNN_NEEDS(handle && x && w && y && c && bytes && consistent(*x, w->tensor(), *y, *c));
  *bytes = static_cast<size_t>(workspace_bytes(describe(Direction::kForward, *x, w->tensor(), *y, *c)));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnConvolutionForward(cudnnHandle_t handle, const void *, const cudnnTensorDescriptor_t x, const void *,
                                const cudnnFilterDescriptor_t w, const void *, const cudnnConvolutionDescriptor_t c,
                                cudnnConvolutionFwdAlgo_t, void *, size_t, const void *,
                                const cudnnTensorDescriptor_t y, void *out) {
  EID_DNN_NEEDS(handle && x && w && y && c && out && consistent(*x, w->tensor(), *y, *c));
  written(out, *y);
  return launch(handle, signature_of(describe(Direction::kForward, *x, w->tensor(), *y, *c)),
                EID_CALL("cudnnConvolutionForward"));
}
EID_DNN cudnnConvolutionBiasActivationForward(cudnnHandle_t handle, const void *, const cudnnTensorDescriptor_t x,
                                              const void *, const cudnnFilterDescriptor_t w, const void *,
                                              const cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t, void *,
                                              size_t, const void *, const cudnnTensorDescriptor_t, const void *,
                                              const cudnnTensorDescriptor_t, const void *,
                                              const cudnnActivationDescriptor_t, const cudnnTensorDescriptor_t y,
                                              void *out) {
  EID_DNN_NEEDS(handle && x && w && y && c && out && consistent(*x, w->tensor(), *y, *c));
  written(out, *y);
  return launch(handle, signature_of(describe(Direction::kForward, *x, w->tensor(), *y, *c)),
                EID_CALL("cudnnConvolutionBiasActivationForward"));
}

// ---- backward ----------------------------------------------------------------------------------------------------

EID_DNN cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                    const cudnnTensorDescriptor_t y,
                                                    const cudnnConvolutionDescriptor_t c,
                                                    const cudnnTensorDescriptor_t x, const int requested, int *returned,
                                                    cudnnConvolutionBwdDataAlgoPerf_t *results){
    EID_ONE_ALGORITHM(Direction::kDataGradient, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)} EID_DNN
    cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const void *,
                                                const cudnnTensorDescriptor_t y, const void *,
                                                const cudnnConvolutionDescriptor_t c, const cudnnTensorDescriptor_t x,
                                                void *, const int requested, int *returned,
                                                cudnnConvolutionBwdDataAlgoPerf_t *results, void *, size_t) {
  return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, y, c, x, requested, returned, results);
}
EID_DNN cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, const cudnnFilterDescriptor_t w,
                                                     const cudnnTensorDescriptor_t y,
                                                     const cudnnConvolutionDescriptor_t c,
                                                     const cudnnTensorDescriptor_t x, cudnnConvolutionBwdDataAlgo_t,
                                                     size_t *bytes) {
  EID_DNN_NEEDS(handle && x && w && y && c && bytes && consistent(*x, w->tensor(), *y, *c));
  *bytes = static_cast<size_t>(workspace_bytes(describe(Direction::kDataGradient, *x, w->tensor(), *y, *c)));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *, const cudnnFilterDescriptor_t w, const void *,
                                     const cudnnTensorDescriptor_t y, const void *,
                                     const cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdDataAlgo_t, void *,
                                     size_t, const void *, const cudnnTensorDescriptor_t x, void *dx) {
  EID_DNN_NEEDS(handle && x && w && y && c && dx && consistent(*x, w->tensor(), *y, *c));
  written(dx, *x);
  return launch(handle, signature_of(describe(Direction::kDataGradient, *x, w->tensor(), *y, *c)),
                EID_CALL("cudnnConvolutionBackwardData"));
}
EID_DNN cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnTensorDescriptor_t y,
                                                      const cudnnConvolutionDescriptor_t c,
                                                      const cudnnFilterDescriptor_t w, const int requested,
                                                      int *returned, cudnnConvolutionBwdFilterAlgoPerf_t *results){
    EID_ONE_ALGORITHM(Direction::kFilterGradient, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1)} EID_DNN
    cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *,
                                                  const cudnnTensorDescriptor_t y, const void *,
                                                  const cudnnConvolutionDescriptor_t c, const cudnnFilterDescriptor_t w,
                                                  void *, const int requested, int *returned,
                                                  cudnnConvolutionBwdFilterAlgoPerf_t *results, void *, size_t) {
  return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, y, c, w, requested, returned, results);
}
EID_DNN cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                       const cudnnTensorDescriptor_t y,
                                                       const cudnnConvolutionDescriptor_t c,
                                                       const cudnnFilterDescriptor_t w, cudnnConvolutionBwdFilterAlgo_t,
                                                       size_t *bytes) {
  EID_DNN_NEEDS(handle && x && w && y && c && bytes && consistent(*x, w->tensor(), *y, *c));
  *bytes = static_cast<size_t>(workspace_bytes(describe(Direction::kFilterGradient, *x, w->tensor(), *y, *c)));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *, const cudnnTensorDescriptor_t x,
                                       const void *, const cudnnTensorDescriptor_t y, const void *,
                                       const cudnnConvolutionDescriptor_t c, cudnnConvolutionBwdFilterAlgo_t, void *,
                                       size_t, const void *, const cudnnFilterDescriptor_t w, void *dw) {
  EID_DNN_NEEDS(handle && x && w && y && c && dw && consistent(*x, w->tensor(), *y, *c));
  written(dw, w->tensor());
  return launch(handle, signature_of(describe(Direction::kFilterGradient, *x, w->tensor(), *y, *c)),
                EID_CALL("cudnnConvolutionBackwardFilter"));
}
EID_DNN cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *, const cudnnTensorDescriptor_t y, const void *,
                                     const void *, const cudnnTensorDescriptor_t b, void *db) {
  EID_DNN_NEEDS(handle && y && b && db);
  written(db, *b);
  return launch_library(handle, "bias_gradient", y->bytes() + b->bytes(), y->elements(),
                        EID_CALL("cudnnConvolutionBackwardBias"));
}
