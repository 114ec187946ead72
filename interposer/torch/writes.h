// Decides which device bytes an operator makes unknown.
//
// The schema says which arguments an operator mutates. Their bytes become unknown before it runs. What it then copies
// there (H2D, D2D) is known again, and what its kernels compute is not. Results in fresh tensors are unknown already,
// because the allocator's tracker forgot their blocks. If an operator filled such results first, so that its kernels
// can add to them, they are forgotten at its end (forget_results). Bytes that are filled with one host value are known,
// if they are few.
//
// One flag has a default. It is the flag of a loss scaler's check for infinite gradients, which keeps the "none" that
// it was made with unless the gradients are known.
#pragma once
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core.h"
#include "operators.h"

namespace eidolon::torch_plugin {
namespace detail {

inline char *storage_of(const c10::TensorImpl *tensor, size_t *bytes = nullptr) {
  c10::StorageImpl *storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr)
    return nullptr;
  if (bytes != nullptr)
    *bytes = storage->nbytes();
  return static_cast<char *>(storage->_mutable_data_ptr_no_checks().get());
}

// Calls f(pointer, bytes, true) for each contiguous run of a tensor's elements. If there are very many runs, calls it
// once with false, for the extent in which they lie among other bytes.
template <class F> void each_run(const c10::TensorImpl *tensor, char *storage, F f) {
  constexpr int64_t kRuns = 1024;
  constexpr size_t kMostDims = 16;
  const auto item = static_cast<int64_t>(tensor->itemsize());
  char *first = storage + tensor->storage_offset() * item;
  if (tensor->is_non_overlapping_and_dense()) {
    f(first, static_cast<size_t>(tensor->numel() * item), true);
    return;
  }
  struct Dim {
    int64_t size, stride;
  } dims[kMostDims];
  size_t n = 0;
  int64_t extent = 1;
  for (size_t d = 0; d < tensor->sizes().size(); ++d) {
    const Dim dim{tensor->sizes()[d], tensor->strides()[d]};
    extent += (dim.size - 1) * dim.stride;
    if (dim.size > 1 && dim.stride != 0 && n < kMostDims)
      dims[n++] = dim;
  }
  std::sort(dims, dims + n, [](const Dim &a, const Dim &b) { return a.stride < b.stride; });
  int64_t run = 1, count = 1;
  size_t inner = 0;
  while (inner < n && dims[inner].stride == run)
    run *= dims[inner++].size;
  for (size_t d = inner; d < n; ++d)
    count = count > kRuns ? count : count * dims[d].size;
  if (count > kRuns || n == kMostDims) {
    f(first, static_cast<size_t>(extent * item), false);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = inner; d < n; ++d) {
      at += rest % dims[d].size * dims[d].stride;
      rest /= dims[d].size;
    }
    f(first + at * item, static_cast<size_t>(run * item), true);
  }
}

// One number from the host, and its bytes as an element of a tensor's type.
struct Number {
  bool integral;
  int64_t integer;
  double real;
};

inline std::optional<Number> number_in(const c10::IValue &value) {
  if (value.isInt())
    return Number{true, value.toInt(), 0};
  if (value.isBool())
    return Number{true, value.toBool(), 0};
  if (value.isDouble())
    return Number{false, 0, value.toDouble()};
  if (!value.isTensor())
    return std::nullopt;
  const c10::TensorImpl *tensor = value.unsafeToTensorImpl(); // fill_ with a tensor of no dimensions
  if (!tensor->key_set().has(c10::DispatchKey::CPU) || tensor->key_set().has(c10::DispatchKey::Python) ||
      tensor->has_symbolic_sizes_strides() || tensor->numel() != 1 || !tensor->has_storage())
    return std::nullopt;
  const char *at = storage_of(tensor);
  if (at == nullptr)
    return std::nullopt;
  at += tensor->storage_offset() * static_cast<int64_t>(tensor->itemsize());
  auto load = [&]<class T>(T *) {
    T element;
    memcpy(&element, at, sizeof element);
    return element;
  };
  switch (c10::typeMetaToScalarType(tensor->dtype())) {
  case c10::ScalarType::Long:
    return Number{true, load(static_cast<int64_t *>(nullptr)), 0};
  case c10::ScalarType::Int:
    return Number{true, load(static_cast<int32_t *>(nullptr)), 0};
  case c10::ScalarType::Bool:
    return Number{true, load(static_cast<uint8_t *>(nullptr)) != 0, 0};
  case c10::ScalarType::Double:
    return Number{false, 0, load(static_cast<double *>(nullptr))};
  case c10::ScalarType::Float:
    return Number{false, 0, load(static_cast<float *>(nullptr))};
  default:
    return std::nullopt;
  }
}

// Writes the number as an element of `type` and returns its size, or 0 if the type is not one of these.
inline size_t encode(const Number &number, c10::ScalarType type, char *out) {
  auto store = [&](auto element) {
    memcpy(out, &element, sizeof element);
    return sizeof element;
  };
  const double real = number.integral ? static_cast<double>(number.integer) : number.real;
  const int64_t integer = number.integral                   ? number.integer
                          : real > -0x1p63 && real < 0x1p63 ? static_cast<int64_t>(real)
                                                            : 0;
  switch (type) {
  case c10::ScalarType::Byte:
  case c10::ScalarType::Char:
    return store(static_cast<int8_t>(integer));
  case c10::ScalarType::Bool:
    return store(static_cast<int8_t>(number.integral ? number.integer != 0 : real != 0));
  case c10::ScalarType::Short:
    return store(static_cast<int16_t>(integer));
  case c10::ScalarType::Int:
    return store(static_cast<int32_t>(integer));
  case c10::ScalarType::Long:
    return store(integer);
  case c10::ScalarType::Float:
    return store(static_cast<float>(real));
  case c10::ScalarType::Double:
    return store(real);
  case c10::ScalarType::Half:
    return store(c10::Half(static_cast<float>(real)));
  case c10::ScalarType::BFloat16:
    return store(c10::BFloat16(static_cast<float>(real)));
  default:
    return 0;
  }
}

inline void forget(const c10::TensorImpl *tensor) {
  size_t bytes = 0;
  char *storage = storage_of(tensor, &bytes);
  if (storage == nullptr)
    return;
  if (tensor->numel() == 0) // an out= argument, which will be resized, maybe within its storage
    value_unknown(storage, bytes);
  else
    each_run(tensor, storage, [](char *at, size_t n, bool) { value_unknown(at, n); });
}

inline void fill(const c10::TensorImpl *tensor, const Number &number) {
  forget(tensor);
  char element[8], block[1 << 12];
  const auto bytes = static_cast<size_t>(tensor->numel()) * tensor->itemsize();
  const size_t item = encode(number, c10::typeMetaToScalarType(tensor->dtype()), element);
  char *storage = storage_of(tensor);
  if (item == 0 || bytes == 0 || bytes > std::min(config().known_limit, config().payload_limit) || storage == nullptr)
    return;
  for (size_t i = 0; i < std::min(bytes, sizeof block); i += item)
    memcpy(block + i, element, item);
  each_run(tensor, storage, [&](char *at, size_t n, bool exact) {
    for (size_t done = 0; exact && done < n; done += sizeof block)
      value_computed(at + done, std::min(sizeof block, n - done), block);
  });
}

// A tensor copied to itself stays as it is.
inline bool same_elements(const c10::IValue &a, const c10::IValue &b) {
  if (!a.isTensor() || !b.isTensor())
    return false;
  const c10::TensorImpl *x = a.unsafeToTensorImpl(), *y = b.unsafeToTensorImpl();
  return x == y ||
         (plain_cuda(x) && plain_cuda(y) && storage_of(x) == storage_of(y) && x->dtype() == y->dtype() &&
          x->storage_offset() == y->storage_offset() && x->sizes() == y->sizes() && x->strides() == y->strides());
}

} // namespace detail

inline void apply_writes(const Operator &op, Inputs inputs) {
  if (op.writes && !(op.copies && inputs.size() > 1 && detail::same_elements(inputs[0], inputs[1]))) {
    std::optional<detail::Number> number;
    if (op.fill == Operator::Fill::kZeros)
      number = detail::Number{true, 0, 0};
    else if (op.fill == Operator::Fill::kScalar && inputs.size() > 1)
      number = detail::number_in(inputs[1]);
    for (size_t i = 0; i < inputs.size(); ++i)
      if (op.arguments[i].written && !(op.finite_default && op.arguments[i].kind == Argument::kTensor))
        each_tensor(inputs[i], [&](const c10::TensorImpl *tensor) {
          number ? detail::fill(tensor, *number) : detail::forget(tensor);
        });
  }
  constexpr size_t kMean = 3, kVariance = 4, kTraining = 5;
  if (op.updates_statistics && inputs.size() > kTraining && inputs[kTraining].isBool() && inputs[kTraining].toBool())
    for (size_t i : {kMean, kVariance})
      each_tensor(inputs[i], [](const c10::TensorImpl *tensor) { detail::forget(tensor); });
}

inline void forget_results(Inputs results) {
  for (const c10::IValue &result : results)
    each_tensor(result, [](const c10::TensorImpl *tensor) { detail::forget(tensor); });
}

} // namespace eidolon::torch_plugin
