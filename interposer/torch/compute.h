// Small values are real: operators whose tensors are small and known are computed, by PyTorch's own CPU kernels.
//
// An emulated kernel computes nothing. Where all tensors of an operator on CUDA are known and have at most
// `kMostElements` elements, the same operator runs again when it has ended, at ATen level, on CPU tensors that alias
// the same memory, and its results become known. Costs are unchanged: the emulated launches were made. What frameworks
// steer by (sizes, counts, masks, flags, step numbers, loss scales) is computed so, whatever operator it is.
//
// The outermost such operator of a thread is computed; those inside it are parts of it. Operators that return a number
// (item, equal) are looked through: what they read was computed. Random operators are not computed: the device's random
// numbers are nobody's to know. An operator that itself reads its answer from the device while it runs (the size of
// nonzero's result, equal) is computed before, wherever it stands, and its read is told the answer.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <vector>

#include "core.h"
#include "operators.h"
#include "writes.h"

namespace eidolon::torch_plugin {

inline constexpr int64_t kMostElements = 4096;

// How an operator is computed; made once per operator.
struct Computable {
  bool possible = false;   // tensors in, tensors out, not random, not a view
  bool before = false;     // reads its answer from the device while it runs
  bool from_sizes = false; // has no tensor argument: arange, full, eye, ...
  std::optional<c10::OperatorHandle> handle{};
};

inline Computable computable(const Operator &op) {
  Computable out;
  if (!op.has_schema || op.is_view || op.name.rfind("aten::", 0) != 0)
    return out;
  for (const char *skip : {"aten::empty", "aten::new_empty", "aten::record_stream", "aten::_foreach", "aten::_fused",
                           "aten::_local_scalar_dense", "aten::resize", "aten::set_"})
    if (op.name.rfind(skip, 0) == 0)
      return out;
  out.handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  if (!out.handle || out.handle->hasTag(at::Tag::nondeterministic_seeded))
    return out;
  out.before = op.name == "aten::nonzero" || op.name == "aten::equal";
  const auto &schema = out.handle->schema();
  bool any_result = false;
  for (const auto &result : schema.returns()) {
    const auto kind = result.type()->kind();
    const bool list = kind == c10::TypeKind::ListType;
    if (kind != c10::TypeKind::TensorType && !list && !out.before)
      return out;
    any_result = true;
  }
  out.from_sizes = std::none_of(op.arguments.begin(), op.arguments.end(), [](const Argument &a) {
    return a.kind == Argument::kTensor || a.kind == Argument::kTensors;
  });
  out.possible = any_result;
  return out;
}

// A running operator that will be computed.
struct Pending {
  const Computable *how = nullptr;
  std::vector<c10::IValue> arguments;
};

namespace detail {

inline bool cpu_plain(const c10::TensorImpl *tensor) {
  const c10::DispatchKeySet keys = tensor->key_set();
  return keys.has(c10::DispatchKey::CPU) && !keys.has(c10::DispatchKey::Python) &&
         !keys.has(c10::DispatchKey::Functionalize) && !tensor->has_symbolic_sizes_strides() && tensor->has_storage();
}

inline bool small(const c10::TensorImpl *tensor) { return tensor->numel() <= kMostElements; }

inline bool known(const c10::TensorImpl *tensor) {
  char *storage = storage_of(tensor);
  if (storage == nullptr)
    return tensor->numel() == 0;
  bool all = true;
  // Sizes and flags that NCCL still has to bring are worth waiting for; numbers that nobody steers by are not.
  const bool integral = c10::isIntegralType(c10::typeMetaToScalarType(tensor->dtype()), /*includeBool=*/true);
  each_run(tensor, storage, [&](char *at, size_t n, bool) {
    if (integral)
      value_settle(at, n);
  });
  each_run(tensor, storage, [&](char *at, size_t n, bool exact) { all = all && exact && value_known(at, n) == n; });
  return all;
}

// True if the value holds only tensors that can be computed with; counts those on the device.
inline bool usable(const c10::IValue &value, bool written_only, int &on_device) {
  auto one = [&](const c10::TensorImpl *tensor) {
    if (plain_cuda(tensor)) {
      ++on_device;
      return small(tensor) && (written_only || known(tensor));
    }
    return cpu_plain(tensor) && small(tensor);
  };
  if (value.isTensor())
    return one(value.unsafeToTensorImpl());
  if (value.isList())
    for (const c10::IValue &item : value.toListRef())
      if (item.isTensor() && !one(item.unsafeToTensorImpl()))
        return false;
  return true;
}

inline bool on_device(const c10::IValue &value) { return value.isDevice() && value.toDevice().is_cuda(); }

inline at::Tensor alias_on_cpu(const at::Tensor &tensor) {
  if (!tensor.defined() || !plain_cuda(tensor.unsafeGetTensorImpl()))
    return tensor;
  char *storage = storage_of(tensor.unsafeGetTensorImpl());
  char *first = storage == nullptr ? nullptr : storage + tensor.storage_offset() * tensor.dtype().itemsize();
  return at::from_blob(first, tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU).requires_grad(false));
}

inline c10::IValue on_cpu(const c10::IValue &value, const c10::Argument &argument) {
  if (value.isTensor())
    return alias_on_cpu(value.toTensor());
  if (value.isDevice())
    return c10::Device(c10::kCPU);
  if (argument.name() == "pin_memory" || argument.name() == "generator")
    return c10::IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor &tensor : value.toTensorList())
      list.push_back(alias_on_cpu(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> &tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional(alias_on_cpu(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// Runs the operator on CPU aliases, below autograd, autocast and Python modes.
inline std::vector<c10::IValue> run(const Pending &pending) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_modes(
      c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                           c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize}));
  const auto &schema = pending.how->handle->schema();
  torch::jit::Stack stack;
  for (size_t i = 0; i < pending.arguments.size(); ++i)
    stack.push_back(on_cpu(pending.arguments[i], schema.arguments()[i]));
  pending.how->handle->callBoxed(stack);
  return stack;
}

// Puts a computed tensor where the emulated operator left its own result; in its type (autocast may have chosen it).
inline void deliver(const at::Tensor &computed, const at::Tensor &result) {
  if (!computed.defined() || !result.defined() || computed.sizes() != result.sizes() ||
      !small(result.unsafeGetTensorImpl()))
    return;
  const c10::TensorImpl *impl = result.unsafeGetTensorImpl();
  if (!plain_cuda(impl)) {
    if (cpu_plain(impl) && computed.data_ptr() != result.data_ptr())
      result.detach().copy_(computed);
    return;
  }
  char *storage = storage_of(impl);
  if (storage == nullptr || result.numel() == 0)
    return;
  at::Tensor place = alias_on_cpu(result);
  if (place.data_ptr() != computed.data_ptr())
    place.copy_(computed);
  std::vector<char> bytes;
  each_run(impl, storage, [&](char *at, size_t n, bool exact) {
    if (!exact)
      return;
    bytes.assign(at, at + n);
    value_computed(at, n, bytes.data());
  });
}

inline void deliver(const c10::IValue &computed, const c10::IValue &result) {
  if (computed.isTensor() && result.isTensor()) {
    deliver(computed.toTensor(), result.toTensor());
  } else if (computed.isTensorList() && result.isTensorList()) {
    const auto from = computed.toTensorVector(), to = result.toTensorVector();
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i)
      deliver(from[i], to[i]);
  }
}

} // namespace detail

// At the begin of an operator: whether it will be computed. Keeps its arguments if so.
inline std::optional<Pending> begin_compute(const Computable &how, const Operator &op, Inputs inputs) {
  if (!how.possible || inputs.size() != op.arguments.size() || capture_forbids_unsafe_call())
    return std::nullopt;
  int on_device = 0;
  bool device_argument = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool tensors = op.arguments[i].kind == Argument::kTensor || op.arguments[i].kind == Argument::kTensors;
    if (tensors && !detail::usable(inputs[i], op.arguments[i].written && op.copies, on_device))
      return std::nullopt;
    device_argument = device_argument || detail::on_device(inputs[i]);
  }
  if (on_device == 0 && !(how.from_sizes && device_argument))
    return std::nullopt;
  Pending pending{&how, {}};
  pending.arguments.assign(inputs.begin(), inputs.end());
  if (how.before) {
    const std::vector<c10::IValue> results = detail::run(pending);
    value_expect(results[0].isBool() ? results[0].toBool() : results[0].toTensor().size(0));
  }
  return pending;
}

// At its end: computes and delivers.
inline void end_compute(const Pending &pending, const std::vector<c10::IValue> &outputs) {
  for (const c10::IValue &output : outputs) { // a large result of small tensors (full, expand): not computed
    if (output.isTensor() && output.toTensor().defined() && output.toTensor().numel() > kMostElements)
      return;
  }
  const std::vector<c10::IValue> results = detail::run(pending);
  for (size_t i = 0; i < std::min(results.size(), outputs.size()); ++i)
    detail::deliver(results[i], outputs[i]);
  if (pending.how->before)
    value_expect(-1);
}

} // namespace eidolon::torch_plugin
