// Levels: the mean that the elements of an unknown tensor are taken to have.
//
// Programs sum and count what comes of large tensors: right answers, labels that are not padding, losses of tokens.
// None of it is known, but what is printed in the end should be sane: a count lies between none and all, a loss is that
// of one token, however many there are and whichever of them count. So a tensor that nobody computed has a level. Its
// mean is the level, and its sum is the level for each element (defaults.h). A tensor of booleans has level 1 (all are
// true), any other has none, and its mean is the loss. Some operators leave another level:
//
//   eq, ne                    one half; where k candidates are compared with one (accuracy over the top k, one-hot
//                             codes), 1/(2k) of eq, since at most one of them fits. No number equals a single one (the
//                             label of padding) under ne
//   isnan, isinf, ...         0
//   not, and                  what is left of 1; the product
//   what zeros where a mask   the level of the tensor, times the mean of the mask, which may be known: a sum over it,
//   says (masked_fill, where, divided by a count of the mask, is the level again
//   masked_scatter, mul)
//   softmax, its logarithm    1 / the elements of a row; minus the loss. So a sum of p * log p is minus the loss
//   log_softmax * weights     the loss / the elements of a row, where nothing is known of the weights: those of one row
//                             sum to one, and whoever multiplies like this has negated them (soft targets)
//   neg, abs                  its magnitude, because what programs negate is to become a positive number
//   copies, conversions,      that of what they take from
//   chosen elements
//
// A table tells for a block of memory what its tensor's level is. It forgets by and by, as newer ones take the places
// of older ones, and when the allocator hands the block out again.
#pragma once
#include <ATen/ops/mean.h>

#include <array>
#include <atomic>
#include <cmath>
#include <optional>

#include "compute.h"

namespace eidolon::torch_plugin {

// What an operator does to levels.
enum class Leveling : uint8_t {
  kNone,
  kEqual,
  kUnequal,
  kNever,
  kNot,
  kAnd,
  kMaskedFill,
  kMaskedScatter,
  kWhere,
  kProduct,
  kSoftmax,
  kLogSoftmax,
  kExp,
  kLog,
  kMagnitude,
  kCopy,
  kSame,
  kSum
};

inline Leveling leveling_of(const Operator &op) {
  if (!op.has_schema || op.name.rfind("aten::", 0) != 0)
    return Leveling::kNone;
  static const auto &all = *new std::map<std::string_view, Leveling>{
      {"eq", Leveling::kEqual},
      {"ne", Leveling::kUnequal},
      {"isnan", Leveling::kNever},
      {"isinf", Leveling::kNever},
      {"isposinf", Leveling::kNever},
      {"isneginf", Leveling::kNever},
      {"logical_not", Leveling::kNot},
      {"bitwise_not", Leveling::kNot},
      {"logical_and", Leveling::kAnd},
      {"bitwise_and", Leveling::kAnd},
      {"masked_fill", Leveling::kMaskedFill},
      {"masked_fill_", Leveling::kMaskedFill},
      {"masked_scatter", Leveling::kMaskedScatter},
      {"masked_scatter_", Leveling::kMaskedScatter},
      {"where", Leveling::kWhere},
      {"mul", Leveling::kProduct},
      {"mul_", Leveling::kProduct},
      {"_softmax", Leveling::kSoftmax},
      {"_log_softmax", Leveling::kLogSoftmax},
      {"exp", Leveling::kExp},
      {"log", Leveling::kLog},
      {"neg", Leveling::kMagnitude},
      {"abs", Leveling::kMagnitude},
      {"copy_", Leveling::kCopy},
      {"clone", Leveling::kSame},
      {"index", Leveling::kSame},
      {"index_select", Leveling::kSame},
      {"masked_select", Leveling::kSame},
      {"gather", Leveling::kSame},
      {"sum", Leveling::kSum},
      {"mean", Leveling::kSame},
  };
  const auto found = all.find(std::string_view(op.name).substr(6));
  return found != all.end() ? found->second : Leveling::kNone;
}

struct Level {
  float mean;
  bool counts; // booleans, or numbers that they were converted to: a sum of them is a whole number
};

namespace detail {

// By the address of a block. Threads may write one place at the same time; then one level is lost.
class Levels {
public:
  void put(const void *block, Level level) {
    Place &place = place_of(block);
    place.block.store(nullptr, std::memory_order_relaxed);
    place.level.store(level, std::memory_order_relaxed);
    place.block.store(block, std::memory_order_release);
  }
  void forget(const void *block) {
    if (Place &place = place_of(block); place.block.load(std::memory_order_relaxed) == block)
      place.block.store(nullptr, std::memory_order_relaxed);
  }
  std::optional<Level> of(const void *block) const {
    const Place &place = places_[index_of(block)];
    if (place.block.load(std::memory_order_acquire) != block)
      return std::nullopt;
    return place.level.load(std::memory_order_relaxed);
  }

private:
  struct Place {
    std::atomic<const void *> block;
    std::atomic<Level> level;
  };
  static_assert(std::atomic<Level>::is_always_lock_free);
  static constexpr int kBits = 10;
  static size_t index_of(const void *block) {
    return reinterpret_cast<uintptr_t>(block) * 0x9E3779B97F4A7C15ULL >> (64 - kBits);
  }
  Place &place_of(const void *block) { return places_[index_of(block)]; }
  std::array<Place, 1 << kBits> places_{};
};
inline Levels levels;

inline bool boolean(const c10::TensorImpl *tensor) {
  return c10::typeMetaToScalarType(tensor->dtype()) == c10::ScalarType::Bool;
}

// The level of an unknown tensor; none where it is one of other numbers.
inline std::optional<Level> level_of(const c10::TensorImpl *tensor) {
  const char *storage = storage_of(tensor);
  const std::optional<Level> kept = storage != nullptr ? levels.of(storage) : std::nullopt;
  return kept || !boolean(tensor) ? kept : Level{1.0F, true};
}

// The level of a mask: booleans or integers, whose mean is a true one where they are known, and what was made of such.
// None for other numbers.
inline std::optional<Level> mask_level(const c10::IValue &value) {
  const c10::TensorImpl *impl = value.unsafeToTensorImpl();
  const bool integral = c10::isIntegralType(c10::typeMetaToScalarType(impl->dtype()), /*includeBool=*/true);
  if (integral && small(impl) && impl->numel() != 0 && known(impl)) {
    const BelowModes below;
    return Level{at::mean(alias_on_cpu(value.toTensor()), c10::ScalarType::Float).item<float>(), true};
  }
  const std::optional<Level> level = level_of(impl);
  return level && level->counts ? level : std::nullopt;
}

inline int64_t distinct(const c10::TensorImpl *tensor) { // elements with an address of their own
  int64_t n = 1;
  for (size_t d = 0; d < tensor->sizes().size(); ++d)
    n *= tensor->strides()[d] == 0 ? 1 : tensor->sizes()[d];
  return n;
}

inline int64_t row_of(const c10::TensorImpl *tensor, const c10::IValue &dimension) {
  const auto dims = static_cast<int64_t>(tensor->sizes().size());
  if (dims == 0 || !dimension.isInt())
    return 1;
  return std::max<int64_t>(1, tensor->sizes()[static_cast<size_t>((dimension.toInt() + dims) % dims)]);
}

inline bool zero(const c10::IValue &value) {
  const std::optional<Number> number = number_in(value);
  return number && (number->integral ? number->integer == 0 : number->real == 0);
}

// The level of `what` where a mask keeps a share of it and the rest is zero.
inline std::optional<Level> kept_by(const std::optional<Level> &mask, const std::optional<Level> &what,
                                    double (*loss)()) {
  if (!mask)
    return std::nullopt;
  const Level of = what ? *what : Level{static_cast<float>(loss()), false};
  return Level{of.mean * mask->mean, of.counts && mask->counts};
}

// Of two tensors of numbers.
inline std::optional<Level> product_of(const c10::TensorImpl *first, const c10::TensorImpl *second, double (*loss)()) {
  const auto a = level_of(first), b = level_of(second);
  if (a && b)
    return Level{a->mean * b->mean, false};
  const auto one = a ? a : b;
  if (one && one->mean < 0) // logarithms of a softmax
    return Level{-one->mean / static_cast<float>(row_of(a ? first : second, -1)), false};
  return one ? std::optional(Level{one->mean * static_cast<float>(loss()), false}) : std::nullopt;
}

} // namespace detail

// The level that an operator gives its result. Only its end tells how many elements that has, so a mean that depends on
// them is for `elements` of it, and is spread over as many as there are.
struct Leveled {
  std::optional<Level> level{};
  int64_t elements = 0;     // 0: the level does not depend on them
  bool at_most_one = false; // of the candidates that are compared with one; `elements` are the ones
  bool complement = false;
};

namespace detail {

inline Leveled compared(const c10::TensorImpl *first, const c10::TensorImpl *second, bool equal) {
  if (first != nullptr && first == second) // a number is itself
    return {Level{equal ? 1.0F : 0.0F, true}};
  const bool many = first != nullptr && second != nullptr && second->sizes().size() != 0;
  if (!many) // with a single number
    return equal ? Leveled{Level{0.5F, true}} : Leveled{};
  const int64_t ones = std::max<int64_t>(1, std::min(distinct(first), distinct(second)));
  return {Level{0.5F, true}, ones, /*at_most_one=*/true, /*complement=*/!equal};
}

} // namespace detail

// Runs at the begin of an operator. `loss` gives what stands for a number of which nothing is known.
inline Leveled begin_level(Leveling how, Inputs inputs, double (*loss)()) {
  const auto tensor = [&](size_t i) {
    const c10::TensorImpl *t = i < inputs.size() && inputs[i].isTensor() ? inputs[i].unsafeToTensorImpl() : nullptr;
    return t != nullptr && plain_cuda(t) ? t : nullptr;
  };
  const c10::TensorImpl *first = tensor(0), *second = tensor(1), *third = tensor(2);
  const auto level = [](const c10::TensorImpl *t) { return t != nullptr ? detail::level_of(t) : std::nullopt; };
  const auto mask = [&](size_t i) { return tensor(i) != nullptr ? detail::mask_level(inputs[i]) : std::nullopt; };
  const auto inverse = [](std::optional<Level> of) {
    if (of)
      of->mean = 1 - of->mean;
    return of;
  };
  switch (how) {
  case Leveling::kEqual:
  case Leveling::kUnequal:
    return detail::compared(first, second, how == Leveling::kEqual);
  case Leveling::kNever:
    return {Level{0.0F, true}};
  case Leveling::kNot:
    return {inverse(level(first))};
  case Leveling::kAnd:
    if (const auto a = mask(0), b = mask(1); a && b)
      return {Level{a->mean * b->mean, true}};
    return {};
  case Leveling::kMaskedFill:
    if (first == nullptr || second == nullptr || inputs.size() < 3)
      return {};
    return detail::zero(inputs[2]) ? Leveled{detail::kept_by(inverse(mask(1)), level(first), loss)}
                                   : Leveled{level(first)};
  case Leveling::kMaskedScatter:
    return third != nullptr ? Leveled{detail::kept_by(mask(1), level(third), loss)} : Leveled{};
  case Leveling::kWhere:
    if (second != nullptr && inputs.size() > 2 && detail::zero(inputs[2]))
      return {detail::kept_by(mask(0), level(second), loss)};
    if (third != nullptr && detail::zero(inputs[1]))
      return {detail::kept_by(inverse(mask(0)), level(third), loss)};
    return {};
  case Leveling::kProduct: {
    if (first == nullptr || second == nullptr)
      return {level(first)};
    if (const auto b = mask(1))
      return {detail::kept_by(b, level(first), loss)};
    if (const auto a = mask(0))
      return {detail::kept_by(a, level(second), loss)};
    return {detail::product_of(first, second, loss)};
  }
  case Leveling::kSoftmax:
    return first != nullptr && inputs.size() > 1
               ? Leveled{Level{1.0F / static_cast<float>(detail::row_of(first, inputs[1])), false}}
               : Leveled{};
  case Leveling::kLogSoftmax:
    return {Level{static_cast<float>(-loss()), false}};
  case Leveling::kExp: // of the logarithms of a softmax over the last dimension
    if (const auto of = level(first); of && of->mean < 0)
      return {Level{1.0F / static_cast<float>(detail::row_of(first, -1)), false}};
    return {};
  case Leveling::kLog: // of a softmax
    if (const auto of = level(first); of && !of->counts)
      return {Level{static_cast<float>(-loss()), false}};
    return {};
  case Leveling::kMagnitude:
    if (auto of = level(first)) {
      of->mean = std::abs(of->mean);
      return {of};
    }
    return {};
  case Leveling::kCopy:
    return {level(second)};
  case Leveling::kSame:
    return {level(first)};
  case Leveling::kSum:
    return first != nullptr ? Leveled{level(first), first->numel()} : Leveled{};
  default:
    return {};
  }
}

// Runs at its end: keeps the level with the result.
inline void end_level(const Leveled &leveled, const c10::IValue &result) {
  if (!leveled.level || !result.isTensor() || !plain_cuda(result.unsafeToTensorImpl()))
    return;
  const c10::TensorImpl *tensor = result.unsafeToTensorImpl();
  const int64_t n = std::max<int64_t>(1, tensor->numel());
  Level level = *leveled.level;
  if (leveled.at_most_one)
    level.mean /= static_cast<float>(std::max<int64_t>(1, n / leveled.elements));
  else if (leveled.elements != 0)
    level.mean *= static_cast<float>(leveled.elements) / static_cast<float>(n);
  if (leveled.complement)
    level.mean = 1 - level.mean;
  if (const char *storage = detail::storage_of(tensor))
    detail::levels.put(storage, level);
}

} // namespace eidolon::torch_plugin
