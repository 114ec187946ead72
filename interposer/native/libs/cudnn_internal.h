// What the parts of the fake cuDNN share: its handle, its legacy descriptors, and the bytes a tensor covers.
//
// Nothing is computed. Both interfaces, the legacy calls and the backend's operation graphs, end the same way: the
// output tensors' bytes become unknown and one operation with a telling signature is launched.
#pragma once
#include <cudnn.h>

#include <cstdint>
#include <vector>

#include "core.h"
#include "status.h"

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
  void *own = nullptr; // the handle's own device memory (cudnn.handle_bytes)
};

namespace eidolon::dnn {

inline constexpr int kMaxDims = CUDNN_DIM_MAX;

// Bits of one element; vectorised types count one element of the vector.
constexpr int64_t bits_of(int type) {
  switch (type) {
  case CUDNN_DATA_DOUBLE:
  case CUDNN_DATA_INT64:
  case 20: // COMPLEX_FP32
    return 64;
  case 21: // COMPLEX_FP64
    return 128;
  case CUDNN_DATA_HALF:
  case CUDNN_DATA_BFLOAT16:
    return 16;
  case CUDNN_DATA_INT8:
  case CUDNN_DATA_UINT8:
  case 5: // INT8x4
  case 7: // UINT8x4
  case 8: // INT8x32
  case CUDNN_DATA_BOOLEAN:
  case CUDNN_DATA_FP8_E4M3:
  case CUDNN_DATA_FP8_E5M2:
  case 15: // FP8_E8M0
    return 8;
  case 16: // FP4_E2M1
  case 17: // INT4
  case 18: // UINT4
    return 4;
  default:
    return 32;
  }
}
constexpr int64_t bytes_of(int type, int64_t elements) { return (bits_of(type) * elements + 7) / 8; }

struct Tensor {
  int type = CUDNN_DATA_FLOAT;
  int n = 0;
  int64_t dims[kMaxDims] = {}, strides[kMaxDims] = {};

  int64_t elements() const {
    int64_t product = n > 0 ? 1 : 0;
    for (int i = 0; i < n; ++i)
      product *= dims[i];
    return product;
  }
  int64_t bytes() const { return bytes_of(type, elements()); }
  // The bytes from the first element to the end of the last one.
  int64_t span_bytes() const {
    int64_t last = 0;
    for (int i = 0; i < n; ++i)
      last += dims[i] > 0 ? (dims[i] - 1) * strides[i] : 0;
    return n > 0 ? bytes_of(type, last + 1) : 0;
  }
  bool channels_last() const { return n > 2 && strides[1] == 1; }
};

// Makes the bytes of the tensor at `start` unknown. Gaps between its elements stay as they are.
void written(void *start, const Tensor &tensor);
inline void written(void *start, int64_t bytes) {
  if (start != nullptr && bytes > 0)
    value_unknown(start, static_cast<size_t>(bytes));
}

inline cudnnStatus_t status_of(Status status) {
  switch (status) {
  case kSuccess:
    return CUDNN_STATUS_SUCCESS;
  case kInvalidValue:
    return CUDNN_STATUS_BAD_PARAM;
  case kOutOfMemory:
    return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  case kNotInitialized:
    return CUDNN_STATUS_NOT_INITIALIZED;
  case kNotSupported:
    return CUDNN_STATUS_NOT_SUPPORTED;
  default:
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
}

Stream *stream_of_handle(cudnnHandle_t handle);
cudnnStatus_t launch(cudnnHandle_t handle, uint32_t sig, uint16_t call);
// Launches "library" work named "cudnn:NAME".
cudnnStatus_t launch_library(cudnnHandle_t handle, const char *name, int64_t bytes, int64_t flops, uint16_t call);

// ---- convolutions ------------------------------------------------------------------------------------------------

enum class Direction { kForward, kDataGradient, kFilterGradient };
struct Convolution {
  Direction direction;
  Tensor x, w, y; // input or its gradient, filter or its gradient, output or its gradient
  int spatial;    // dimensions besides batch and channel
  int64_t stride[kMaxDims] = {}, pad[kMaxDims] = {}, dilation[kMaxDims] = {};
};
uint32_t signature_of(const Convolution &convolution);
// Bytes of workspace of the engine that cuDNN's heuristics choose first.
int64_t workspace_bytes(const Convolution &convolution);

} // namespace eidolon::dnn

// ---- legacy descriptors ------------------------------------------------------------------------------------------

struct cudnnTensorStruct : eidolon::dnn::Tensor {};
struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  int n = 0;
  int dims[CUDNN_DIM_MAX] = {};
  eidolon::dnn::Tensor tensor() const;
};
struct cudnnConvolutionStruct {
  int spatial = 0;
  int pad[CUDNN_DIM_MAX] = {}, stride[CUDNN_DIM_MAX] = {}, dilation[CUDNN_DIM_MAX] = {};
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  cudnnReorderType_t reorder = CUDNN_DEFAULT_REORDER;
  int groups = 1;
};
struct cudnnDropoutStruct {
  float probability = 0;
  void *states = nullptr;
  size_t state_bytes = 0;
  unsigned long long seed = 0;
};

#define EID_DNN extern "C" EID_API cudnnStatus_t
// Returns unless `condition`.
#define EID_DNN_NEEDS(condition)                                                                                       \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      return CUDNN_STATUS_BAD_PARAM;                                                                                   \
  } while (0)
// Creation and destruction of a legacy descriptor.
#define EID_DNN_DESCRIPTOR(Name, Struct)                                                                               \
  EID_DNN cudnnCreate##Name##Descriptor(Struct **descriptor) {                                                         \
    EID_DNN_NEEDS(descriptor != nullptr);                                                                              \
    *descriptor = new (std::nothrow) Struct();                                                                         \
    return *descriptor != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;         \
  }                                                                                                                    \
  EID_DNN cudnnDestroy##Name##Descriptor(Struct *descriptor) {                                                         \
    delete descriptor;                                                                                                 \
    return CUDNN_STATUS_SUCCESS;                                                                                       \
  }
