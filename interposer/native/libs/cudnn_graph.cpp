// What an operation graph comes down to: a convolution, attention, a matrix product, or something else.
//
// Frameworks build attention from single operations (product, scale, masks, softmax, product). So it is recognised by
// its matrix products, of which there are two forward and five backward. The newer form with one node names its parts.
#include "cudnn_backend.h"

#include <algorithm>
#include <library_types.h>

namespace eidolon::dnn {
namespace {

// Types of descriptors that are newer than the oldest header that this is built with, by their numbers.
enum Newer { kDiagonalMask = 44, kSoftmax = 45, kTranspose = 46, kSlice = 47, kRopeForward = 49, kRopeBackward = 50 };

// Attributes that name a tensor which an operation writes.
constexpr int kOutputs[] = {
    705,  710,  715,                   // convolution: Y, DX, DW
    753,  756,                         // pointwise: Y, DX
    773,  774,                         // statistics: sum, sum of squares
    788,  789,  790,  791,  792,  793, // batch norm finalize: running and saved statistics, equivalent scale and bias
    1522,                              // product: C
    1611,                              // reduction: Y
    1626, 1627, 1628, 1629, 1630,      // batch norm backward weights
    1711, 1712, 1720,                  // resample: Y, indices, DX
    1803, 1904, 1951,                  // concatenation, signal, paged cache
    2011, 2012, 2013,                  // norm forward: running mean and variance, Y (its mean and variance: see below)
    2107, 2108, 2109,                  // norm backward: scale, bias, DX
    2201, 2251, 2271, 2310,            // reshape, band matrices, random numbers
    2501, 2502, 2602,                  // block scaling
    2803, 2804, 2817,                  // attention forward: O, statistics, random numbers
    2859, 2860, 2861, 2864,            // attention backward: DQ, DK, DV, DSINK
    2905, 2953,                        // grouped product and its filter gradient
    3006, 3101, 3102, 3103, 3104,      // diagonal mask, softmax
    3201, 3301, 3401, 3411,            // transpose, slice, rotary embedding
};

bool virtual_tensor(const Node &tensor) { return tensor.integer(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0; }

// The mode of a pointwise operation (cudnnPointwiseMode_t), or kNoMode for any other operation.
constexpr int64_t kNoMode = -1;
int64_t pointwise_mode(const Node &operation) {
  if (operation.type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
    return kNoMode;
  const NodePtr descriptor = operation.child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  return descriptor != nullptr ? descriptor->integer(CUDNN_ATTR_POINTWISE_MODE) : kNoMode;
}

// A matrix product: C = A x B.
struct Product {
  NodePtr a, b, c;
};

// The matrix products of a graph, in their order.
std::vector<Product> products_of(const std::vector<NodePtr> &operations) {
  std::vector<Product> out;
  for (const NodePtr &operation : operations)
    if (operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      out.push_back({operation->child(CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                     operation->child(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                     operation->child(CUDNN_ATTR_OPERATION_MATMUL_CDESC)});
  return out;
}

void collect_output(const NodePtr &tensor, std::vector<Output> *out) {
  if (tensor == nullptr || tensor->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || virtual_tensor(*tensor) ||
      tensor->integer(CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0)
    return;
  const int64_t uid = tensor->integer(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  for (const Output &known : *out)
    if (known.uid == uid)
      return;
  out->push_back({uid, tensor_of(*tensor)});
}

std::vector<Output> outputs_of(const std::vector<NodePtr> &operations) {
  std::vector<Output> out;
  for (const NodePtr &operation : operations) {
    for (const AttributeValue &a : operation->attributes)
      if (std::find(std::begin(kOutputs), std::end(kOutputs), a.name) != std::end(kOutputs) && !a.nested.empty())
        collect_output(a.nested[0], &out);
    if (operation->type == CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR &&
        operation->integer(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE) == CUDNN_NORM_FWD_TRAINING) {
      collect_output(operation->child(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC), &out);
      collect_output(operation->child(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC), &out);
    }
  }
  return out;
}

// The bytes of all tensors of the graph that lie in memory. Each tensor counts once.
int64_t bytes_of_graph(const std::vector<NodePtr> &operations) {
  std::vector<int64_t> seen;
  int64_t bytes = 0;
  for (const NodePtr &operation : operations)
    for (const AttributeValue &a : operation->attributes)
      for (const NodePtr &tensor : a.nested) {
        if (tensor->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || virtual_tensor(*tensor))
          continue;
        const int64_t uid = tensor->integer(CUDNN_ATTR_TENSOR_UNIQUE_ID);
        if (std::find(seen.begin(), seen.end(), uid) == seen.end()) {
          seen.push_back(uid);
          bytes += tensor_of(*tensor).bytes();
        }
      }
  return bytes;
}

// ---- convolution -------------------------------------------------------------------------------------------------

struct ConvolutionAttributes {
  int operation;
  Direction direction;
  int x, w, y, descriptor;
};
constexpr ConvolutionAttributes kConvolutions[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, Direction::kForward,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, Direction::kDataGradient,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, Direction::kFilterGradient,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC},
};

void copy_numbers(const Node &from, int name, int64_t (&to)[kMaxDims]) {
  if (const AttributeValue *a = from.find(name))
    for (int64_t i = 0; i < std::min<int64_t>(a->count, kMaxDims); ++i)
      to[i] = a->at<int64_t>(i);
}

bool convolution(const std::vector<NodePtr> &operations, Plan *plan) {
  for (const NodePtr &operation : operations)
    for (const ConvolutionAttributes &kind : kConvolutions) {
      if (operation->type != kind.operation)
        continue;
      const NodePtr x = operation->child(kind.x), w = operation->child(kind.w), y = operation->child(kind.y);
      const NodePtr descriptor = operation->child(kind.descriptor);
      if (x == nullptr || w == nullptr || y == nullptr || descriptor == nullptr)
        return false;
      Convolution &c = plan->convolution;
      c.direction = kind.direction;
      c.x = tensor_of(*x);
      c.w = tensor_of(*w);
      c.y = tensor_of(*y);
      c.spatial = static_cast<int>(descriptor->integer(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
      copy_numbers(*descriptor, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, c.stride);
      copy_numbers(*descriptor, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, c.pad);
      copy_numbers(*descriptor, CUDNN_ATTR_CONVOLUTION_DILATIONS, c.dilation);
      if (c.x.n != c.spatial + 2 || c.w.n != c.x.n || c.y.n != c.x.n || c.w.dims[1] == 0)
        return false;
      plan->kind = Plan::kConvolution;
      plan->workspace_bytes = dnn::workspace_bytes(c);
      plan->down_converts = c.x.type == CUDNN_DATA_FLOAT && config().gpu.cc_major >= 8;
      plan->tensor_core = bits_of(c.x.type) <= 16 || plan->down_converts;
      return true;
    }
  return false;
}

// ---- attention ---------------------------------------------------------------------------------------------------

// Whether there is a mask that compares a generated row number with a generated column number.
bool causal_mask(const std::vector<NodePtr> &operations) {
  std::vector<int64_t> indices;
  for (const NodePtr &operation : operations) {
    if (operation->type == kDiagonalMask)
      return true;
    const int64_t mode = pointwise_mode(*operation);
    const NodePtr y = operation->child(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    if (mode == kNoMode || y == nullptr)
      continue;
    const auto generated = [&](int name) {
      const NodePtr tensor = operation->child(name);
      return tensor != nullptr &&
             std::find(indices.begin(), indices.end(), tensor->integer(CUDNN_ATTR_TENSOR_UNIQUE_ID)) != indices.end();
    };
    const bool from_index = generated(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    if (mode == CUDNN_POINTWISE_GEN_INDEX || (from_index && mode <= CUDNN_POINTWISE_SUB)) // an index, or one shifted
      indices.push_back(y->integer(CUDNN_ATTR_TENSOR_UNIQUE_ID));
    const bool compares = mode >= CUDNN_POINTWISE_CMP_GT && mode <= CUDNN_POINTWISE_CMP_LE;
    if (compares && from_index && generated(CUDNN_ATTR_OPERATION_POINTWISE_BDESC))
      return true;
  }
  return false;
}

// Whether a matrix in memory, as large as the scores, is added to them. Such kernels are nearly twice as slow.
bool biased(const std::vector<NodePtr> &operations, int64_t columns) {
  for (const NodePtr &operation : operations) {
    const NodePtr added = operation->child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    if (pointwise_mode(*operation) != CUDNN_POINTWISE_ADD || added == nullptr)
      continue;
    const Tensor tensor = tensor_of(*added);
    if (tensor.n == 4 && columns > 1 && tensor.dims[3] == columns && !virtual_tensor(*added))
      return true;
  }
  return false;
}

// The keys and values of attention, as far as its costs depend on them.
struct KeyValue {
  int64_t heads, length, value_size;
};

// Fills in attention of this query: its sizes, and the masks among its operations.
void describe_attention(const std::vector<NodePtr> &operations, const Tensor &q, const KeyValue &kv, Plan *plan) {
  plan->kind = Plan::kAttention;
  plan->type = q.type;
  plan->b = q.dims[0];
  plan->h = q.dims[1];
  plan->sq = q.dims[2];
  plan->d = q.dims[3];
  plan->kvh = kv.heads;
  plan->skv = kv.length;
  plan->dv = kv.value_size;
  plan->causal = causal_mask(operations);
  plan->bias = biased(operations, plan->skv);
}

void attention_memory(Plan *plan) {
  // These sizes were measured on an H100 with cuDNN 9.19. There is a small fixed part, and for grouped queries one DK
  // and DV per query head.
  plan->workspace_bytes = 256;
  if (plan->backward && plan->kvh != plan->h)
    plan->workspace_bytes += bytes_of(plan->type, plan->b * plan->h * plan->skv * (plan->d + plan->dv));
  if (!plan->backward && plan->sq == 1) { // decoding splits the keys in eight
    constexpr int64_t kSplits = 8;
    plan->workspace_bytes += plan->b * plan->h * kSplits * plan->dv * 4 + 1920;
  }
}

bool attention_node(const std::vector<NodePtr> &operations, Plan *plan) {
  for (const NodePtr &operation : operations) {
    const bool backward = operation->type == 43; // OPERATION_SDPA_BWD
    if (operation->type != 41 && !backward)      // OPERATION_SDPA_FWD
      continue;
    const int first = backward ? 2851 : 2800; // QDESC, then K and V
    const NodePtr q = operation->child(first), k = operation->child(first + 1), v = operation->child(first + 2);
    if (q == nullptr || k == nullptr || v == nullptr)
      return false;
    const Tensor tq = tensor_of(*q), tk = tensor_of(*k), tv = tensor_of(*v);
    if (tq.n != 4 || tk.n != 4 || tv.n != 4)
      return false;
    const bool transposed = tk.dims[2] == tq.dims[3] && tk.dims[3] != tq.dims[3]; // as K may be
    plan->backward = backward;
    describe_attention(operations, tq, {tk.dims[1], transposed ? tk.dims[3] : tk.dims[2], tv.dims[3]}, plan);
    for (const AttributeValue &a : operation->attributes) // or inside the node's own graph of masks
      for (const NodePtr &nested : a.nested)
        if (const AttributeValue *inner = nested->find(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
          plan->causal |= causal_mask(inner->nested);
          plan->bias |= biased(inner->nested, plan->skv);
        }
    attention_memory(plan);
    return true;
  }
  return false;
}

bool attention_graph(const std::vector<NodePtr> &operations, Plan *plan) {
  const std::vector<Product> products = products_of(operations);
  const bool exponential = std::any_of(operations.begin(), operations.end(), [](const NodePtr &operation) {
    return operation->type == kSoftmax || pointwise_mode(*operation) == CUDNN_POINTWISE_EXP;
  });
  if (products.size() < 2 || !exponential)
    return false;
  // The first product is Q times K^T. Forward, V enters the last product. Backward, it enters the other product whose
  // inputs both lie in memory (dO times V^T).
  plan->backward = products.size() >= 4;
  Tensor q, k, wide;
  bool have_scores = false;
  for (const auto &[a, b, c] : products) {
    if (a == nullptr || b == nullptr || c == nullptr)
      return false;
    if (!have_scores) {
      q = tensor_of(*a);
      k = tensor_of(*b);
      have_scores = true;
    } else if (!plan->backward) {
      wide = tensor_of(*c);
    } else if (!virtual_tensor(*a) && !virtual_tensor(*b)) {
      wide = tensor_of(*a);
    }
  }
  if (q.n != 4 || k.n != 4)
    return false;
  describe_attention(operations, q, {k.dims[1], k.dims[3], wide.n == 4 ? wide.dims[3] : q.dims[3]}, plan);
  attention_memory(plan);
  return true;
}

// ---- the rest ----------------------------------------------------------------------------------------------------

bool product(const std::vector<NodePtr> &operations, Plan *plan) {
  const std::vector<Product> products = products_of(operations);
  if (products.size() != 1)
    return false;
  const auto &[a, b, c] = products[0];
  if (a == nullptr || c == nullptr)
    return false;
  const Tensor ta = tensor_of(*a), tc = tensor_of(*c);
  if (ta.n < 2 || tc.n < 2)
    return false;
  plan->kind = Plan::kGemm;
  plan->m = tc.dims[tc.n - 2];
  plan->n = tc.dims[tc.n - 1];
  plan->k = ta.dims[ta.n - 1];
  plan->batch = tc.elements() / std::max<int64_t>(plan->m * plan->n, 1);
  plan->ta = ta.strides[ta.n - 1] != 1;
  plan->type = ta.type;
  plan->c_type = tc.type;
  return true;
}

const char *operation_name(int type) {
  switch (type) {
  case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    return "pointwise";
  case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
    return "statistics";
  case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    return "reduction";
  case CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR:
    return "batch_norm_finalize";
  case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR:
    return "batch_norm_backward_weights";
  case CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR:
    return "resample_forward";
  case CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR:
    return "resample_backward";
  case CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR:
    return "concatenation";
  case CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR:
    return "norm_forward";
  case CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR:
    return "norm_backward";
  case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
    return "reshape";
  case CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR:
    return "random";
  case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    return "matmul";
  case kDiagonalMask: // it also stands alone, as the inner graph of an attention node
    return "diagonal_mask";
  case kSoftmax:
    return "softmax";
  case kTranspose:
    return "transpose";
  case kSlice:
    return "slice";
  case kRopeForward:
  case kRopeBackward:
    return "rotary_embedding";
  default:
    return nullptr;
  }
}

int cuda_type(int type) { // of a gemm signature
  switch (type) {
  case CUDNN_DATA_DOUBLE:
    return CUDA_R_64F;
  case CUDNN_DATA_HALF:
    return CUDA_R_16F;
  case CUDNN_DATA_BFLOAT16:
    return CUDA_R_16BF;
  case CUDNN_DATA_INT8:
    return CUDA_R_8I;
  case CUDNN_DATA_INT32:
    return CUDA_R_32I;
  case CUDNN_DATA_FP8_E4M3:
    return CUDA_R_8F_E4M3;
  case CUDNN_DATA_FP8_E5M2:
    return CUDA_R_8F_E5M2;
  default:
    return CUDA_R_32F;
  }
}

} // namespace

Tensor tensor_of(const Node &descriptor) {
  Tensor tensor;
  tensor.type = static_cast<int>(descriptor.integer(CUDNN_ATTR_TENSOR_DATA_TYPE));
  if (const AttributeValue *dims = descriptor.find(CUDNN_ATTR_TENSOR_DIMENSIONS))
    tensor.n = static_cast<int>(std::min<int64_t>(dims->count, kMaxDims));
  copy_numbers(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.dims);
  copy_numbers(descriptor, CUDNN_ATTR_TENSOR_STRIDES, tensor.strides);
  return tensor;
}

std::shared_ptr<const Plan> understand(const Node &graph) {
  const AttributeValue *operations = graph.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (operations == nullptr || operations->nested.empty())
    return nullptr;
  auto plan = std::make_shared<Plan>();
  if (!convolution(operations->nested, plan.get()) && !attention_node(operations->nested, plan.get()) &&
      !attention_graph(operations->nested, plan.get()) && !product(operations->nested, plan.get())) {
    plan->kind = Plan::kLibrary;
    for (const NodePtr &operation : operations->nested) {
      const char *name = operation_name(operation->type);
      if (name == nullptr) { // nothing is known about it, and work that takes no time would be worse than an error
        const std::string what = "cudnnBackendFinalize(operation " + std::to_string(operation->type) + ")";
        unmodelled("cudnn", what.c_str());
        return nullptr;
      }
      if (plan->name.find(name) == std::string::npos)
        plan->name += plan->name.empty() ? name : std::string("+") + name;
    }
    plan->bytes = bytes_of_graph(operations->nested);
  }
  plan->outputs = outputs_of(operations->nested);
  return plan;
}

uint32_t Plan::signature() const {
  switch (kind) {
  case kConvolution:
    return signature_of(convolution);
  case kAttention: {
    const signatures::Attention fields = {.b = b,
                                          .h = h,
                                          .sq = sq,
                                          .skv = skv,
                                          .d = d,
                                          .dv = dv,
                                          .causal = causal,
                                          .kvh = kvh,
                                          .dtype = type,
                                          .bias = bias,
                                          .op = current_operator()};
    const signatures::AttentionName name =
        backward ? signatures::AttentionName("backward") : signatures::AttentionName("forward");
    return eidolon::signature(name, fields);
  }
  case kGemm: {
    const int compute = type == CUDNN_DATA_DOUBLE ? 70 : 68; // cublasComputeType_t: 64F, 32F
    const signatures::Gemm fields = {.m = m,
                                     .n = n,
                                     .k = k,
                                     .batch = batch,
                                     .ta = ta,
                                     .tb = tb,
                                     .atype = cuda_type(type),
                                     .ctype = cuda_type(c_type),
                                     .computetype = compute,
                                     .epilogue = 0,
                                     .op = current_operator()};
    return eidolon::signature("cudnnBackendExecute", fields);
  }
  case kLibrary:
    break;
  }
  const signatures::Library fields = {.bytes = bytes, .flops = 0, .op = current_operator()};
  return eidolon::signature(("cudnn:" + name).c_str(), fields);
}

} // namespace eidolon::dnn
