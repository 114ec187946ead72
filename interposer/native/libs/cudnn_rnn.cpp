// cuDNN: recurrent networks. The sizes and offsets of the weight space are exact, and so is the reserve space. The
// workspace follows measurements on an H100 (cuDNN 9.19) to within some percent.
#include "cudnn_internal.h"

#include <algorithm>
#include <new>

struct cudnnRNNStruct {
  cudnnRNNAlgo_t algorithm = CUDNN_RNN_ALGO_STANDARD;
  cudnnRNNMode_t cell = CUDNN_LSTM;
  cudnnRNNBiasMode_t bias = CUDNN_RNN_DOUBLE_BIAS;
  cudnnDirectionMode_t direction = CUDNN_UNIDIRECTIONAL;
  cudnnRNNInputMode_t input_mode = CUDNN_LINEAR_INPUT;
  cudnnDataType_t type = CUDNN_DATA_FLOAT, precision = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  int64_t input = 0, hidden = 0, output = 0, layers = 0; // output: hidden, or the projection
  cudnnDropoutDescriptor_t dropout = nullptr;
  uint32_t flags = 0;
  cudnnRNNClipMode_t clip = CUDNN_RNN_CLIP_NONE;
  double clip_low = 0, clip_high = 0;

  int64_t directions() const { return direction == CUDNN_BIDIRECTIONAL ? 2 : 1; }
  int64_t gates() const { return cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1; }
  bool projects() const { return output != hidden; }
  int64_t pseudo_layers() const { return layers * directions(); }
  int64_t input_of(int64_t pseudo_layer) const { return pseudo_layer < directions() ? input : directions() * output; }
  int64_t element() const { return eidolon::dnn::bits_of(type) / 8; }
  // The number of values in the matrices of one pseudo-layer, and in its biases.
  int64_t matrix_values(int64_t pseudo_layer) const {
    const int64_t first = input_mode == CUDNN_SKIP_INPUT && pseudo_layer < directions() ? 0 : input_of(pseudo_layer);
    return gates() * hidden * (first + output) + (projects() ? output * hidden : 0);
  }
  int64_t bias_vectors() const {
    return bias == CUDNN_RNN_NO_BIAS ? 0 : bias == CUDNN_RNN_DOUBLE_BIAS ? 2 * gates() : gates();
  }
  int64_t all_matrices() const {
    int64_t values = 0;
    for (int64_t i = 0; i < pseudo_layers(); ++i)
      values += matrix_values(i);
    return values;
  }
  int64_t weight_bytes() const { return (all_matrices() + pseudo_layers() * bias_vectors() * hidden) * element(); }
};

struct cudnnRNNDataStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnRNNDataLayout_t layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED;
  int64_t steps = 0, batch = 0, vector = 0;
  std::vector<int> lengths;

  bool packed() const { return layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED; }
  int64_t valid_steps() const { // over all sequences
    int64_t sum = 0;
    for (int length : lengths)
      sum += length;
    return sum;
  }
  int64_t rows() const { return packed() ? valid_steps() : steps * batch; }
  int64_t bytes() const { return eidolon::dnn::bytes_of(type, rows() * vector); }
};

using namespace eidolon;
using namespace eidolon::dnn;

namespace {

// A descriptor of a [1, rows, columns] matrix inside the weight space.
void describe(cudnnTensorDescriptor_t out, cudnnDataType_t type, int64_t rows, int64_t columns) {
  Tensor tensor{.type = type, .n = 3};
  tensor.dims[0] = 1;
  tensor.dims[1] = rows;
  tensor.dims[2] = columns;
  tensor.strides[0] = rows * columns;
  tensor.strides[1] = columns;
  tensor.strides[2] = 1;
  static_cast<Tensor &>(*out) = tensor;
}

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Every kind of state is one aligned block. An LSTM keeps gates and cells, a GRU keeps six values, and a plain cell
// keeps its output.
int64_t reserve_bytes(const cudnnRNNStruct &r, const cudnnRNNDataStruct &x) {
  constexpr int64_t kAlign = 32, kFixed = 256;
  const int64_t rows = x.rows();
  const auto block = [&](int64_t values_per_row) { return round_up(rows * values_per_row * r.element(), kAlign); };
  const int64_t layers = r.pseudo_layers();
  int64_t bytes = kFixed;
  if (r.cell == CUDNN_LSTM)
    bytes += block(layers * 4 * r.hidden) + block(layers * r.hidden);
  else
    bytes += block(layers * (r.cell == CUDNN_GRU ? 6 : 1) * r.hidden);
  if (r.projects())
    bytes += block(layers * (r.hidden + r.output));
  if (r.layers > 1)
    bytes += block((r.layers - 1) * r.directions() * r.hidden); // between the layers
  if (r.dropout != nullptr && r.dropout->probability > 0)       // and a bit for each value there
    bytes += (r.layers - 1) * ((x.steps * x.batch * r.directions() * r.hidden + 7) / 8);
  return bytes;
}

int64_t workspace_bytes(const cudnnRNNStruct &r, const cudnnRNNDataStruct &x, bool training) {
  constexpr int64_t kPerLayer = int64_t{8} << 20; // for the matrix products of each pseudo-layer
  const int64_t rows = x.rows(), both = r.directions();
  const int64_t gates = r.gates() == 1 ? 2 : r.gates();
  int64_t values = rows * r.hidden * both * (both == 2 ? gates + 2 : gates);
  if (!x.packed()) // packed copies of the input and the outputs
    values += rows * (r.input + r.output * both * (training ? 2 : 1));
  return r.pseudo_layers() * kPerLayer + r.all_matrices() * r.element() + values * r.element();
}

int64_t flops(const cudnnRNNStruct &r, const cudnnRNNDataStruct &x) { return 2 * x.rows() * r.all_matrices(); }

const char *cell_name(const cudnnRNNStruct &r) {
  return r.cell == CUDNN_LSTM ? "lstm" : r.cell == CUDNN_GRU ? "gru" : "rnn";
}

cudnnStatus_t run(cudnnHandle_t handle, const cudnnRNNStruct &r, const cudnnRNNDataStruct &x,
                  const cudnnRNNDataStruct &y, const char *pass, int64_t work, uint16_t call) {
  char name[64];
  std::snprintf(name, sizeof(name), "%s_%s", cell_name(r), pass);
  return launch_library(handle, name, x.bytes() + y.bytes() + r.weight_bytes(), work * flops(r, x), call);
}

} // namespace

// ---- descriptors -------------------------------------------------------------------------------------------------

EID_DNN_DESCRIPTOR(RNN, cudnnRNNStruct)
EID_DNN_DESCRIPTOR(RNNData, cudnnRNNDataStruct)

EID_DNN cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t r, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t cell,
                                 cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                 cudnnRNNInputMode_t input_mode, cudnnDataType_t type, cudnnDataType_t precision,
                                 cudnnMathType_t math, int32_t input, int32_t hidden, int32_t projection,
                                 int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags) {
  EID_DNN_NEEDS(r != nullptr && input > 0 && hidden > 0 && layers > 0 && projection >= 0 && projection <= hidden);
  EID_DNN_NEEDS(projection == 0 || projection == hidden || cell == CUDNN_LSTM);
  r->algorithm = algorithm;
  r->cell = cell;
  r->bias = bias;
  r->direction = direction;
  r->input_mode = input_mode;
  r->type = type;
  r->precision = precision;
  r->math = math;
  r->input = input;
  r->hidden = hidden;
  r->output = projection > 0 ? projection : hidden;
  r->layers = layers;
  r->dropout = dropout;
  r->flags = flags;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetRNNDescriptor_v8(cudnnRNNDescriptor_t r, cudnnRNNAlgo_t *algorithm, cudnnRNNMode_t *cell,
                                 cudnnRNNBiasMode_t *bias, cudnnDirectionMode_t *direction,
                                 cudnnRNNInputMode_t *input_mode, cudnnDataType_t *type, cudnnDataType_t *precision,
                                 cudnnMathType_t *math, int32_t *input, int32_t *hidden, int32_t *projection,
                                 int32_t *layers, cudnnDropoutDescriptor_t *dropout, uint32_t *flags) {
  EID_DNN_NEEDS(r != nullptr);
  const auto give = [](auto *out, auto value) {
    if (out != nullptr)
      *out = static_cast<std::remove_pointer_t<decltype(out)>>(value);
  };
  give(algorithm, r->algorithm);
  give(cell, r->cell);
  give(bias, r->bias);
  give(direction, r->direction);
  give(input_mode, r->input_mode);
  give(type, r->type);
  give(precision, r->precision);
  give(math, r->math);
  give(input, r->input);
  give(hidden, r->hidden);
  give(projection, r->output);
  give(layers, r->layers);
  give(dropout, r->dropout);
  give(flags, r->flags);
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnRNNSetClip_v9(cudnnRNNDescriptor_t r, cudnnRNNClipMode_t mode, double low, double high) {
  EID_DNN_NEEDS(r != nullptr);
  r->clip = mode;
  r->clip_low = low;
  r->clip_high = high;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnRNNGetClip_v9(cudnnRNNDescriptor_t r, cudnnRNNClipMode_t *mode, double *low, double *high) {
  EID_DNN_NEEDS(r != nullptr && mode != nullptr && low != nullptr && high != nullptr);
  *mode = r->clip;
  *low = r->clip_low;
  *high = r->clip_high;
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnRNNSetClip_v8(cudnnRNNDescriptor_t r, cudnnRNNClipMode_t mode, cudnnNanPropagation_t, double low,
                           double high) {
  return cudnnRNNSetClip_v9(r, mode, low, high);
}
EID_DNN cudnnRNNGetClip_v8(cudnnRNNDescriptor_t r, cudnnRNNClipMode_t *mode, cudnnNanPropagation_t *nan, double *low,
                           double *high) {
  if (nan != nullptr)
    *nan = CUDNN_NOT_PROPAGATE_NAN;
  return cudnnRNNGetClip_v9(r, mode, low, high);
}
EID_DNN cudnnBuildRNNDynamic(cudnnHandle_t handle, cudnnRNNDescriptor_t r, int) {
  EID_DNN_NEEDS(handle != nullptr && r != nullptr);
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t x, cudnnDataType_t type, cudnnRNNDataLayout_t layout,
                                  int steps, int batch, int vector, const int lengths[], void *) {
  EID_DNN_NEEDS(x != nullptr && steps > 0 && batch > 0 && vector > 0 && lengths != nullptr);
  for (int i = 0; i < batch; ++i)
    EID_DNN_NEEDS(lengths[i] >= 0 && lengths[i] <= steps);
  x->type = type;
  x->layout = layout;
  x->steps = steps;
  x->batch = batch;
  x->vector = vector;
  x->lengths.assign(lengths, lengths + batch);
  return CUDNN_STATUS_SUCCESS;
}
EID_DNN cudnnGetRNNDataDescriptor(cudnnRNNDataDescriptor_t x, cudnnDataType_t *type, cudnnRNNDataLayout_t *layout,
                                  int *steps, int *batch, int *vector, int requested, int lengths[], void *) {
  EID_DNN_NEEDS(x != nullptr && type && layout && steps && batch && vector && requested >= 0);
  *type = x->type;
  *layout = x->layout;
  *steps = static_cast<int>(x->steps);
  *batch = static_cast<int>(x->batch);
  *vector = static_cast<int>(x->vector);
  if (lengths != nullptr)
    std::copy_n(x->lengths.begin(), std::min<size_t>(static_cast<size_t>(requested), x->lengths.size()), lengths);
  return CUDNN_STATUS_SUCCESS;
}

// ---- sizes -------------------------------------------------------------------------------------------------------

EID_DNN cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t r, size_t *bytes) {
  EID_DNN_NEEDS(handle != nullptr && r != nullptr && bytes != nullptr);
  *bytes = static_cast<size_t>(r->weight_bytes());
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t r, cudnnForwardMode_t mode,
                                  cudnnRNNDataDescriptor_t x, size_t *workspace, size_t *reserve) {
  EID_DNN_NEEDS(handle != nullptr && r != nullptr && x != nullptr);
  const bool training = mode == CUDNN_FWD_MODE_TRAINING;
  if (workspace != nullptr)
    *workspace = static_cast<size_t>(workspace_bytes(*r, *x, training));
  if (reserve != nullptr)
    *reserve = training ? static_cast<size_t>(reserve_bytes(*r, *x)) : 0;
  return CUDNN_STATUS_SUCCESS;
}

// The matrices of all pseudo-layers come first, each in the order of its linear layers. All biases follow.
EID_DNN cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t r, int32_t pseudo_layer, size_t space_bytes,
                                const void *space, int32_t linear, cudnnTensorDescriptor_t matrix_out,
                                void **matrix_address, cudnnTensorDescriptor_t bias_out, void **bias_address) {
  EID_DNN_NEEDS(handle != nullptr && r != nullptr && pseudo_layer >= 0 && pseudo_layer < r->pseudo_layers());
  const int64_t gates = r->gates();
  EID_DNN_NEEDS(linear >= 0 && linear < 2 * gates + (r->projects() ? 1 : 0));
  EID_DNN_NEEDS(space_bytes >= static_cast<size_t>(r->weight_bytes()));
  char *base = static_cast<char *>(const_cast<void *>(space));
  const int64_t in = r->input_of(pseudo_layer), element = r->element();
  const bool skips = r->input_mode == CUDNN_SKIP_INPUT && pseudo_layer < r->directions();

  int64_t before = 0;
  for (int64_t i = 0; i < pseudo_layer; ++i)
    before += r->matrix_values(i);
  const bool projection = linear == 2 * gates, recurrent = !projection && linear >= gates;
  const int64_t columns = projection ? r->hidden : recurrent ? r->output : (skips ? 0 : in);
  const int64_t rows = projection ? r->output : r->hidden;
  if (projection)
    before += gates * r->hidden * ((skips ? 0 : in) + r->output);
  else if (recurrent)
    before += gates * r->hidden * (skips ? 0 : in) + (linear - gates) * r->hidden * r->output;
  else
    before += linear * r->hidden * columns;
  if (matrix_out != nullptr)
    describe(matrix_out, r->type, rows, columns);
  if (matrix_address != nullptr)
    *matrix_address = columns > 0 ? base + before * element : nullptr;

  const bool has_bias =
      !projection && (r->bias == CUDNN_RNN_DOUBLE_BIAS || (r->bias == CUDNN_RNN_SINGLE_INP_BIAS && !recurrent) ||
                      (r->bias == CUDNN_RNN_SINGLE_REC_BIAS && recurrent));
  if (bias_out != nullptr && has_bias)
    describe(bias_out, r->type, r->hidden, 1);
  if (bias_address != nullptr) {
    const int64_t vector = r->bias == CUDNN_RNN_SINGLE_REC_BIAS ? linear - gates : linear;
    const int64_t values = r->all_matrices() + (pseudo_layer * r->bias_vectors() + vector) * r->hidden;
    *bias_address = has_bias ? base + values * element : nullptr;
  }
  return CUDNN_STATUS_SUCCESS;
}

// ---- passes ------------------------------------------------------------------------------------------------------

EID_DNN cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t r, cudnnForwardMode_t, const int32_t[],
                        cudnnRNNDataDescriptor_t x, const void *in, cudnnRNNDataDescriptor_t y, void *out,
                        cudnnTensorDescriptor_t h, const void *, void *hy, cudnnTensorDescriptor_t c, const void *,
                        void *cy, size_t weight_bytes, const void *weights, size_t workspace_size, void *workspace,
                        size_t reserve_size, void *reserve) {
  EID_DNN_NEEDS(handle && r && x && y && in && out && weights && x->batch == y->batch && x->steps == y->steps);
  EID_DNN_NEEDS(weight_bytes >= static_cast<size_t>(r->weight_bytes()));
  written(out, y->bytes());
  if (h != nullptr)
    written(hy, *h);
  if (c != nullptr)
    written(cy, *c);
  written(workspace, static_cast<int64_t>(workspace_size));
  written(reserve, static_cast<int64_t>(reserve_size));
  return run(handle, *r, *x, *y, "forward", 1, EID_CALL("cudnnRNNForward"));
}

EID_DNN cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t r, const int32_t[],
                                cudnnRNNDataDescriptor_t y, const void *, const void *, cudnnRNNDataDescriptor_t x,
                                void *dx, cudnnTensorDescriptor_t h, const void *, const void *, void *dhx,
                                cudnnTensorDescriptor_t c, const void *, const void *, void *dcx, size_t, const void *,
                                size_t workspace_size, void *workspace, size_t reserve_size, void *reserve) {
  EID_DNN_NEEDS(handle && r && x && y && dx);
  written(dx, x->bytes());
  if (h != nullptr)
    written(dhx, *h);
  if (c != nullptr)
    written(dcx, *c);
  written(workspace, static_cast<int64_t>(workspace_size));
  written(reserve, static_cast<int64_t>(reserve_size));
  return run(handle, *r, *x, *y, "backward_data", 1, EID_CALL("cudnnRNNBackwardData_v8"));
}

EID_DNN cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t r, cudnnWgradMode_t, const int32_t[],
                                   cudnnRNNDataDescriptor_t x, const void *, cudnnTensorDescriptor_t, const void *,
                                   cudnnRNNDataDescriptor_t y, const void *, size_t weight_bytes, void *dw,
                                   size_t workspace_size, void *workspace, size_t, void *) {
  EID_DNN_NEEDS(handle && r && x && y && dw && weight_bytes >= static_cast<size_t>(r->weight_bytes()));
  written(dw, r->weight_bytes());
  written(workspace, static_cast<int64_t>(workspace_size));
  return run(handle, *r, *x, *y, "backward_weights", 1, EID_CALL("cudnnRNNBackwardWeights_v8"));
}
