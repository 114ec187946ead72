// Describes operators by their schema, and collects the facts about one call of an operator that costs depend on.
//
// Attributes of an "op" signature, in this order; one that does not apply is absent:
//
//   present           which inputs and integers follow: bit i for input i, three bits from 8 + 3j for the number of
//                     values of integer argument j
//   bytes             of all CUDA tensor arguments (of a view: its elements, not its storage)
//   written           of those that the operator mutates
//   tensors, tensors_numel, tensors_bytes    of lists of tensors (foreach and fused optimizers)
//   in<i>_numel, in<i>_itemsize, in<i>_dtype, in<i>_layout, in<i>_dims, in<i>_d0 ... in<i>_d4
//                     i counts the schema's tensor arguments, the first six; dtype is c10::ScalarType's number; layout
//                     is 1 contiguous, 2 channels last, 3 dense in another order, 0 strided; sizes beyond the fifth are
//                     left out (numel has them)
//   <name> or <name>_0 ... <name>_3          the first six int, bool and int[] arguments by the schema's names: dim,
//                     keepdim, stride, is_causal, ...
#pragma once
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "core.h"

namespace eidolon::torch_plugin {

using Inputs = c10::ArrayRef<const c10::IValue>;

inline constexpr size_t kInputs = 6, kDims = 5, kIntegers = 6, kListValues = 4;

struct Argument {
  enum Kind : uint8_t { kOther, kTensor, kTensors, kInteger } kind = kOther;
  bool written = false;
  uint8_t position = 0;            // among the arguments of its kind; kTensor and kInteger
  std::vector<std::string> keys{}; // kInteger: its name, and name_0 ... for lists
};

struct Operator {
  enum class Fill : uint8_t { kNone, kScalar, kZeros }; // writes one host value: argument 1, or 0
  std::string name, overload;
  bool has_schema = false;
  bool is_view = false;            // returns an alias and writes nothing, so it launches nothing itself
  bool writes = false;             // has arguments whose bytes it changes
  bool updates_statistics = false; // batch norm: writes what its schema does not say
  Fill fill = Fill::kNone;
  bool copies = false;         // argument 1 to argument 0
  bool overwrites = false;     // copies and fills: what its written arguments held before does not matter
  bool finite_default = false; // says whether gradients are finite, and says yes where nobody knows
  std::vector<Argument> arguments;

  // A boxed call passes the whole stack, with the arguments on top.
  Inputs arguments_of(Inputs stack) const {
    const size_t n = std::min(stack.size(), arguments.size());
    return stack.slice(stack.size() - n, n);
  }
};

// Whether this is a dense tensor on a device, with numbers as sizes and with its own storage. Wrapper subclasses
// (DTensor, FakeTensor) and nested, sparse or symbolic tensors are not plain. What such wrappers hold is seen when the
// operator runs on it.
inline bool plain_cuda(const c10::TensorImpl *tensor) {
  const c10::DispatchKeySet keys = tensor->key_set();
  return keys.has(c10::DispatchKey::CUDA) && !keys.has(c10::DispatchKey::Python) &&
         !keys.has(c10::DispatchKey::Functionalize) && !tensor->has_symbolic_sizes_strides() && tensor->has_storage();
}

// Calls f(tensor) for each plain CUDA tensor of a tensor or tensor list argument.
template <class F> void each_tensor(const c10::IValue &value, F f) {
  if (value.isTensor()) {
    if (const c10::TensorImpl *tensor = value.unsafeToTensorImpl(); plain_cuda(tensor))
      f(tensor);
  } else if (value.isList()) {
    for (const c10::IValue &item : value.toListRef())
      if (item.isTensor())
        if (const c10::TensorImpl *tensor = item.unsafeToTensorImpl(); plain_cuda(tensor))
          f(tensor);
  }
}

// ---- from a schema to an Operator --------------------------------------------------------------------------------

namespace detail {

// Operators that work in place only on the tensor object, and leave its bytes as they are.
inline bool only_metadata(const std::string &name) {
  static const char *const names[] = {"as_strided_",     "detach_",    "record_stream", "rename_", "requires_grad_",
                                      "resize_",         "resize_as_", "retain_grad",   "set_",    "set_data",
                                      "squeeze_",        "swapaxes_",  "swapdims_",     "t_",      "transpose_",
                                      "_resize_output_", "unsqueeze_"};
  return name.compare(0, 6, "aten::") == 0 && std::any_of(std::begin(names), std::end(names), [&](const char *n) {
           return name.compare(6, name.npos, n) == 0;
         });
}

// Operators whose bytes come and go through NCCL, which itself says what is known.
inline bool is_collective(const std::string &name) {
  return name.rfind("c10d::", 0) == 0 || name.rfind("_c10d_functional", 0) == 0 || name.rfind("symm_mem::", 0) == 0;
}

inline Argument classify(const c10::Argument &from, uint8_t &tensors, uint8_t &integers) {
  Argument to;
  to.written = from.alias_info() != nullptr && from.alias_info()->isWrite();
  c10::TypePtr type = from.type();
  if (auto optional = type->cast<c10::OptionalType>())
    type = optional->getElementType();
  const bool list = type->kind() == c10::TypeKind::ListType;
  c10::TypePtr element = list ? type->castRaw<c10::ListType>()->getElementType() : type;
  if (auto optional = element->cast<c10::OptionalType>())
    element = optional->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) {
    to.kind = list ? Argument::kTensors : Argument::kTensor;
    to.position = list ? 0 : tensors++;
  } else if ((element->kind() == c10::TypeKind::IntType || element->kind() == c10::TypeKind::BoolType) &&
             integers < kIntegers) {
    to.kind = Argument::kInteger;
    to.position = integers++;
    to.keys.push_back(from.name());
    for (size_t i = 0; list && i < kListValues; ++i)
      to.keys.push_back(from.name() + "_" + std::to_string(i));
  }
  return to;
}

} // namespace detail

// The operator that a function runs. It is made once and lives for ever.
inline const Operator &describe(const at::RecordFunction &function) {
  static auto &mutex = *new std::mutex;
  static auto &known = *new std::map<std::tuple<std::string, std::string, bool>, const Operator *>;
  const auto schema = function.operator_schema();
  std::lock_guard hold(mutex);
  const Operator *&slot = known[{function.name(), function.overload_name(), schema.has_value()}];
  // A name may come with another schema later (torch.library). The old description stays, because it may be in use.
  if (slot != nullptr && (!schema || slot->arguments.size() == schema->arguments().size()))
    return *slot;
  auto *op = new Operator;
  op->name = function.name();
  op->overload = function.overload_name();
  if (schema) {
    op->has_schema = true;
    uint8_t tensors = 0, integers = 0;
    const bool writes = !detail::only_metadata(op->name) && !detail::is_collective(op->name);
    bool mutates = false;
    for (const c10::Argument &argument : schema->arguments()) {
      op->arguments.push_back(detail::classify(argument, tensors, integers));
      mutates |= op->arguments.back().written;
      op->arguments.back().written &= writes;
      op->writes |= op->arguments.back().written;
    }
    for (const c10::Argument &result : schema->returns())
      op->is_view |= !mutates && result.alias_info() != nullptr;
    op->updates_statistics = op->name == "aten::native_batch_norm" || op->name == "aten::cudnn_batch_norm";
    if (op->name == "aten::fill_")
      op->fill = Operator::Fill::kScalar;
    else if (op->name == "aten::_foreach_zero_")
      op->fill = Operator::Fill::kZeros;
    op->copies = op->name == "aten::copy_";
    op->overwrites = op->copies || op->fill != Operator::Fill::kNone || op->name == "aten::zero_" ||
                     op->name == "aten::_foreach_copy_";
    op->finite_default = op->name == "aten::_amp_foreach_non_finite_check_and_unscale_";
  }
  slot = op;
  return *slot;
}

// ---- the facts of one call ---------------------------------------------------------------------------------------

struct Facts {
  static constexpr size_t kMost = 6 + kInputs * (5 + kDims) + kIntegers * kListValues;
  size_t count = 0;
  Attribute attributes[kMost];
  void set(size_t at, signatures::Op::Key key, int64_t value) { attributes[at] = {key.text(), value}; }
  void add(signatures::Op::Key key, int64_t value) { set(count++, key, value); }
  // An argument of the operator, by its own name.
  void add_argument(const std::string &name, int64_t value) { attributes[count++] = {name.c_str(), value}; }
  // `present` is among them, so equal values have equal keys.
  uint64_t hash(uint64_t seed) const {
    uint64_t hash = seed;
    for (size_t i = 0; i < count; ++i) {
      hash = (hash ^ static_cast<uint64_t>(attributes[i].value)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

namespace detail {

struct InputKeys {
  signatures::Op::Key numel, itemsize, dtype, layout, dims, sizes[kDims];
};
#define EIDOLON_INPUT_KEYS(i)                                                                                          \
  {#i "_numel",  #i "_itemsize", #i "_dtype",                                                                          \
   #i "_layout", #i "_dims",     {#i "_d0", #i "_d1", #i "_d2", #i "_d3", #i "_d4"}}
inline constexpr InputKeys kInputKeys[kInputs] = {EIDOLON_INPUT_KEYS(in0), EIDOLON_INPUT_KEYS(in1),
                                                  EIDOLON_INPUT_KEYS(in2), EIDOLON_INPUT_KEYS(in3),
                                                  EIDOLON_INPUT_KEYS(in4), EIDOLON_INPUT_KEYS(in5)};
#undef EIDOLON_INPUT_KEYS

inline int64_t layout_of(const c10::TensorImpl *tensor) {
  if (tensor->is_contiguous())
    return 1;
  if (tensor->is_strides_like_channels_last() || tensor->is_strides_like_channels_last_3d())
    return tensor->is_non_overlapping_and_dense() ? 2 : 0;
  return tensor->is_non_overlapping_and_dense() ? 3 : 0;
}

inline void add_input(Facts &facts, size_t i, const c10::TensorImpl *tensor, int64_t itemsize) {
  const InputKeys &keys = kInputKeys[i];
  const c10::IntArrayRef sizes = tensor->sizes();
  facts.add(keys.numel, tensor->numel());
  facts.add(keys.itemsize, itemsize);
  facts.add(keys.dtype, static_cast<int64_t>(c10::typeMetaToScalarType(tensor->dtype())));
  facts.add(keys.layout, layout_of(tensor));
  facts.add(keys.dims, static_cast<int64_t>(sizes.size()));
  for (size_t d = 0; d < std::min(sizes.size(), kDims); ++d)
    facts.add(keys.sizes[d], sizes[d]);
}

// Adds the values of an integer argument, and returns how many there are.
inline size_t add_integers(Facts &facts, const Argument &argument, const c10::IValue &value) {
  if (value.isInt() || value.isBool()) {
    facts.add_argument(argument.keys[0], value.isInt() ? value.toInt() : value.toBool());
    return 1;
  }
  size_t n = 0;
  if (value.isList())
    for (const c10::IValue &item : value.toListRef()) {
      if (n == std::min(kListValues, argument.keys.size() - 1) || !(item.isInt() || item.isBool()))
        break;
      facts.add_argument(argument.keys[1 + n++], item.isInt() ? item.toInt() : item.toBool());
    }
  return n;
}

} // namespace detail

inline constexpr size_t kTotals = 3; // attributes that come first, though they are known last

// Collects the facts of a call. Returns false if no argument is a plain CUDA tensor.
inline bool gather(const Operator &op, Inputs inputs, Facts &facts) {
  facts.count = kTotals;
  int64_t present = 0, bytes = 0, written = 0, tensors = 0, tensors_numel = 0, tensors_bytes = 0;
  bool cuda = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Argument &argument = op.arguments[i];
    if (argument.kind == Argument::kTensor || argument.kind == Argument::kTensors) {
      each_tensor(inputs[i], [&](const c10::TensorImpl *tensor) {
        const auto itemsize = static_cast<int64_t>(tensor->itemsize());
        const int64_t size = tensor->numel() * itemsize;
        cuda = true;
        bytes += size;
        written += argument.written ? size : 0;
        if (argument.kind == Argument::kTensors) {
          ++tensors;
          tensors_numel += tensor->numel();
          tensors_bytes += size;
        } else if (argument.position < kInputs) {
          present |= int64_t{1} << argument.position;
          detail::add_input(facts, argument.position, tensor, itemsize);
        }
      });
    } else if (argument.kind == Argument::kInteger) {
      present |= static_cast<int64_t>(detail::add_integers(facts, argument, inputs[i])) << (8 + 3 * argument.position);
    }
  }
  facts.set(0, "present", present);
  facts.set(1, "bytes", bytes);
  facts.set(2, "written", written);
  if (tensors != 0) {
    facts.add("tensors", tensors);
    facts.add("tensors_numel", tensors_numel);
    facts.add("tensors_bytes", tensors_bytes);
  }
  return cuda;
}

} // namespace eidolon::torch_plugin
