// cuDNN's backend API: descriptors, heuristics, engines, execution.
//
// The heuristics answer with the engine that the real ones put first on sm_90. For 32-bit convolutions a second engine
// follows that does not use TF32, because callers filter engines by this numerical note.
#include "cudnn_backend.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace eidolon::dnn {
namespace {

// The handle that the caller holds. It refers to a node that other descriptors may also hold.
struct Descriptor {
  NodePtr node;
};
Descriptor *descriptor(cudnnBackendDescriptor_t handle) { return static_cast<Descriptor *>(handle); }

int64_t element_bytes(int type) {
  switch (type) {
  case CUDNN_TYPE_BOOLEAN:
  case CUDNN_TYPE_CHAR:
    return 1;
  case CUDNN_TYPE_HANDLE:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_BACKEND_DESCRIPTOR:
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_DOUBLE:
    return 8;
  case CUDNN_TYPE_FRACTION:
    return 16;
  default:
    return 4; // float, int32 and the enumerations
  }
}

// Hands `count` elements to the caller of GetAttribute; both of its outputs are optional.
cudnnStatus_t give(int type, int64_t count, const void *elements, int64_t requested, int64_t *returned, void *out) {
  if (returned != nullptr)
    *returned = count;
  if (out != nullptr && requested > 0 && count > 0)
    std::memcpy(out, elements, static_cast<size_t>(std::min(requested, count) * element_bytes(type)));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t give_integer(int type, int64_t value, int64_t requested, int64_t *returned, void *out) {
  if (element_bytes(type) == 4) {
    const auto narrow = static_cast<int32_t>(value);
    return give(type, 1, &narrow, requested, returned, out);
  }
  if (element_bytes(type) == 1) {
    const auto narrow = static_cast<char>(value);
    return give(type, 1, &narrow, requested, returned, out);
  }
  return give(type, 1, &value, requested, returned, out);
}

// Nested descriptors are not created by GetAttribute: the caller brings its own and they are filled.
cudnnStatus_t give_nodes(const std::vector<NodePtr> &nodes, int64_t requested, int64_t *returned, void *out) {
  const auto count = static_cast<int64_t>(nodes.size());
  const int64_t filled = out != nullptr ? std::min(requested, count) : 0;
  auto **into = static_cast<cudnnBackendDescriptor_t *>(out);
  for (int64_t i = 0; i < filled; ++i) {
    const NodePtr &node = nodes[static_cast<size_t>(i)];
    if (into[i] == nullptr || descriptor(into[i])->node->type != node->type)
      return CUDNN_STATUS_BAD_PARAM;
    descriptor(into[i])->node = node;
  }
  if (returned != nullptr)
    *returned = requested > 0 ? filled : count;
  return CUDNN_STATUS_SUCCESS;
}

NodePtr engine(const NodePtr &graph, const std::shared_ptr<const Plan> &plan, int64_t index) {
  auto node = std::make_shared<Node>(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  AttributeValue of = {CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {graph}};
  AttributeValue number = {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, std::vector<char>(8), {}};
  std::memcpy(number.data.data(), &index, 8);
  node->attributes = {of, number};
  node->plan = plan;
  node->finalized = true;
  return node;
}
NodePtr configuration(const NodePtr &graph, const std::shared_ptr<const Plan> &plan, int64_t index) {
  auto node = std::make_shared<Node>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  node->attributes = {
      {CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {engine(graph, plan, index)}}};
  node->plan = plan;
  node->finalized = true;
  return node;
}

// Engine 0 of a 32-bit convolution computes in TF32, engine 1 does not.
bool has_second_engine(const Plan &plan) { return plan.down_converts; }

std::vector<NodePtr> results(const Node &heuristic) {
  const NodePtr graph = heuristic.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  std::vector<NodePtr> out;
  if (graph == nullptr || graph->plan == nullptr)
    return out;
  const bool fallback = heuristic.integer(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;
  if (!fallback || !has_second_engine(*graph->plan))
    out.push_back(configuration(graph, graph->plan, 0));
  if (has_second_engine(*graph->plan))
    out.push_back(configuration(graph, graph->plan, 1));
  return out;
}

cudnnStatus_t numerical_notes(const Node &engine, int64_t requested, int64_t *returned, void *out) {
  int32_t notes[2];
  int64_t count = 0;
  const bool first = engine.integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == 0;
  if (engine.plan->tensor_core && (first || !engine.plan->down_converts))
    notes[count++] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
  if (engine.plan->down_converts && first)
    notes[count++] = CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
  return give(CUDNN_TYPE_NUMERICAL_NOTE, count, notes, requested, returned, out);
}

// Answers an attribute that the library computes. It returns nothing for an attribute that is only stored.
std::optional<cudnnStatus_t> computed(const Node &node, int name, int type, int64_t requested, int64_t *returned,
                                      void *out) {
  switch (name) {
  case CUDNN_ATTR_ENGINEHEUR_RESULTS:
    return give_nodes(results(node), requested, returned, out);
  case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
    return give_integer(type, node.plan != nullptr && has_second_engine(*node.plan) ? 2 : 1, requested, returned, out);
  case CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO:
  case CUDNN_ATTR_ENGINE_KNOB_INFO:
  case CUDNN_ATTR_ENGINE_LAYOUT_INFO:
  case CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS:
  case CUDNN_ATTR_EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS:
    return give(type, 0, nullptr, requested, returned, out);
  case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: // none, unless the caller chose some
    if (node.find(name) != nullptr)
      return std::nullopt;
    return give(type, 0, nullptr, requested, returned, out);
  case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
  case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
    if (node.plan == nullptr)
      return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    return give_integer(type, node.plan->workspace_bytes, requested, returned, out);
  case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
    if (node.plan == nullptr)
      return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    // Attention fills a multiprocessor's shared memory. No caller decides by what the others use.
    return give_integer(
        type, node.plan->kind == Plan::kAttention ? static_cast<int64_t>(config().gpu.smem_per_block_optin) : 0,
        requested, returned, out);
  case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    return node.plan != nullptr ? numerical_notes(node, requested, returned, out) : CUDNN_STATUS_BAD_PARAM;
  case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE: {
    const int32_t compiles = CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    const bool attention = node.plan != nullptr && node.plan->kind == Plan::kAttention;
    return give(type, attention ? 1 : 0, &compiles, requested, returned, out);
  }
  case CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED:
    return give_integer(type, 0, requested, returned, out);
  case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION:
  case CUDNN_ATTR_KERNEL_CACHE_JSON_REPRESENTATION:
  case CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION:
    unmodelled("cudnn", "cudnnBackendGetAttribute(JSON_REPRESENTATION)");
    return CUDNN_STATUS_NOT_SUPPORTED;
  default:
    return std::nullopt;
  }
}

cudnnStatus_t finalize(Node &node) {
  switch (node.type) {
  case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
    const AttributeValue *dims = node.find(CUDNN_ATTR_TENSOR_DIMENSIONS),
                         *strides = node.find(CUDNN_ATTR_TENSOR_STRIDES);
    if (node.find(CUDNN_ATTR_TENSOR_DATA_TYPE) == nullptr || node.find(CUDNN_ATTR_TENSOR_UNIQUE_ID) == nullptr ||
        dims == nullptr || strides == nullptr || dims->count != strides->count || dims->count > kMaxDims)
      return CUDNN_STATUS_BAD_PARAM;
    return CUDNN_STATUS_SUCCESS;
  }
  case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
    if (node.child(CUDNN_ATTR_OPERATIONGRAPH_OPS) == nullptr)
      return CUDNN_STATUS_BAD_PARAM;
    node.plan = understand(node);
    return node.plan != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
  case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
    return node.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  case CUDNN_BACKEND_ENGINE_DESCRIPTOR: {
    const NodePtr graph = node.child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    if (graph == nullptr || graph->plan == nullptr)
      return CUDNN_STATUS_BAD_PARAM;
    if (node.integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1) < 0 ||
        node.integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) > (has_second_engine(*graph->plan) ? 1 : 0))
      return CUDNN_STATUS_NOT_SUPPORTED;
    node.plan = graph->plan;
    return CUDNN_STATUS_SUCCESS;
  }
  case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: {
    const NodePtr engine = node.child(CUDNN_ATTR_ENGINECFG_ENGINE);
    if (engine == nullptr || engine->plan == nullptr)
      return CUDNN_STATUS_BAD_PARAM;
    node.plan = engine->plan;
    return CUDNN_STATUS_SUCCESS;
  }
  case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
    const NodePtr chosen = node.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (chosen == nullptr || chosen->plan == nullptr)
      return CUDNN_STATUS_BAD_PARAM;
    node.plan = chosen->plan;
    return CUDNN_STATUS_SUCCESS;
  }
  case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: {
    const AttributeValue *ids = node.find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const AttributeValue *pointers = node.find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const bool paired = ids != nullptr && pointers != nullptr && ids->count == pointers->count;
    return paired ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
  }
  default:
    return CUDNN_STATUS_SUCCESS;
  }
}

} // namespace

int64_t Node::integer(int name, int64_t otherwise) const {
  const AttributeValue *a = find(name);
  if (a == nullptr || a->count < 1)
    return otherwise;
  switch (element_bytes(a->type)) {
  case 1:
    return a->at<char>(0);
  case 4:
    return a->at<int32_t>(0);
  default:
    return a->at<int64_t>(0);
  }
}

} // namespace eidolon::dnn

using namespace eidolon;
using namespace eidolon::dnn;

EID_DNN cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
  EID_DNN_NEEDS(out != nullptr && type >= CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  *out = new (std::nothrow) Descriptor{std::make_shared<Node>(type)};
  return *out != nullptr ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

EID_DNN cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t handle) {
  delete descriptor(handle);
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnBackendInitialize(cudnnBackendDescriptor_t handle) {
  EID_DNN_NEEDS(handle != nullptr);
  descriptor(handle)->node = std::make_shared<Node>(descriptor(handle)->node->type);
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  EID_DNN_NEEDS(handle != nullptr);
  Node &node = *descriptor(handle)->node;
  if (cudnnStatus_t status = finalize(node))
    return status;
  node.finalized = true;
  if (node.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) // a kernel is compiled or loaded here, which takes time
    host_cost(EID_CALL("cudnnBackendFinalize"));
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                 cudnnBackendAttributeType_t type, int64_t count, const void *elements) {
  EID_DNN_NEEDS(handle != nullptr && count >= 0 && (count == 0 || elements != nullptr));
  Node &node = *descriptor(handle)->node;
  if (node.finalized)
    return CUDNN_STATUS_NOT_INITIALIZED; // its documented answer
  AttributeValue value = {name, type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto *handles = static_cast<const cudnnBackendDescriptor_t *>(elements);
    for (int64_t i = 0; i < count; ++i) {
      EID_DNN_NEEDS(handles[i] != nullptr);
      if (!descriptor(handles[i])->node->finalized)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
      value.nested.push_back(descriptor(handles[i])->node);
    }
  } else {
    const auto *bytes = static_cast<const char *>(elements);
    value.data.assign(bytes, bytes + count * element_bytes(type));
  }
  for (AttributeValue &known : node.attributes)
    if (known.name == name) {
      known = std::move(value);
      return CUDNN_STATUS_SUCCESS;
    }
  node.attributes.push_back(std::move(value));
  return CUDNN_STATUS_SUCCESS;
}

EID_DNN cudnnBackendGetAttribute(cudnnBackendDescriptor_t const handle, cudnnBackendAttributeName_t name,
                                 cudnnBackendAttributeType_t type, int64_t requested, int64_t *returned, void *out) {
  EID_DNN_NEEDS(handle != nullptr && requested >= 0);
  const Node &node = *descriptor(handle)->node;
  if (!node.finalized)
    return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (std::optional<cudnnStatus_t> status = computed(node, name, type, requested, returned, out))
    return *status;
  const AttributeValue *stored = node.find(name);
  if (stored == nullptr) { // never set, so it is an empty optional attribute
    if (returned != nullptr)
      *returned = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  if (stored->type != type)
    return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    return give_nodes(stored->nested, requested, returned, out);
  return give(type, stored->count, stored->data.data(), requested, returned, out);
}

EID_DNN cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_handle,
                            cudnnBackendDescriptor_t pack_handle) {
  EID_DNN_NEEDS(handle != nullptr && plan_handle != nullptr && pack_handle != nullptr);
  const Node &plan = *descriptor(plan_handle)->node, &pack = *descriptor(pack_handle)->node;
  if (!plan.finalized || !pack.finalized || plan.plan == nullptr)
    return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  const AttributeValue *ids = pack.find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const AttributeValue *pointers = pack.find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  EID_DNN_NEEDS(ids != nullptr && pointers != nullptr);
  for (const Output &output : plan.plan->outputs)
    for (int64_t i = 0; i < ids->count; ++i)
      if (ids->at<int64_t>(i) == output.uid)
        written(pointers->at<void *>(i), output.tensor);
  if (const AttributeValue *workspace = pack.find(CUDNN_ATTR_VARIANT_PACK_WORKSPACE); workspace && workspace->count > 0)
    written(workspace->at<void *>(0), plan.plan->workspace_bytes);
  return launch(handle, plan.plan->signature(), EID_CALL("cudnnBackendExecute"));
}
