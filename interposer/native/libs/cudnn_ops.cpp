// cuDNN's legacy operations: tensors, filters, activation, pooling, softmax, dropout, normalisation, spatial
// transformers and CTC loss.
#include "cudnn_internal.h"

#include <algorithm>
#include <new>

struct cudnnActivationStruct {
  cudnnActivationMode_t mode = CUDNN_ACTIVATION_IDENTITY;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  double coefficient = 0, swish_beta = 1;
};
struct cudnnPoolingStruct {
  cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  int n = 0;
  int window[CUDNN_DIM_MAX] = {}, pad[CUDNN_DIM_MAX] = {}, stride[CUDNN_DIM_MAX] = {};
};
struct cudnnSpatialTransformerStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0;
  int64_t dims[CUDNN_DIM_MAX] = {};
};
struct cudnnCTCLossStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnLossNormalizationMode_t normalization = CUDNN_LOSS_NORMALIZATION_NONE;
  int gradient_mode = 0, longest_label = 0;
};

using namespace eidolon;
using namespace eidolon::dnn;

namespace {

// An operation that reads `in` bytes and writes one tensor.
cudnnStatus_t elementwise(cudnnHandle_t handle, const char *name, int64_t in, const Tensor &out_tensor, void *out,
                          uint16_t call) {
  EID_DNN_NEEDS(out != nullptr);
  written(out, out_tensor);
  return launch_library(handle, name, in + out_tensor.bytes(), 0, call);
}

} // namespace

// ---- tensors and filters -----------------------------------------------------------------------------------------

EID_DNN_DESCRIPTOR(Tensor, cudnnTensorStruct)
EID_DNN_DESCRIPTOR(Filter, cudnnFilterStruct)

EID_DNN cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n, const int dims[],
                                   const int strides[]) {
  EID_DNN_NEEDS(t != nullptr && n > 0 && n <= CUDNN_DIM_MAX && dims != nullptr && strides != nullptr);
  static_cast<Tensor &>(*t) = Tensor{.type = type, .n = n};
  for (int i = 0; i < n; ++i) {
    EID_DNN_NEEDS(dims[i] > 0);
    t->dims[i] = dims[i];
    t->strides[i] = strides[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                     const int dims[]) {
  EID_DNN_NEEDS(t != nullptr && n > 0 && n <= CUDNN_DIM_MAX && dims != nullptr);
  cudnnFilterStruct dense{.type = type, .format = format, .n = n};
  std::copy_n(dims, n, dense.dims);
  static_cast<Tensor &>(*t) = dense.tensor();
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type, int n,
                                   int c, int h, int w) {
  const int dims[] = {n, c, h, w};
  return cudnnSetTensorNdDescriptorEx(t, format, type, 4, dims);
}
EID_DNN cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n, int c, int h, int w,
                                     int sn, int sc, int sh, int sw) {
  const int dims[] = {n, c, h, w}, strides[] = {sn, sc, sh, sw};
  return cudnnSetTensorNdDescriptor(t, type, 4, dims, strides);
}
EID_DNN cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t t, int requested, cudnnDataType_t *type, int *n,
                                   int dims[], int strides[]) {
  EID_DNN_NEEDS(t != nullptr && requested >= 0 && type != nullptr && n != nullptr);
  *type = static_cast<cudnnDataType_t>(t->type);
  *n = t->n;
  for (int i = 0; i < std::min(requested, t->n); ++i) {
    if (dims != nullptr)
      dims[i] = static_cast<int>(t->dims[i]);
    if (strides != nullptr)
      strides[i] = static_cast<int>(t->strides[i]);
  }
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t t, cudnnDataType_t *type, int *n, int *c, int *h,
                                   int *w, int *sn, int *sc, int *sh, int *sw) {
  EID_DNN_NEEDS(t != nullptr && t->n == 4 && type && n && c && h && w && sn && sc && sh && sw);
  *type = static_cast<cudnnDataType_t>(t->type);
  int *dims[] = {n, c, h, w}, *strides[] = {sn, sc, sh, sw};
  for (int i = 0; i < 4; ++i) {
    *dims[i] = static_cast<int>(t->dims[i]);
    *strides[i] = static_cast<int>(t->strides[i]);
  }
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t t, size_t *bytes) {
  EID_DNN_NEEDS(t != nullptr && bytes != nullptr);
  *bytes = static_cast<size_t>(t->span_bytes());
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format, int n,
                                   const int dims[]) {
  EID_DNN_NEEDS(f != nullptr && n > 0 && n <= CUDNN_DIM_MAX && dims != nullptr);
  *f = cudnnFilterStruct{.type = type, .format = format, .n = n};
  std::copy_n(dims, n, f->dims);
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format, int k,
                                   int c, int h, int w) {
  const int dims[] = {k, c, h, w};
  return cudnnSetFilterNdDescriptor(f, type, format, 4, dims);
}
EID_DNN cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t f, int requested, cudnnDataType_t *type,
                                   cudnnTensorFormat_t *format, int *n, int dims[]) {
  EID_DNN_NEEDS(f != nullptr && requested >= 0 && type != nullptr && format != nullptr && n != nullptr);
  *type = f->type;
  *format = f->format;
  *n = f->n;
  if (dims != nullptr)
    std::copy_n(f->dims, std::min(requested, f->n), dims);
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetFilterSizeInBytes(const cudnnFilterDescriptor_t f, size_t *bytes) {
  EID_DNN_NEEDS(f != nullptr && bytes != nullptr);
  *bytes = static_cast<size_t>(f->tensor().bytes());
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnAddTensor(cudnnHandle_t handle, const void *, const cudnnTensorDescriptor_t a, const void *, const void *,
                       const cudnnTensorDescriptor_t c, void *out) {
  EID_DNN_NEEDS(handle && a && c);
  return elementwise(handle, "add_tensor", a->bytes() + c->bytes(), *c, out, EID_CALL("cudnnAddTensor"));
}
EID_DNN cudnnTransformTensor(cudnnHandle_t handle, const void *, const cudnnTensorDescriptor_t x, const void *,
                             const void *, const cudnnTensorDescriptor_t y, void *out) {
  EID_DNN_NEEDS(handle && x && y);
  return elementwise(handle, "transform_tensor", x->bytes(), *y, out, EID_CALL("cudnnTransformTensor"));
}
EID_DNN cudnnScaleTensor(cudnnHandle_t handle, const cudnnTensorDescriptor_t y, void *out, const void *) {
  EID_DNN_NEEDS(handle && y);
  return elementwise(handle, "scale_tensor", y->bytes(), *y, out, EID_CALL("cudnnScaleTensor"));
}
EID_DNN cudnnSetTensor(cudnnHandle_t handle, const cudnnTensorDescriptor_t y, void *out, const void *) {
  EID_DNN_NEEDS(handle && y);
  return elementwise(handle, "set_tensor", 0, *y, out, EID_CALL("cudnnSetTensor"));
}

// ---- activation, pooling, softmax --------------------------------------------------------------------------------

EID_DNN_DESCRIPTOR(Activation, cudnnActivationStruct)
EID_DNN cudnnSetActivationDescriptor(cudnnActivationDescriptor_t a, cudnnActivationMode_t mode,
                                     cudnnNanPropagation_t nan, double coefficient) {
  EID_DNN_NEEDS(a != nullptr);
  a->mode = mode;
  a->nan = nan;
  a->coefficient = coefficient;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetActivationDescriptor(const cudnnActivationDescriptor_t a, cudnnActivationMode_t *mode,
                                     cudnnNanPropagation_t *nan, double *coefficient) {
  EID_DNN_NEEDS(a != nullptr && mode != nullptr && nan != nullptr && coefficient != nullptr);
  *mode = a->mode;
  *nan = a->nan;
  *coefficient = a->coefficient;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t a, const void *,
                               const cudnnTensorDescriptor_t x, const void *, const void *,
                               const cudnnTensorDescriptor_t y, void *out) {
  EID_DNN_NEEDS(handle && a && x && y);
  return elementwise(handle, "activation_forward", x->bytes(), *y, out, EID_CALL("cudnnActivationForward"));
}
EID_DNN cudnnActivationBackward(cudnnHandle_t handle, cudnnActivationDescriptor_t a, const void *,
                                const cudnnTensorDescriptor_t y, const void *, const cudnnTensorDescriptor_t,
                                const void *, const cudnnTensorDescriptor_t x, const void *, const void *,
                                const cudnnTensorDescriptor_t dx, void *out) {
  EID_DNN_NEEDS(handle && a && x && y && dx);
  return elementwise(handle, "activation_backward", x->bytes() + 2 * y->bytes(), *dx, out,
                     EID_CALL("cudnnActivationBackward"));
}

EID_DNN_DESCRIPTOR(Pooling, cudnnPoolingStruct)
EID_DNN cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t p, const cudnnPoolingMode_t mode,
                                    const cudnnNanPropagation_t nan, int n, const int window[], const int pad[],
                                    const int stride[]) {
  EID_DNN_NEEDS(p != nullptr && n > 0 && n <= CUDNN_DIM_MAX - 2 && window && pad && stride);
  p->mode = mode;
  p->nan = nan;
  p->n = n;
  std::copy_n(window, n, p->window);
  std::copy_n(pad, n, p->pad);
  std::copy_n(stride, n, p->stride);
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t p, cudnnPoolingMode_t mode, cudnnNanPropagation_t nan,
                                    int window_h, int window_w, int pad_h, int pad_w, int stride_h, int stride_w) {
  const int window[] = {window_h, window_w}, pad[] = {pad_h, pad_w}, stride[] = {stride_h, stride_w};
  return cudnnSetPoolingNdDescriptor(p, mode, nan, 2, window, pad, stride);
}
EID_DNN cudnnGetPoolingNdForwardOutputDim(const cudnnPoolingDescriptor_t p, const cudnnTensorDescriptor_t x, int n,
                                          int out[]) {
  EID_DNN_NEEDS(p != nullptr && x != nullptr && out != nullptr && n == x->n && n == p->n + 2);
  out[0] = static_cast<int>(x->dims[0]);
  out[1] = static_cast<int>(x->dims[1]);
  for (int i = 0; i < p->n; ++i)
    out[i + 2] = (static_cast<int>(x->dims[i + 2]) + 2 * p->pad[i] - p->window[i]) / p->stride[i] + 1;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t p, const void *,
                            const cudnnTensorDescriptor_t x, const void *, const void *,
                            const cudnnTensorDescriptor_t y, void *out) {
  EID_DNN_NEEDS(handle && p && x && y);
  return elementwise(handle, "pooling_forward", x->bytes(), *y, out, EID_CALL("cudnnPoolingForward"));
}
EID_DNN cudnnPoolingBackward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t p, const void *,
                             const cudnnTensorDescriptor_t y, const void *, const cudnnTensorDescriptor_t, const void *,
                             const cudnnTensorDescriptor_t x, const void *, const void *,
                             const cudnnTensorDescriptor_t dx, void *out) {
  EID_DNN_NEEDS(handle && p && x && y && dx);
  return elementwise(handle, "pooling_backward", x->bytes() + 2 * y->bytes(), *dx, out,
                     EID_CALL("cudnnPoolingBackward"));
}
EID_DNN cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, const void *,
                            const cudnnTensorDescriptor_t x, const void *, const void *,
                            const cudnnTensorDescriptor_t y, void *out) {
  EID_DNN_NEEDS(handle && x && y);
  return elementwise(handle, "softmax_forward", x->bytes(), *y, out, EID_CALL("cudnnSoftmaxForward"));
}
EID_DNN cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t, const void *,
                             const cudnnTensorDescriptor_t y, const void *, const cudnnTensorDescriptor_t, const void *,
                             const void *, const cudnnTensorDescriptor_t dx, void *out) {
  EID_DNN_NEEDS(handle && y && dx);
  return elementwise(handle, "softmax_backward", 2 * y->bytes(), *dx, out, EID_CALL("cudnnSoftmaxBackward"));
}

// ---- dropout -----------------------------------------------------------------------------------------------------

EID_DNN_DESCRIPTOR(Dropout, cudnnDropoutStruct)
EID_DNN cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
  EID_DNN_NEEDS(handle != nullptr && bytes != nullptr);
  constexpr size_t kPerThread = 24; // one generator per resident thread: 6,488,064 bytes on an H100
  const Gpu &gpu = config().gpu;
  *bytes = static_cast<size_t>(gpu.sm_count) * static_cast<size_t>(gpu.max_threads_per_sm) * kPerThread;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnDropoutGetReserveSpaceSize(cudnnTensorDescriptor_t x, size_t *bytes) {
  EID_DNN_NEEDS(x != nullptr && bytes != nullptr);
  *bytes = static_cast<size_t>((x->elements() + 7) / 8);
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle, float probability, void *states,
                                      size_t bytes, unsigned long long seed) {
  EID_DNN_NEEDS(d != nullptr && handle != nullptr && probability >= 0 && probability <= 1);
  *d = {.probability = probability, .states = states, .state_bytes = bytes, .seed = seed};
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle, float probability, void *states,
                                  size_t bytes, unsigned long long seed) {
  if (cudnnStatus_t status = cudnnRestoreDropoutDescriptor(d, handle, probability, states, bytes, seed))
    return status;
  if (states == nullptr)
    return CUDNN_STATUS_SUCCESS;
  size_t needed = 0;
  cudnnDropoutGetStatesSize(handle, &needed);
  EID_DNN_NEEDS(bytes >= needed);
  written(states, static_cast<int64_t>(needed)); // the generators are seeded on the device
  return launch_library(handle, "dropout_seed", static_cast<int64_t>(needed), 0, EID_CALL("cudnnSetDropoutDescriptor"));
}
EID_DNN cudnnGetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle, float *probability, void **states,
                                  unsigned long long *seed) {
  EID_DNN_NEEDS(d != nullptr && handle != nullptr);
  if (probability != nullptr)
    *probability = d->probability;
  if (states != nullptr)
    *states = d->states;
  if (seed != nullptr)
    *seed = d->seed;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnDropoutForward(cudnnHandle_t handle, const cudnnDropoutDescriptor_t d, const cudnnTensorDescriptor_t x,
                            const void *, const cudnnTensorDescriptor_t y, void *out, void *reserve, size_t bytes) {
  EID_DNN_NEEDS(handle && d && x && y);
  written(reserve, static_cast<int64_t>(bytes));
  return elementwise(handle, "dropout_forward", x->bytes(), *y, out, EID_CALL("cudnnDropoutForward"));
}
EID_DNN cudnnDropoutBackward(cudnnHandle_t handle, const cudnnDropoutDescriptor_t d, const cudnnTensorDescriptor_t dy,
                             const void *, const cudnnTensorDescriptor_t dx, void *out, void *, size_t) {
  EID_DNN_NEEDS(handle && d && dy && dx);
  return elementwise(handle, "dropout_backward", dy->bytes(), *dx, out, EID_CALL("cudnnDropoutBackward"));
}

// ---- spatial transformer -----------------------------------------------------------------------------------------

EID_DNN_DESCRIPTOR(SpatialTransformer, cudnnSpatialTransformerStruct)
EID_DNN cudnnSetSpatialTransformerNdDescriptor(cudnnSpatialTransformerDescriptor_t s, cudnnSamplerType_t,
                                               cudnnDataType_t type, const int n, const int dims[]) {
  EID_DNN_NEEDS(s != nullptr && n >= 4 && n <= CUDNN_DIM_MAX && dims != nullptr);
  s->type = type;
  s->n = n;
  std::copy_n(dims, n, s->dims);
  return CUDNN_STATUS_SUCCESS;
}
namespace {
// The dimensions of the grid (n, h, w and two coordinates) and of theta (n and a 2 x 3 matrix).
int64_t grid_bytes(const cudnnSpatialTransformerStruct &s) {
  int64_t points = s.dims[0];
  for (int i = 2; i < s.n; ++i)
    points *= s.dims[i];
  return bytes_of(s.type, points * (s.n - 2));
}
int64_t theta_bytes(const cudnnSpatialTransformerStruct &s) {
  return bytes_of(s.type, s.dims[0] * (s.n - 2) * (s.n - 1));
}
} // namespace
EID_DNN cudnnSpatialTfGridGeneratorForward(cudnnHandle_t handle, const cudnnSpatialTransformerDescriptor_t s,
                                           const void *, void *grid) {
  EID_DNN_NEEDS(handle && s && grid);
  written(grid, grid_bytes(*s));
  return launch_library(handle, "grid_forward", grid_bytes(*s), 0, EID_CALL("cudnnSpatialTfGridGeneratorForward"));
}
EID_DNN cudnnSpatialTfGridGeneratorBackward(cudnnHandle_t handle, const cudnnSpatialTransformerDescriptor_t s,
                                            const void *, void *dtheta) {
  EID_DNN_NEEDS(handle && s && dtheta);
  written(dtheta, theta_bytes(*s));
  return launch_library(handle, "grid_backward", grid_bytes(*s), 0, EID_CALL("cudnnSpatialTfGridGeneratorBackward"));
}
EID_DNN cudnnSpatialTfSamplerForward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t s, const void *,
                                     const cudnnTensorDescriptor_t x, const void *, const void *, const void *,
                                     cudnnTensorDescriptor_t y, void *out) {
  EID_DNN_NEEDS(handle && s && x && y);
  return elementwise(handle, "sampler_forward", x->bytes() + grid_bytes(*s), *y, out,
                     EID_CALL("cudnnSpatialTfSamplerForward"));
}
EID_DNN cudnnSpatialTfSamplerBackward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t s, const void *,
                                      const cudnnTensorDescriptor_t x, const void *, const void *,
                                      const cudnnTensorDescriptor_t dx, void *out, const void *,
                                      const cudnnTensorDescriptor_t dy, const void *, const void *, const void *,
                                      void *dgrid) {
  EID_DNN_NEEDS(handle && s && x && dx && dy);
  written(dgrid, grid_bytes(*s));
  return elementwise(handle, "sampler_backward", x->bytes() + dy->bytes() + 2 * grid_bytes(*s), *dx, out,
                     EID_CALL("cudnnSpatialTfSamplerBackward"));
}

// ---- CTC loss ----------------------------------------------------------------------------------------------------

EID_DNN_DESCRIPTOR(CTCLoss, cudnnCTCLossStruct)
EID_DNN cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t c, cudnnDataType_t type,
                                     cudnnLossNormalizationMode_t normalization, cudnnCTCGradMode_t mode,
                                     int longest_label) {
  EID_DNN_NEEDS(c != nullptr && type == CUDNN_DATA_FLOAT);
  c->type = type;
  c->normalization = normalization;
  c->gradient_mode = mode;
  c->longest_label = longest_label;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t c, cudnnDataType_t type,
                                     cudnnLossNormalizationMode_t normalization, cudnnNanPropagation_t mode,
                                     int longest_label) {
  return cudnnSetCTCLossDescriptor_v9(c, type, normalization, static_cast<cudnnCTCGradMode_t>(mode), longest_label);
}
EID_DNN cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t c, cudnnDataType_t type,
                                    cudnnLossNormalizationMode_t normalization, cudnnNanPropagation_t mode) {
  return cudnnSetCTCLossDescriptor_v9(c, type, normalization, static_cast<cudnnCTCGradMode_t>(mode), 0);
}
EID_DNN cudnnSetCTCLossDescriptor(cudnnCTCLossDescriptor_t c, cudnnDataType_t type) {
  return cudnnSetCTCLossDescriptor_v9(c, type, CUDNN_LOSS_NORMALIZATION_NONE, CUDNN_CTC_ZERO_OOB_GRADIENTS, 0);
}
namespace {
// The workspace holds the forward and backward variables of every time step over the blank-extended labels, in 32 bits.
int64_t ctc_workspace(const Tensor &probabilities, int64_t longest_label) {
  return probabilities.dims[0] * probabilities.dims[1] * (2 * longest_label + 1) * 2 * 4 + probabilities.bytes();
}
cudnnStatus_t ctc(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities, void *costs,
                  const cudnnTensorDescriptor_t gradients_tensor, void *gradients, uint16_t call) {
  EID_DNN_NEEDS(handle && probabilities && costs && probabilities->n >= 2);
  written(costs, probabilities->dims[1] * 4);
  if (gradients != nullptr && gradients_tensor != nullptr)
    written(gradients, *gradients_tensor);
  return launch_library(handle, "ctc_loss", 3 * probabilities->bytes(), 0, call);
}
} // namespace
EID_DNN cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities,
                                     const cudnnTensorDescriptor_t, const int *, const int *label_lengths, const int *,
                                     cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t, size_t *bytes) {
  EID_DNN_NEEDS(handle && probabilities && label_lengths && bytes && probabilities->n >= 2);
  int longest = 0;
  for (int64_t i = 0; i < probabilities->dims[1]; ++i)
    longest = std::max(longest, label_lengths[i]);
  *bytes = static_cast<size_t>(ctc_workspace(*probabilities, longest));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t c,
                                        const cudnnTensorDescriptor_t probabilities, const cudnnTensorDescriptor_t,
                                        size_t *bytes) {
  EID_DNN_NEEDS(handle && c && probabilities && bytes && probabilities->n >= 2);
  *bytes = static_cast<size_t>(ctc_workspace(*probabilities, c->longest_label));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnCTCLoss(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities, const void *, const int[],
                     const int[], const int[], void *costs, const cudnnTensorDescriptor_t gradients_tensor,
                     void *gradients, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t, void *, size_t) {
  return ctc(handle, probabilities, costs, gradients_tensor, gradients, EID_CALL("cudnnCTCLoss"));
}
EID_DNN cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
                        const cudnnTensorDescriptor_t probabilities, const void *, const int[], const int[],
                        const int[], void *costs, const cudnnTensorDescriptor_t gradients_tensor, void *gradients,
                        size_t, void *) {
  return ctc(handle, probabilities, costs, gradients_tensor, gradients, EID_CALL("cudnnCTCLoss_v8"));
}
