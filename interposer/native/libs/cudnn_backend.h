// The backend API's descriptors. They keep typed attributes as they were set.
//
// One generic store serves every descriptor type: an attribute is a name, a type, and an array of elements; nested
// descriptors are retained. What the library itself answers (heuristics, engines, workspaces) is computed when it is
// asked for, from the operation graph.
#pragma once
#include "cudnn_internal.h"

#include <memory>
#include <optional>
#include <string>

namespace eidolon::dnn {

struct Node;
using NodePtr = std::shared_ptr<Node>;

struct AttributeValue {
  int name, type;
  int64_t count;
  std::vector<char> data;      // elements, unless they are descriptors
  std::vector<NodePtr> nested; // descriptors

  template <class T> T at(int64_t i) const {
    T value;
    __builtin_memcpy(&value, data.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
};

struct Plan;

// The state of one descriptor. Shared: descriptors that hold it outlive the handle the caller destroys.
struct Node {
  explicit Node(int descriptor_type) : type(descriptor_type) {}
  int type;
  bool finalized = false;
  std::vector<AttributeValue> attributes;
  std::shared_ptr<const Plan> plan; // for engines, configurations and plans: what their graph comes down to

  const AttributeValue *find(int name) const {
    for (const AttributeValue &a : attributes)
      if (a.name == name)
        return &a;
    return nullptr;
  }
  NodePtr child(int name, int64_t i = 0) const {
    const AttributeValue *a = find(name);
    return a != nullptr && i < static_cast<int64_t>(a->nested.size()) ? a->nested[static_cast<size_t>(i)] : nullptr;
  }
  int64_t integer(int name, int64_t otherwise = 0) const; // of any integer type, first element
};

struct Output {
  int64_t uid;
  Tensor tensor;
};
// What an operation graph is, as far as costs, memory and results are concerned.
struct Plan {
  enum Kind { kConvolution, kAttention, kGemm, kLibrary } kind;
  std::vector<Output> outputs;
  int64_t workspace_bytes = 0;
  bool tensor_core = true;
  bool down_converts = false; // its first engine computes 32-bit inputs in TF32

  // kConvolution
  Convolution convolution;
  // kAttention
  bool backward = false, causal = false, bias = false;
  int64_t b = 0, h = 0, sq = 0, skv = 0, d = 0, dv = 0, kvh = 0;
  int type = 0;
  // kGemm
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool ta = false, tb = false;
  int c_type = 0;
  // kLibrary
  std::string name;
  int64_t bytes = 0;

  uint32_t signature() const;
};

Tensor tensor_of(const Node &descriptor);
// Returns what a finalized operation graph comes down to, or nullptr if cuDNN would not run it.
std::shared_ptr<const Plan> understand(const Node &graph);

} // namespace eidolon::dnn
