// cuDNN: handles, versions, status texts, callbacks.
#include "cudnn_internal.h"
#include "wheel_version.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace eidolon::dnn {

Stream *stream_of_handle(cudnnHandle_t handle) {
  if (handle == nullptr)
    return nullptr;
  DeviceScope scope(handle->device);
  return stream_of(handle->stream);
}

cudnnStatus_t launch(cudnnHandle_t handle, uint32_t sig, uint16_t call) {
  Stream *stream = stream_of_handle(handle);
  if (stream == nullptr)
    return handle == nullptr ? CUDNN_STATUS_NOT_INITIALIZED : CUDNN_STATUS_EXECUTION_FAILED;
  return status_of(launch_operation(stream, sig, call));
}

cudnnStatus_t launch_library(cudnnHandle_t handle, const char *name, int64_t bytes, int64_t flops, uint16_t call) {
  char full[160];
  std::snprintf(full, sizeof(full), "cudnn:%s", name);
  const signatures::Library fields = {.bytes = bytes, .flops = flops, .op = current_operator()};
  return launch(handle, signature(full, fields), call);
}

void written(void *start, const Tensor &tensor) {
  if (start == nullptr || tensor.elements() == 0)
    return;
  // The dimensions are sorted by stride, innermost first. A dense inner block is one run, and the other dimensions are
  // walked.
  int order[kMaxDims], count = 0;
  for (int i = 0; i < tensor.n; ++i) {
    if (tensor.dims[i] <= 1 || tensor.strides[i] == 0)
      continue;
    int at = count++;
    for (; at > 0 && tensor.strides[order[at - 1]] > tensor.strides[i]; --at)
      order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t run = 1;
  int inner = 0;
  while (inner < count && tensor.strides[order[inner]] == run)
    run *= tensor.dims[order[inner++]];
  int64_t index[kMaxDims] = {};
  for (;;) {
    int64_t offset = 0;
    for (int i = inner; i < count; ++i)
      offset += index[i] * tensor.strides[order[i]];
    written(static_cast<char *>(start) + bytes_of(tensor.type, offset), bytes_of(tensor.type, run));
    int i = inner;
    while (i < count && ++index[i] == tensor.dims[order[i]])
      index[i++] = 0;
    if (i >= count)
      return;
  }
}

} // namespace eidolon::dnn

using namespace eidolon;
using namespace eidolon::dnn;

// ---- versions ----------------------------------------------------------------------------------------------------

namespace {

struct Version {
  int parts[3];
  Version() : parts{CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL} {
    if (parts[0] == 9 && parts[1] < 24) { // the newest release that is known, unless the framework brings its own
      parts[1] = 24;
      parts[2] = 0;
    }
    wheel_version("cudnn/include/cudnn_version.h", {"CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"}, parts);
  }
};
const Version &version() {
  static const Version one;
  return one;
}

} // namespace

extern "C" EID_API size_t cudnnGetVersion(void) {
  const int *v = version().parts;
  return static_cast<size_t>(v[0] * 10000 + v[1] * 100 + v[2]);
}
extern "C" EID_API size_t cudnnGetMaxDeviceVersion(void) { return CUDNN_MAX_DEVICE_VERSION; }
extern "C" EID_API size_t cudnnGetCudartVersion(void) { return kCudaVersion; }
EID_DNN cudnnGetProperty(libraryPropertyType type, int *value) {
  EID_DNN_NEEDS(value != nullptr && type >= MAJOR_VERSION && type <= PATCH_LEVEL);
  *value = version().parts[type];
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGraphVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
EID_DNN cudnnOpsVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
EID_DNN cudnnCnnVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
EID_DNN cudnnAdvVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }

// ---- statuses ----------------------------------------------------------------------------------------------------

extern "C" EID_API const char *cudnnGetErrorString(cudnnStatus_t status) {
#define EID_CASE(name)                                                                                                 \
  case name:                                                                                                           \
    return #name;
  switch (static_cast<int>(status)) {
    EID_CASE(CUDNN_STATUS_SUCCESS)
    EID_CASE(CUDNN_STATUS_NOT_INITIALIZED)
    EID_CASE(CUDNN_STATUS_BAD_PARAM)
    EID_CASE(CUDNN_STATUS_BAD_PARAM_NULL_POINTER)
    EID_CASE(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED)
    EID_CASE(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT)
    EID_CASE(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE)
    EID_CASE(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE)
    EID_CASE(CUDNN_STATUS_NOT_SUPPORTED)
    EID_CASE(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
    EID_CASE(CUDNN_STATUS_NOT_SUPPORTED_SHAPE)
    EID_CASE(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE)
    EID_CASE(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT)
    EID_CASE(CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API)
    EID_CASE(CUDNN_STATUS_INTERNAL_ERROR)
    EID_CASE(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED)
    EID_CASE(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
    EID_CASE(CUDNN_STATUS_EXECUTION_FAILED)
  }
#undef EID_CASE
  return "CUDNN_STATUS_UNKNOWN";
}
extern "C" EID_API void cudnnGetLastErrorString(char *message, size_t bytes) {
  if (message != nullptr && bytes > 0)
    message[0] = 0;
}

// ---- handles -----------------------------------------------------------------------------------------------------

EID_DNN cudnnCreate(cudnnHandle_t *handle) {
  EID_DNN_NEEDS(handle != nullptr);
  if (context() != kSuccess)
    return CUDNN_STATUS_NOT_INITIALIZED;
  auto *made = new (std::nothrow) cudnnContext{.device = current_device()};
  if (made == nullptr)
    return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
  if (const auto bytes = static_cast<size_t>(setting_number("cudnn.handle_bytes")))
    if (mem_alloc(made->device, bytes, &made->own) != kSuccess) {
      delete made;
      return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    }
  host_cost(EID_CALL("cudnnCreate"));
  *handle = made;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnDestroy(cudnnHandle_t handle) {
  if (handle != nullptr && handle->own != nullptr)
    mem_free(handle->own);
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  EID_DNN_NEEDS(handle != nullptr);
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  EID_DNN_NEEDS(handle != nullptr && stream != nullptr);
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

// ---- messages: nothing is ever reported through them --------------------------------------------------------------

static struct {
  unsigned mask;
  void *data;
  cudnnCallback_t function;
} callback;
EID_DNN cudnnSetCallback(unsigned mask, void *data, cudnnCallback_t function) {
  callback = {mask, data, function};
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetCallback(unsigned *mask, void **data, cudnnCallback_t *function) {
  EID_DNN_NEEDS(mask != nullptr && data != nullptr && function != nullptr);
  *mask = callback.mask;
  *data = callback.data;
  *function = callback.function;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnQueryRuntimeError(cudnnHandle_t handle, cudnnStatus_t *status, cudnnErrQueryMode_t, cudnnRuntimeTag_t *) {
  EID_DNN_NEEDS(handle != nullptr && status != nullptr);
  *status = CUDNN_STATUS_SUCCESS;
  return CUDNN_STATUS_SUCCESS;
}
