// Small values are real. Operators whose tensors are small and known are computed by PyTorch's own CPU kernels.
//
// An emulated kernel computes nothing. Where all tensors that an operator reads are known and small (at most
// `kMostElements` numbers, or `kMostIntegers` integers and booleans), the same operator runs again when it has ended,
// at ATen level, on the CPU, and its results become known. Costs are unchanged, because the emulated launches were
// made. What frameworks steer by (sizes, counts, masks, flags, step numbers, loss scales) is computed in this way,
// whatever operator gives it.
//
// Operators inside operators are computed too, so that an operator which reads its own intermediate results (bincount)
// reads true ones. An operator that launches nothing itself (no CUDA kernel is registered for it) is computed only if
// its parts did not leave its results known. Some operators read their answer by a launch of their own, below the
// dispatcher (nonzero and unique, for the size of their results, and equal). Such an operator is computed when it
// begins, and its read is told the answer.
//
// Device memory is read in place, but never written. What an operator mutates is copied before it runs. Results go
// through `value_computed`. An operator that reads what NCCL still has to bring is computed when that has come
// (deferred.h). Nobody waits for it here: a host that waited could keep back a send that another rank needs first.
//
// Some things are not computed: random operators (random.h draws for some of them), whatever is captured into a graph,
// operators on tensors that are not plain, and results that are not small.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <vector>

#include "core.h"
#include "operators.h"
#include "writes.h"

namespace eidolon::torch_plugin {

inline constexpr int64_t kMostElements = 4096;
// Token numbers, labels and masks of a batch: programs count them and choose rows by them. Torch's CPU kernels take as
// many on the calling thread (at::internal::GRAIN_SIZE); for more they start threads in the rank.
inline constexpr int64_t kMostIntegers = 32768;

inline bool small(const c10::TensorImpl *tensor) {
  return tensor->numel() <= (c10::isIntegralType(c10::typeMetaToScalarType(tensor->dtype()), /*includeBool=*/true)
                                 ? kMostIntegers
                                 : kMostElements);
}

// How an operator is computed. This is decided once per operator.
struct Computable {
  bool possible = false;   // tensors in, tensors out or mutated, not random, not a view, and the CPU has it
  bool before = false;     // reads its answer below the dispatcher
  bool from_sizes = false; // has no tensor argument: arange, full, eye, ...
  bool launches = false;   // has kernels of its own, which may change what its parts left known in its results
  size_t results = 0;
  std::optional<c10::OperatorHandle> handle{};
};

namespace detail {

// Operators that are not computed, since their values are not defined, they cost too much, or they have hidden state
// that their schema does not mention.
inline bool never_computed(const std::string &name) {
  for (const char *part : {"batch_norm", "instance_norm", "dropout"})
    if (name.find(part) != name.npos)
      return true;
  for (const char *start : {"aten::empty", "aten::new_empty", "aten::record_stream", "aten::_fused", "aten::resize",
                            "aten::set_", "aten::_local_scalar_dense"})
    if (name.rfind(start, 0) == 0)
      return true;
  return false;
}

inline bool random(const c10::OperatorHandle &handle) {
  const auto &arguments = handle.schema().arguments();
  return handle.hasTag(at::Tag::nondeterministic_seeded) ||
         std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument &a) {
           return a.name() == "generator" || a.name().find("dropout") != std::string::npos;
         });
}

// Random operators that are put together from others, which draw and compute.
inline bool has_parts_only(const std::string &name) {
  for (const char *known : {"aten::multinomial", "aten::bernoulli"})
    if (name == known)
      return true;
  return false;
}

inline bool reads_below_dispatcher(const std::string &name) {
  for (const char *known : {"aten::nonzero", "aten::equal", "aten::_unique2", "aten::unique_consecutive"})
    if (name == known)
      return true;
  return false;
}

// The answer that such an operator reads; none for the distinct values of booleans, whose kernel counts otherwise.
inline std::optional<int64_t> answer_of(const c10::IValue &result) {
  if (result.isBool())
    return result.toBool();
  const at::Tensor &made = result.toTensor();
  if (made.scalar_type() == c10::ScalarType::Bool)
    return std::nullopt;
  return made.size(0);
}

} // namespace detail

inline Computable computable(const Operator &op) {
  Computable out;
  if (!op.has_schema || op.is_view || detail::is_collective(op.name))
    return out;
  const bool aten = op.name.rfind("aten::", 0) == 0;
  out.handle = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
  if (!out.handle)
    return out;
  out.launches = !op.overwrites && !detail::has_parts_only(op.name) &&
                 (!aten || out.handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA));
  const auto &schema = out.handle->schema();
  out.results = schema.returns().size();
  if (!aten || detail::never_computed(op.name) || detail::random(*out.handle) ||
      !out.handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
    return out;
  out.before = detail::reads_below_dispatcher(op.name);
  for (const auto &result : schema.returns()) {
    const auto kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType && !out.before)
      return out;
  }
  out.from_sizes = std::none_of(op.arguments.begin(), op.arguments.end(), [](const Argument &a) {
    return a.kind == Argument::kTensor || a.kind == Argument::kTensors;
  });
  out.possible = out.results != 0 || op.writes;
  return out;
}

// What is known of copies of tensors that were filled later.
struct Copied {
  Knowledge knowledge = Knowledge::kKnown;
  Origin origin = Origin::kNothing;
};

// An argument that an operator mutates.
struct Mutated {
  c10::IValue original, copy; // the copy on the CPU is what is computed with
};

// A running operator that will be computed.
struct Pending {
  const Computable *how = nullptr;
  bool coming = false;                  // some of what it reads depends on a payload
  Origin origin = Origin::kNothing;     // of what it reads, unless some of that is coming
  std::vector<c10::IValue> arguments{}; // with copies on the CPU in place of those that it mutates
  std::vector<Mutated> written{};
  // Where some is coming, everything that it reads is copied, and the copies are filled later (deferred.h).
  std::vector<std::pair<c10::IValue, c10::IValue>> copies{};
  std::shared_ptr<Copied> copied{};
};

namespace detail {

// Runs the operator below autograd, autocast, and whatever Python or functorch put above a kernel.
struct BelowModes {
  at::AutoDispatchBelowADInplaceOrView autograd{};
  c10::impl::ExcludeDispatchKeyGuard others{
      c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                           c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize})};
};

inline bool cpu_plain(const c10::TensorImpl *tensor) {
  const c10::DispatchKeySet keys = tensor->key_set();
  return keys.has(c10::DispatchKey::CPU) && !keys.has(c10::DispatchKey::Python) &&
         !keys.has(c10::DispatchKey::Functionalize) && !tensor->has_symbolic_sizes_strides() && tensor->has_storage();
}

// Calls f(tensor) for each defined tensor of a value until one call returns false. Returns what the last call returned.
template <class F> bool all_tensors(const c10::IValue &value, F f) {
  auto one = [&](const c10::IValue &item) {
    const c10::TensorImpl *tensor = item.isTensor() ? item.unsafeToTensorImpl() : nullptr;
    return tensor == nullptr || tensor == c10::UndefinedTensorImpl::singleton() || f(tensor);
  };
  if (!value.isList())
    return one(value);
  const auto items = value.toListRef();
  return std::all_of(items.begin(), items.end(), one);
}

// Says what is known of a tensor's elements. With `wait` it first waits for what NCCL still has to bring.
inline Knowledge knowledge(const c10::TensorImpl *tensor, bool wait = false) {
  if (tensor->numel() == 0)
    return Knowledge::kKnown;
  char *storage = storage_of(tensor);
  if (storage == nullptr)
    return Knowledge::kUnknown;
  Knowledge all = Knowledge::kKnown;
  each_run(tensor, storage, [&](char *at, size_t n, bool exact) {
    if (all == Knowledge::kUnknown)
      return;
    if (wait)
      value_settle(at, n);
    all = exact ? std::min(all, value_knowledge(at, n)) : Knowledge::kUnknown;
  });
  return all;
}

inline Knowledge knowledge(const c10::IValue &value, bool wait = false) {
  Knowledge all = Knowledge::kKnown;
  all_tensors(value, [&](const c10::TensorImpl *tensor) {
    if (plain_cuda(tensor))
      all = std::min(all, knowledge(tensor, wait));
    return all != Knowledge::kUnknown;
  });
  return all;
}

inline bool known(const c10::TensorImpl *tensor) { return knowledge(tensor) == Knowledge::kKnown; }
inline bool all_known(const c10::IValue &value) { return knowledge(value) == Knowledge::kKnown; }

inline Origin origin_of(const c10::TensorImpl *tensor) {
  Origin origin = Origin::kNothing;
  if (char *storage = storage_of(tensor); storage != nullptr && tensor->numel() != 0)
    each_run(tensor, storage, [&](char *at, size_t n, bool) { origin = std::max(origin, value_origin(at, n)); });
  return origin;
}

inline Origin origin_of(const c10::IValue &value) {
  Origin origin = Origin::kNothing;
  each_tensor(value, [&](const c10::TensorImpl *tensor) { origin = std::max(origin, origin_of(tensor)); });
  return origin;
}

inline at::TensorOptions options_of(const at::Tensor &tensor) { return at::TensorOptions(tensor.scalar_type()); }

inline at::Tensor alias_on_cpu(const at::Tensor &tensor) {
  if (!tensor.defined() || !plain_cuda(tensor.unsafeGetTensorImpl()))
    return tensor;
  char *storage = storage_of(tensor.unsafeGetTensorImpl());
  char *first = storage == nullptr ? nullptr : storage + tensor.storage_offset() * tensor.dtype().itemsize();
  at::Tensor alias = at::from_blob(first, tensor.sizes(), tensor.strides(), options_of(tensor));
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

inline std::vector<at::Tensor> tensors_of(const c10::IValue &value) { // those that are defined
  std::vector<at::Tensor> all;
  if (value.isTensor()) {
    all.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    all = value.toTensorVector();
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> &tensor : value.toOptionalTensorList())
      all.push_back(tensor.value_or(at::Tensor()));
  }
  std::erase_if(all, [](const at::Tensor &tensor) { return !tensor.defined(); });
  return all;
}

template <class F> c10::IValue map_tensors(const c10::IValue &value, F f) {
  if (value.isTensor())
    return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor &tensor : value.toTensorList())
      list.push_back(f(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> &tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional(f(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// A copy on the CPU of what an operator reads. That of a tensor on the device is filled later; the host may change its
// own tensors by then.
inline at::Tensor copy_to_come(const at::Tensor &tensor) {
  if (!tensor.defined())
    return tensor;
  return plain_cuda(tensor.unsafeGetTensorImpl()) ? at::empty(tensor.sizes(), options_of(tensor)) : tensor.clone();
}

inline c10::IValue on_cpu(const c10::IValue &value, const c10::Argument &argument) {
  if (value.isDevice())
    return c10::Device(c10::kCPU);
  return argument.name() == "pin_memory" ? c10::IValue() : map_tensors(value, alias_on_cpu);
}

// The arguments of the same operator on the CPU; they alias those on the device.
inline torch::jit::Stack on_cpu(const Pending &pending) {
  const auto &schema = pending.how->handle->schema();
  torch::jit::Stack stack;
  stack.reserve(pending.arguments.size());
  for (size_t i = 0; i < pending.arguments.size(); ++i)
    stack.push_back(on_cpu(pending.arguments[i], schema.arguments()[i]));
  return stack;
}

inline std::vector<c10::IValue> run(const Computable &how, torch::jit::Stack stack) {
  how.handle->callBoxed(stack);
  return stack;
}

// Puts a computed tensor where the emulated operator left its own, and in the type of that one, which autocast may have
// chosen. With `alias`, the result is given by a tensor on the CPU that aliases it.
inline bool deliver(const at::Tensor &computed, const at::Tensor &result, Origin origin, bool alias = false) {
  if (!result.defined() || (!alias && !plain_cuda(result.unsafeGetTensorImpl())))
    return true;
  const c10::TensorImpl *impl = result.unsafeGetTensorImpl();
  if (!computed.defined() || computed.sizes() != result.sizes() || result.is_conj() || result.is_neg())
    return false;
  char *storage = storage_of(impl);
  if (storage == nullptr || result.numel() == 0)
    return true;
  constexpr int64_t kMostSpread = 1 << 20; // elements between the first and the last
  int64_t spread = 1;
  for (size_t d = 0; d < result.sizes().size(); ++d)
    spread += (result.sizes()[d] - 1) * result.strides()[d];
  if (spread > kMostSpread)
    return false;
  at::Tensor source = computed;
  if (computed.scalar_type() != result.scalar_type() || computed.strides() != result.strides() || computed.is_conj() ||
      computed.is_neg())
    source = at::empty_strided(result.sizes(), result.strides(), options_of(result)).copy_(computed);
  const char *data = static_cast<const char *>(source.const_data_ptr());
  const char *first = storage + result.storage_offset() * static_cast<int64_t>(result.dtype().itemsize());
  bool all = true;
  each_run(impl, storage, [&](char *at, size_t n, bool exact) {
    if (exact)
      value_computed(at, n, data + (at - first), origin);
    all = all && exact;
  });
  return all;
}

inline bool deliver(const c10::IValue &computed, const c10::IValue &result, Origin origin, bool alias = false) {
  if (computed.isTensor() && result.isTensor())
    return deliver(computed.toTensor(), result.toTensor(), origin, alias);
  if (!computed.isTensorList() || !result.isTensorList())
    return true;
  const auto from = computed.toTensorVector(), to = result.toTensorVector();
  bool all = from.size() == to.size();
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i)
    all = deliver(from[i], to[i], origin, alias) && all;
  return all;
}

} // namespace detail

// Runs at the begin of an operator, before its writes are forgotten. Decides whether it will be computed, and keeps
// what that takes.
// `take` may state an unknown number that the operator reads (defaults.h), where nothing else that it reads is unknown.
inline std::optional<Pending> begin_compute(const Computable &how, const Operator &op, Inputs inputs,
                                            bool (*take)(const c10::TensorImpl *) = nullptr) {
  if (!how.possible || inputs.size() != op.arguments.size())
    return std::nullopt;
  const auto &arguments = how.handle->schema().arguments();
  bool on_device = false, device_argument = false;
  for (size_t i = 0; i < inputs.size(); ++i) { // what is quickly seen comes first
    const bool written = op.arguments[i].written;
    if (!detail::all_tensors(inputs[i], [&](const c10::TensorImpl *tensor) {
          const bool cuda = plain_cuda(tensor);
          on_device = on_device || cuda;
          return small(tensor) && (cuda || (detail::cpu_plain(tensor) && !written));
        }))
      return std::nullopt;
    device_argument = device_argument || (inputs[i].isDevice() && inputs[i].toDevice().is_cuda());
  }
  if (!on_device && !(how.from_sizes && device_argument))
    return std::nullopt;
  if (capturing())
    return std::nullopt;
  auto overwritten = [&](size_t i) { return op.arguments[i].written && (op.overwrites || arguments[i].is_out()); };
  auto knowledge_of_inputs = [&] {
    Knowledge all = Knowledge::kKnown;
    for (size_t i = 0; i < inputs.size() && all != Knowledge::kUnknown; ++i)
      if (!overwritten(i))
        all = std::min(all, detail::knowledge(inputs[i], /*wait=*/how.before));
    return all;
  };
  Knowledge of_inputs = knowledge_of_inputs();
  if (of_inputs == Knowledge::kUnknown && take != nullptr) {
    std::vector<const c10::TensorImpl *> unknown;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!overwritten(i))
        each_tensor(inputs[i], [&](const c10::TensorImpl *tensor) {
          if (detail::knowledge(tensor) == Knowledge::kUnknown)
            unknown.push_back(tensor);
        });
    const auto single = [](const c10::TensorImpl *tensor) { return tensor->numel() == 1; };
    if (std::all_of(unknown.begin(), unknown.end(), single) && std::all_of(unknown.begin(), unknown.end(), take))
      of_inputs = knowledge_of_inputs();
  }
  if (of_inputs == Knowledge::kUnknown || (of_inputs == Knowledge::kComing && how.before))
    return std::nullopt;
  const detail::BelowModes below;
  Pending pending{.how = &how, .coming = of_inputs == Knowledge::kComing};
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!overwritten(i) && !pending.coming)
      pending.origin = std::max(pending.origin, detail::origin_of(inputs[i]));
  pending.arguments.assign(inputs.begin(), inputs.end());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!op.arguments[i].written) {
      if (pending.coming) {
        pending.arguments[i] = detail::map_tensors(inputs[i], detail::copy_to_come);
        pending.copies.emplace_back(inputs[i], pending.arguments[i]);
      }
      continue;
    }
    pending.arguments[i] = detail::map_tensors(inputs[i], [&](const at::Tensor &tensor) {
      if (arguments[i].is_out()) // takes the size of the result
        return at::empty({0}, detail::options_of(tensor));
      return overwritten(i) || pending.coming ? at::empty(tensor.sizes(), detail::options_of(tensor))
                                              : detail::alias_on_cpu(tensor).clone();
    });
    pending.written.push_back({inputs[i], pending.arguments[i]});
    if (pending.coming && !overwritten(i))
      pending.copies.emplace_back(inputs[i], pending.arguments[i]);
  }
  if (how.before) {
    const auto answer = detail::answer_of(detail::run(how, detail::on_cpu(pending))[0]);
    if (!answer)
      return std::nullopt;
    value_expect(*answer);
  }
  return pending;
}

// Says whether the results are few enough numbers. A large result of small tensors (an outer product) is not computed.
inline bool small(Inputs results) {
  return std::all_of(results.begin(), results.end(), [](const c10::IValue &value) {
    return detail::all_tensors(value, [](const c10::TensorImpl *tensor) { return small(tensor); });
  });
}

// Runs at the end of such an operator. Computes and delivers the results. Returns false if some of what it wrote is not
// known now.
inline bool end_compute(const Pending &pending, Inputs results) {
  if (!pending.how->launches && std::all_of(results.begin(), results.end(), detail::all_known) &&
      std::all_of(pending.written.begin(), pending.written.end(),
                  [](const Mutated &m) { return detail::all_known(m.original); }))
    return true;
  const detail::BelowModes below;
  const std::vector<c10::IValue> computed = detail::run(*pending.how, detail::on_cpu(pending));
  bool all = computed.size() == results.size();
  for (size_t i = 0; i < std::min(computed.size(), results.size()); ++i)
    all = detail::deliver(computed[i], results[i], pending.origin) && all;
  for (const Mutated &mutated : pending.written)
    all = detail::deliver(mutated.copy, mutated.original, pending.origin) && all;
  return all;
}

} // namespace eidolon::torch_plugin
