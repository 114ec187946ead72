// cuDNN: batch normalisation through the legacy calls.
#include "cudnn_internal.h"

#include <algorithm>
#include <new>

using namespace eidolon;
using namespace eidolon::dnn;

namespace {

// Channels-last training sums in parts. The sizes follow measurements on an H100 (cuDNN 9.19, 16 and 32 bits).
int64_t padded_values(const Tensor &x) {
  constexpr int64_t kTile = 64;
  const int64_t rows = x.elements() / std::max<int64_t>(x.dims[1], 1);
  return rows * ((x.dims[1] + kTile - 1) / kTile * kTile);
}
bool sums_in_parts(cudnnBatchNormMode_t mode, const Tensor &x) {
  return mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT && x.channels_last();
}
int64_t fixed_part(const Tensor &x) { return std::max<int64_t>(1408, 8 * x.dims[1]); }
int64_t forward_workspace(cudnnBatchNormMode_t mode, const Tensor &x) {
  if (!sums_in_parts(mode, x))
    return 0;
  const double share = bits_of(x.type) <= 16 ? 0.0504 : 0.126;
  return static_cast<int64_t>(static_cast<double>(padded_values(x)) * share) + fixed_part(x);
}
int64_t backward_workspace(cudnnBatchNormMode_t mode, const Tensor &x) {
  return sums_in_parts(mode, x) ? padded_values(x) / 12 + fixed_part(x) : 0;
}

cudnnStatus_t forward(cudnnHandle_t handle, const Tensor &x, const Tensor &y, void *out, const Tensor &statistics,
                      void *running_mean, void *running_variance, void *saved_mean, void *saved_variance,
                      uint16_t call) {
  EID_DNN_NEEDS(out != nullptr);
  written(out, y);
  for (void *one : {running_mean, running_variance, saved_mean, saved_variance})
    written(one, statistics);
  return launch_library(handle, "batch_norm_forward", 2 * x.bytes() + y.bytes(), 8 * x.elements(), call);
}
cudnnStatus_t backward(cudnnHandle_t handle, const Tensor &x, const Tensor &dx, void *out, const Tensor &parameters,
                       void *dscale, void *dbias, uint16_t call) {
  EID_DNN_NEEDS(out != nullptr);
  written(out, dx);
  written(dscale, parameters);
  written(dbias, parameters);
  return launch_library(handle, "batch_norm_backward", 4 * x.bytes() + dx.bytes(), 12 * x.elements(), call);
}

} // namespace

EID_DNN cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t out, const cudnnTensorDescriptor_t x,
                                      cudnnBatchNormMode_t mode) {
  EID_DNN_NEEDS(out != nullptr && x != nullptr && x->n >= 2);
  Tensor derived = *x;
  derived.type = x->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  derived.dims[0] = 1;
  for (int i = 2; i < x->n && mode != CUDNN_BATCHNORM_PER_ACTIVATION; ++i)
    derived.dims[i] = 1;
  int64_t stride = 1;
  for (int i = derived.n - 1; i >= 0; --i) {
    derived.strides[i] = stride;
    stride *= derived.dims[i];
  }
  static_cast<Tensor &>(*out) = derived;
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                                 cudnnBatchNormOps_t, const cudnnTensorDescriptor_t x,
                                                                 const cudnnTensorDescriptor_t,
                                                                 const cudnnTensorDescriptor_t,
                                                                 const cudnnTensorDescriptor_t,
                                                                 const cudnnActivationDescriptor_t, size_t *bytes) {
  EID_DNN_NEEDS(handle && x && bytes);
  *bytes = static_cast<size_t>(forward_workspace(mode, *x));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetBatchNormalizationBackwardExWorkspaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                          cudnnBatchNormOps_t, const cudnnTensorDescriptor_t x,
                                                          const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                                          const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                                          const cudnnTensorDescriptor_t,
                                                          const cudnnActivationDescriptor_t, size_t *bytes) {
  EID_DNN_NEEDS(handle && x && bytes);
  *bytes = static_cast<size_t>(backward_workspace(mode, *x));
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t,
                                                             cudnnBatchNormOps_t operations,
                                                             const cudnnActivationDescriptor_t,
                                                             const cudnnTensorDescriptor_t x, size_t *bytes) {
  EID_DNN_NEEDS(handle && x && bytes);
  // A fused activation keeps one bit per value.
  *bytes = operations == CUDNN_BATCHNORM_OPS_BN ? 0 : static_cast<size_t>((x->elements() + 7) / 8);
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t, const void *, const void *,
                                                const cudnnTensorDescriptor_t x, const void *,
                                                const cudnnTensorDescriptor_t y, void *out,
                                                const cudnnTensorDescriptor_t, const void *, const void *, const void *,
                                                const void *, double) {
  EID_DNN_NEEDS(handle && x && y && out);
  written(out, *y);
  return launch_library(handle, "batch_norm_inference", x->bytes() + y->bytes(), 2 * x->elements(),
                        EID_CALL("cudnnBatchNormalizationForwardInference"));
}
EID_DNN cudnnBatchNormalizationForwardTraining(cudnnHandle_t handle, cudnnBatchNormMode_t, const void *, const void *,
                                               const cudnnTensorDescriptor_t x, const void *,
                                               const cudnnTensorDescriptor_t y, void *out,
                                               const cudnnTensorDescriptor_t statistics, const void *, const void *,
                                               double, void *running_mean, void *running_variance, double,
                                               void *saved_mean, void *saved_variance) {
  EID_DNN_NEEDS(handle && x && y && statistics);
  return forward(handle, *x, *y, out, *statistics, running_mean, running_variance, saved_mean, saved_variance,
                 EID_CALL("cudnnBatchNormalizationForwardTraining"));
}
EID_DNN cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void *, const void *,
    const cudnnTensorDescriptor_t x, const void *, const cudnnTensorDescriptor_t, const void *,
    const cudnnTensorDescriptor_t y, void *out, const cudnnTensorDescriptor_t statistics, const void *, const void *,
    double, void *running_mean, void *running_variance, double, void *saved_mean, void *saved_variance,
    cudnnActivationDescriptor_t, void *workspace, size_t workspace_size, void *reserve, size_t reserve_size) {
  EID_DNN_NEEDS(handle && x && y && statistics);
  written(workspace, static_cast<int64_t>(workspace_size));
  written(reserve, static_cast<int64_t>(reserve_size));
  return forward(handle, *x, *y, out, *statistics, running_mean, running_variance, saved_mean, saved_variance,
                 EID_CALL("cudnnBatchNormalizationForwardTrainingEx"));
}
EID_DNN cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t, const void *, const void *,
                                        const void *, const void *, const cudnnTensorDescriptor_t x, const void *,
                                        const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t dx,
                                        void *out, const cudnnTensorDescriptor_t parameters, const void *, void *dscale,
                                        void *dbias, double, const void *, const void *) {
  EID_DNN_NEEDS(handle && x && dx && parameters);
  return backward(handle, *x, *dx, out, *parameters, dscale, dbias, EID_CALL("cudnnBatchNormalizationBackward"));
}
EID_DNN cudnnBatchNormalizationBackwardEx(cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void *,
                                          const void *, const void *, const void *, const cudnnTensorDescriptor_t x,
                                          const void *, const cudnnTensorDescriptor_t, const void *,
                                          const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t dz,
                                          void *dz_out, const cudnnTensorDescriptor_t dx, void *out,
                                          const cudnnTensorDescriptor_t parameters, const void *, const void *,
                                          void *dscale, void *dbias, double, const void *, const void *,
                                          cudnnActivationDescriptor_t, void *workspace, size_t workspace_size, void *,
                                          size_t) {
  EID_DNN_NEEDS(handle && x && dx && parameters);
  written(workspace, static_cast<int64_t>(workspace_size));
  if (dz != nullptr)
    written(dz_out, *dz);
  return backward(handle, *x, *dx, out, *parameters, dscale, dbias, EID_CALL("cudnnBatchNormalizationBackwardEx"));
}
