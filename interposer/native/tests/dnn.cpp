// cuDNN without a simulation behind it: sizes as a real H100 answers them, operation graphs, what operations forget.
#include <cudnn.h>
#include <cudnn_backend.h>

#include <initializer_list>
#include <iterator>
#include <vector>

#include "core.h"
#include "harness.h"

using namespace eidolon;

static cudnnHandle_t handle;

static void *known(size_t bytes) {
  void *pointer;
  CHECK_EQUAL(mem_alloc(0, bytes, &pointer), kSuccess);
  std::vector<char> data(bytes, 7);
  value_write(pointer, bytes, data.data());
  return pointer;
}

// ---- a small builder of backend descriptors ----------------------------------------------------------------------

using Descriptor = cudnnBackendDescriptor_t;

static std::vector<Descriptor> made_here; // destroyed at the end

static Descriptor make(cudnnBackendDescriptorType_t type) {
  Descriptor out;
  CHECK_EQUAL(cudnnBackendCreateDescriptor(type, &out), CUDNN_STATUS_SUCCESS);
  made_here.push_back(out);
  return out;
}
template <class T>
static void set(Descriptor d, int name, cudnnBackendAttributeType_t type, std::initializer_list<T> values) {
  CHECK_EQUAL(cudnnBackendSetAttribute(d, static_cast<cudnnBackendAttributeName_t>(name), type,
                                       static_cast<int64_t>(values.size()), values.begin()),
              CUDNN_STATUS_SUCCESS);
}
static void set(Descriptor d, int name, Descriptor value) {
  set<Descriptor>(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, {value});
}
static Descriptor finish(Descriptor d) {
  CHECK_EQUAL(cudnnBackendFinalize(d), CUDNN_STATUS_SUCCESS);
  return d;
}

static Descriptor tensor(int64_t uid, cudnnDataType_t type, std::initializer_list<int64_t> dims,
                         std::initializer_list<int64_t> strides, bool is_virtual = false) {
  Descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set<cudnnDataType_t>(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, {type});
  set<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims);
  set<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
  set<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, {uid});
  set<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, {16});
  if (is_virtual)
    set<bool>(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, {true});
  return finish(d);
}

static Descriptor graph(std::initializer_list<Descriptor> operations) {
  Descriptor d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set<cudnnHandle_t>(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, {handle});
  set<Descriptor>(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations);
  return d;
}

// The configurations that the heuristics offer for a graph.
static std::vector<Descriptor> configurations(Descriptor of, cudnnBackendHeurMode_t mode) {
  Descriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, of);
  set<cudnnBackendHeurMode_t>(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, {mode});
  finish(heuristic);
  int64_t count = 0;
  CHECK_EQUAL(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                       &count, nullptr),
              CUDNN_STATUS_SUCCESS);
  std::vector<Descriptor> out(static_cast<size_t>(count));
  for (Descriptor &one : out)
    one = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  CHECK_EQUAL(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                                       &count, out.data()),
              CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(count, out.size());
  return out;
}

static Descriptor plan(Descriptor configuration, int64_t *workspace_bytes) {
  Descriptor d = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  finish(d);
  CHECK_EQUAL(cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, nullptr,
                                       workspace_bytes),
              CUDNN_STATUS_SUCCESS);
  return d;
}

static void execute(Descriptor what, std::initializer_list<int64_t> ids, std::initializer_list<void *> pointers,
                    void *workspace) {
  Descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
  set<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
  set<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, {workspace});
  finish(pack);
  CHECK_EQUAL(cudnnBackendExecute(handle, what, pack), CUDNN_STATUS_SUCCESS);
}

// ---- convolutions ------------------------------------------------------------------------------------------------

static Descriptor convolution_graph(Descriptor x, Descriptor w, Descriptor y, int64_t stride, int64_t pad) {
  Descriptor c = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  set<cudnnDataType_t>(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT});
  set<cudnnConvolutionMode_t>(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                              {CUDNN_CROSS_CORRELATION});
  set<int64_t>(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, {2});
  set<int64_t>(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, {pad, pad});
  set<int64_t>(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, {pad, pad});
  set<int64_t>(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, {1, 1});
  set<int64_t>(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, {stride, stride});
  finish(c);
  Descriptor operation = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
  set(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w);
  set(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y);
  set(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, c);
  finish(operation);
  return finish(graph({operation}));
}

static void the_first_convolution_of_resnet50_takes_what_was_measured() {
  Descriptor x = tensor(120, CUDNN_DATA_BFLOAT16, {256, 3, 224, 224}, {150528, 1, 672, 3});
  Descriptor w = tensor(119, CUDNN_DATA_BFLOAT16, {64, 3, 7, 7}, {147, 1, 21, 3});
  Descriptor y = tensor(121, CUDNN_DATA_BFLOAT16, {256, 64, 112, 112}, {802816, 1, 7168, 64});
  Descriptor g = convolution_graph(x, w, y, 2, 3);
  std::vector<Descriptor> offered = configurations(g, CUDNN_HEUR_MODE_INSTANT);
  CHECK_EQUAL(offered.size(), 1);
  int64_t bytes = -1;
  plan(offered[0], &bytes);
  CHECK_EQUAL(bytes, 205571088);
}

static void an_unmeasured_convolution_follows_the_rule() {
  // Planar layout: the engine works on channels-last copies of x, w and y.
  Descriptor x = tensor(1, CUDNN_DATA_BFLOAT16, {2, 16, 30, 30}, {14400, 900, 30, 1});
  Descriptor w = tensor(2, CUDNN_DATA_BFLOAT16, {24, 16, 3, 3}, {144, 9, 3, 1});
  Descriptor y = tensor(3, CUDNN_DATA_BFLOAT16, {2, 24, 30, 30}, {21600, 900, 30, 1});
  int64_t bytes = -1;
  Descriptor made = plan(configurations(convolution_graph(x, w, y, 1, 1), CUDNN_HEUR_MODE_INSTANT)[0], &bytes);
  CHECK_EQUAL(bytes, 2 * (2 * 16 * 900 + 2 * 24 * 900 + 24 * 16 * 9));
  auto *out = static_cast<char *>(known(2 * 24 * 900 * 2 + 16));
  auto *in = static_cast<char *>(known(64));
  execute(made, {1, 2, 3}, {in, in, out}, nullptr);
  CHECK_EQUAL(value_known(out, 1), 0);
  CHECK_EQUAL(value_known(out + 2 * 24 * 900 * 2 - 1, 1), 0);
  CHECK_EQUAL(value_known(out + 2 * 24 * 900 * 2, 16), 16); // what lies behind stays
  CHECK_EQUAL(value_known(in, 64), 64);
}

static void single_precision_offers_an_engine_without_tf32() {
  Descriptor x = tensor(1, CUDNN_DATA_FLOAT, {1, 8, 8, 8}, {512, 64, 8, 1});
  Descriptor w = tensor(2, CUDNN_DATA_FLOAT, {8, 8, 1, 1}, {8, 1, 1, 1});
  Descriptor y = tensor(3, CUDNN_DATA_FLOAT, {1, 8, 8, 8}, {512, 64, 8, 1});
  Descriptor g = convolution_graph(x, w, y, 1, 0);
  std::vector<Descriptor> offered = configurations(g, CUDNN_HEUR_MODE_INSTANT);
  CHECK_EQUAL(offered.size(), 2);
  const auto down_converts = [](Descriptor configuration) {
    Descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    CHECK_EQUAL(cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                         &count, &engine),
                CUDNN_STATUS_SUCCESS);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    CHECK_EQUAL(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                         CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes),
                CUDNN_STATUS_SUCCESS);
    for (int64_t i = 0; i < count; ++i)
      if (notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
        return true;
    return false;
  };
  CHECK(down_converts(offered[0]));
  CHECK(!down_converts(offered[1]));
  CHECK_EQUAL(configurations(g, CUDNN_HEUR_MODE_FALLBACK).size(), 1);
}

// ---- attention ---------------------------------------------------------------------------------------------------

static Descriptor product(Descriptor a, Descriptor b, Descriptor c) {
  Descriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set<cudnnDataType_t>(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT});
  finish(how);
  Descriptor d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  set(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  return finish(d);
}
static Descriptor pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor y, Descriptor b = nullptr) {
  Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set<cudnnPointwiseMode_t>(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, {mode});
  finish(how);
  Descriptor d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  set(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  set(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b != nullptr)
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  return finish(d);
}

// Operands 0 to 5 of attention; heads are interleaved, as frameworks lay them out: [batch, sequence, head, width].
struct Attention {
  Descriptor q, k, v, scores, weights, o;
};
static Attention attention(int64_t b, int64_t h, int64_t s, int64_t d) {
  return {.q = tensor(0, CUDNN_DATA_BFLOAT16, {b, h, s, d}, {s * h * d, d, h * d, 1}),
          .k = tensor(1, CUDNN_DATA_BFLOAT16, {b, h, d, s}, {s * h * d, d, 1, h * d}),
          .v = tensor(2, CUDNN_DATA_BFLOAT16, {b, h, s, d}, {s * h * d, d, h * d, 1}),
          .scores = tensor(3, CUDNN_DATA_FLOAT, {b, h, s, s}, {h * s * s, s * s, s, 1}, true),
          .weights = tensor(4, CUDNN_DATA_BFLOAT16, {b, h, s, s}, {h * s * s, s * s, s, 1}, true),
          .o = tensor(5, CUDNN_DATA_BFLOAT16, {b, h, s, d}, {s * h * d, d, h * d, 1})};
}

static void attention_is_recognised_by_its_products() {
  constexpr int64_t b = 2, h = 4, s = 8, d = 16;
  const auto [q, k, v, scores, weights, o] = attention(b, h, s, d);
  Descriptor g =
      graph({product(q, k, scores), pointwise(CUDNN_POINTWISE_EXP, scores, weights), product(weights, v, o)});
  finish(g);
  int64_t bytes = -1;
  Descriptor made = plan(configurations(g, CUDNN_HEUR_MODE_A)[0], &bytes);
  CHECK_EQUAL(bytes, 256); // as cuDNN 9.19 on an H100
  constexpr size_t size = b * h * s * d * 2;
  auto *in = static_cast<char *>(known(size)), *out = static_cast<char *>(known(size + 8));
  execute(made, {0, 1, 2, 5}, {in, in, in, out}, nullptr);
  CHECK_EQUAL(value_known(out, 1), 0);
  CHECK_EQUAL(value_known(out + size - 1, 1), 0);
  CHECK_EQUAL(value_known(out + size, 8), 8);
  CHECK_EQUAL(value_known(in, size), size);
}

// Whether attention of these sizes was launched, with or without a bias: ids of signatures are given in order.
static bool launched(int64_t b, int64_t h, int64_t s, int64_t d, int64_t bias) {
  static int64_t asked = 0;
  const uint32_t next = signature("test:next", signatures::Library{.bytes = asked++, .flops = 0, .op = 0});
  const signatures::Attention fields = {.b = b,
                                        .h = h,
                                        .sq = s,
                                        .skv = s,
                                        .d = d,
                                        .dv = d,
                                        .causal = 0,
                                        .kvh = h,
                                        .dtype = CUDNN_DATA_BFLOAT16,
                                        .bias = bias,
                                        .op = 0};
  return signature("forward", fields) < next;
}

// Attention to whose scores a tensor of these dimensions is added before the exponential.
static void attend(int64_t s, std::initializer_list<int64_t> dims, std::initializer_list<int64_t> strides,
                   bool generated) {
  constexpr int64_t b = 2, h = 4, d = 16;
  const auto [q, k, v, scores, weights, o] = attention(b, h, s, d);
  Descriptor added = tensor(6, CUDNN_DATA_BFLOAT16, dims, strides, generated);
  Descriptor moved = tensor(7, CUDNN_DATA_FLOAT, {b, h, s, s}, {h * s * s, s * s, s, 1}, true);
  Descriptor g = graph({product(q, k, scores), pointwise(CUDNN_POINTWISE_ADD, scores, moved, added),
                        pointwise(CUDNN_POINTWISE_EXP, moved, weights), product(weights, v, o)});
  finish(g);
  int64_t bytes = -1;
  Descriptor made = plan(configurations(g, CUDNN_HEUR_MODE_A)[0], &bytes);
  auto *in = static_cast<char *>(known(static_cast<size_t>(b * h * s * s * 2 + b * h * s * d * 2)));
  execute(made, {0, 1, 2, 5, 6}, {in, in, in, in, in}, nullptr);
}

static void only_a_matrix_in_memory_is_a_bias() {
  attend(8, {2, 1, 8, 8}, {64, 64, 8, 1}, false);
  CHECK(launched(2, 4, 8, 16, 1));
  attend(24, {1, 1, 1, 1}, {1, 1, 1, 1}, false); // a number for all
  CHECK(launched(2, 4, 24, 16, 0));
  attend(40, {2, 1, 40, 40}, {1600, 1600, 40, 1}, true); // a mask that the kernel makes itself
  CHECK(launched(2, 4, 40, 16, 0));
  CHECK(!launched(2, 4, 40, 16, 1));
}

static void unfinished_descriptors_are_refused() {
  Descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  CHECK_EQUAL(cudnnBackendFinalize(d), CUDNN_STATUS_BAD_PARAM);
  int64_t count, value;
  CHECK_EQUAL(cudnnBackendGetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &value),
              CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  Descriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  CHECK_EQUAL(
      cudnnBackendSetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d),
      CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  Descriptor t = tensor(9, CUDNN_DATA_FLOAT, {1, 1}, {1, 1});
  const int64_t other = 10;
  CHECK_EQUAL(cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &other),
              CUDNN_STATUS_NOT_INITIALIZED);
  CHECK_EQUAL(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &value),
              CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(value, 9);
  CHECK_EQUAL(cudnnBackendGetAttribute(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_DOUBLE, 1, &count, &value),
              CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
}

// ---- recurrent networks ------------------------------------------------------------------------------------------

static void recurrent_sizes_are_those_of_an_h100() {
  cudnnRNNDescriptor_t rnn;
  cudnnRNNDataDescriptor_t x;
  cudnnDropoutDescriptor_t dropout;
  CHECK_EQUAL(cudnnCreateRNNDescriptor(&rnn), CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(cudnnCreateRNNDataDescriptor(&x), CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(cudnnCreateDropoutDescriptor(&dropout), CUDNN_STATUS_SUCCESS);
  const auto describe = [&](cudnnRNNMode_t cell, cudnnDirectionMode_t direction, int in, int hidden, int projection,
                            int layers) {
    CHECK_EQUAL(cudnnSetRNNDescriptor_v8(rnn, CUDNN_RNN_ALGO_STANDARD, cell, CUDNN_RNN_DOUBLE_BIAS, direction,
                                         CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DEFAULT_MATH, in,
                                         hidden, projection, layers, dropout, CUDNN_RNN_PADDED_IO_ENABLED),
                CUDNN_STATUS_SUCCESS);
  };
  const auto weights = [&] {
    size_t bytes = 0;
    CHECK_EQUAL(cudnnGetRNNWeightSpaceSize(handle, rnn, &bytes), CUDNN_STATUS_SUCCESS);
    return bytes;
  };
  const auto reserve = [&](int steps, int batch, int in) {
    std::vector<int> lengths(static_cast<size_t>(batch), steps);
    CHECK_EQUAL(cudnnSetRNNDataDescriptor(x, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, steps, batch,
                                          in, lengths.data(), nullptr),
                CUDNN_STATUS_SUCCESS);
    size_t workspace = 0, bytes = 0;
    CHECK_EQUAL(cudnnGetRNNTempSpaceSizes(handle, rnn, CUDNN_FWD_MODE_TRAINING, x, &workspace, &bytes),
                CUDNN_STATUS_SUCCESS);
    CHECK(workspace >= size_t{8} << 20);
    return bytes;
  };
  describe(CUDNN_LSTM, CUDNN_UNIDIRECTIONAL, 64, 128, 128, 1);
  CHECK_EQUAL(weights(), 397312);
  CHECK_EQUAL(reserve(10, 4, 64), 102656);
  describe(CUDNN_LSTM, CUDNN_BIDIRECTIONAL, 64, 128, 32, 2);
  CHECK_EQUAL(weights(), 868352);
  CHECK_EQUAL(reserve(10, 4, 64), 553216);
  describe(CUDNN_LSTM, CUDNN_BIDIRECTIONAL, 512, 512, 512, 2);
  CHECK_EQUAL(weights(), 42008576);
  CHECK_EQUAL(reserve(50, 32, 512), 72089856);
  describe(CUDNN_GRU, CUDNN_UNIDIRECTIONAL, 100, 37, 37, 3);
  CHECK_EQUAL(weights(), 129204);
  CHECK_EQUAL(reserve(7, 3, 100), 62464);
  // Where parameters lie.
  std::vector<char> space(129204);
  cudnnTensorDescriptor_t matrix, bias;
  cudnnCreateTensorDescriptor(&matrix);
  cudnnCreateTensorDescriptor(&bias);
  void *at_matrix, *at_bias;
  CHECK_EQUAL(
      cudnnGetRNNWeightParams(handle, rnn, 0, space.size(), space.data(), 4, matrix, &at_matrix, bias, &at_bias),
      CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(static_cast<char *>(at_matrix) - space.data(), 49876);
  CHECK_EQUAL(static_cast<char *>(at_bias) - space.data(), 126540 + 4 * 148);
  cudnnDataType_t type;
  int n, dims[3], strides[3];
  CHECK_EQUAL(cudnnGetTensorNdDescriptor(matrix, 3, &type, &n, dims, strides), CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(dims[1], 37);
  CHECK_EQUAL(dims[2], 37);
  CHECK_EQUAL(
      cudnnGetRNNWeightParams(handle, rnn, 3, space.size(), space.data(), 0, matrix, &at_matrix, bias, &at_bias),
      CUDNN_STATUS_BAD_PARAM);
  cudnnDestroyTensorDescriptor(matrix);
  cudnnDestroyTensorDescriptor(bias);
  cudnnDestroyDropoutDescriptor(dropout);
  cudnnDestroyRNNDataDescriptor(x);
  cudnnDestroyRNNDescriptor(rnn);
}

// ---- legacy calls ------------------------------------------------------------------------------------------------

static void legacy_calls_forget_their_outputs() {
  size_t bytes;
  CHECK_EQUAL(cudnnDropoutGetStatesSize(handle, &bytes), CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(bytes, 6488064);
  cudnnTensorDescriptor_t t, statistics;
  cudnnCreateTensorDescriptor(&t);
  cudnnCreateTensorDescriptor(&statistics);
  // Every second row: the rows between keep their bytes.
  const int dims[] = {1, 2, 2, 2}, strides[] = {16, 8, 4, 1};
  CHECK_EQUAL(cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 4, dims, strides), CUDNN_STATUS_SUCCESS);
  auto *x = static_cast<char *>(known(64)), *y = static_cast<char *>(known(64));
  const float one = 1, zero = 0;
  CHECK_EQUAL(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_FAST, CUDNN_SOFTMAX_MODE_CHANNEL, &one, t, x, &zero, t, y),
              CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(value_known(y, 8), 0);
  CHECK_EQUAL(value_known(y + 8, 8), 8);
  CHECK_EQUAL(value_known(y + 16, 8), 0);
  CHECK_EQUAL(value_known(y + 24, 8), 8);
  CHECK_EQUAL(cudnnDeriveBNTensorDescriptor(statistics, t, CUDNN_BATCHNORM_SPATIAL), CUDNN_STATUS_SUCCESS);
  cudnnGetTensorSizeInBytes(statistics, &bytes);
  CHECK_EQUAL(bytes, 8); // two channels
  const int bad[] = {1, 0, 2, 2};
  CHECK_EQUAL(cudnnSetTensorNdDescriptor(t, CUDNN_DATA_FLOAT, 4, bad, strides), CUDNN_STATUS_BAD_PARAM);
  cudnnDestroyTensorDescriptor(t);
  cudnnDestroyTensorDescriptor(statistics);
}

int main() {
  test::enter_server("mode=null\ndevices=1\ngpu.memory_bytes=1073741824\ngpu.context_bytes=0\ngpu.cc=9.0\n"
                     "gpu.sm_count=132\ngpu.max_threads_per_sm=2048\n");
  CHECK_EQUAL(ensure_context(0), kSuccess);
  CHECK_EQUAL(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  CHECK(cudnnGetVersion() >= 92400);
  the_first_convolution_of_resnet50_takes_what_was_measured();
  an_unmeasured_convolution_follows_the_rule();
  single_precision_offers_an_engine_without_tf32();
  attention_is_recognised_by_its_products();
  only_a_matrix_in_memory_is_a_bias();
  unfinished_descriptors_are_refused();
  recurrent_sizes_are_those_of_an_h100();
  legacy_calls_forget_their_outputs();
  for (Descriptor one : made_here)
    CHECK_EQUAL(cudnnBackendDestroyDescriptor(one), CUDNN_STATUS_SUCCESS);
  CHECK_EQUAL(cudnnDestroy(handle), CUDNN_STATUS_SUCCESS);
  return test::result();
}
