// Shares of unknown booleans: how many of a tensor's elements are taken to be true.
//
// Programs count what comparisons of large tensors give: right answers, labels that are not padding. Nobody knows the
// comparison, but a count lies between none and all, and what is divided by it should stay sane. So a tensor of unknown
// booleans, and one of numbers that booleans were converted to, has a share of ones by the operator that made it:
//
//   eq                        one half; where k candidates are compared with one (accuracy over the top k, one-hot
//                             codes), 1/(2k), since at most one of them fits
//   isnan, isinf, ...         none
//   any other                 all, as for a mask of labels
//
// A table tells for a block of memory what its tensor's share is. It forgets by and by, as newer ones take the places
// of older ones, and when the allocator hands the block out again.
#pragma once
#include <array>
#include <atomic>
#include <optional>

#include "compute.h"

namespace eidolon::torch_plugin {

// What an operator does to shares.
enum class Booleans : uint8_t { kNone, kEqual, kNever, kNegated, kBoth, kCopied };

inline Booleans booleans_of(const Operator &op) {
  if (!op.has_schema || op.name.rfind("aten::", 0) != 0)
    return Booleans::kNone;
  const std::string name = op.name.substr(6);
  const auto is = [&](std::initializer_list<const char *> names) {
    return std::any_of(names.begin(), names.end(), [&](const char *n) { return name == n; });
  };
  if (is({"eq"}))
    return Booleans::kEqual;
  if (is({"isnan", "isinf", "isposinf", "isneginf"}))
    return Booleans::kNever;
  if (is({"logical_not", "bitwise_not"}))
    return Booleans::kNegated;
  if (is({"logical_and", "bitwise_and"}))
    return Booleans::kBoth;
  if (is({"copy_"}))
    return Booleans::kCopied;
  return Booleans::kNone;
}

namespace detail {

// By the address of a block. Threads may write one place at the same time; then one share is lost.
class Shares {
public:
  void put(const void *block, float share) {
    Place &place = place_of(block);
    place.block.store(nullptr, std::memory_order_relaxed);
    place.share.store(share, std::memory_order_relaxed);
    place.block.store(block, std::memory_order_release);
  }
  void forget(const void *block) {
    if (Place &place = place_of(block); place.block.load(std::memory_order_relaxed) == block)
      place.block.store(nullptr, std::memory_order_relaxed);
  }
  std::optional<float> of(const void *block) const {
    const Place &place = places_[index_of(block)];
    if (place.block.load(std::memory_order_acquire) != block)
      return std::nullopt;
    return place.share.load(std::memory_order_relaxed);
  }

private:
  struct Place {
    std::atomic<const void *> block;
    std::atomic<float> share;
  };
  static constexpr int kBits = 10;
  static size_t index_of(const void *block) {
    return reinterpret_cast<uintptr_t>(block) * 0x9E3779B97F4A7C15ULL >> (64 - kBits);
  }
  Place &place_of(const void *block) { return places_[index_of(block)]; }
  std::array<Place, 1 << kBits> places_{};
};
inline Shares shares;

// The share of an unknown tensor; none where it is one of other numbers.
inline std::optional<float> share_of(const c10::TensorImpl *tensor) {
  const char *storage = storage_of(tensor);
  const std::optional<float> kept = storage != nullptr ? shares.of(storage) : std::nullopt;
  const bool boolean = c10::typeMetaToScalarType(tensor->dtype()) == c10::ScalarType::Bool;
  return kept || !boolean ? kept : 1.0F;
}

inline int64_t distinct(const c10::TensorImpl *tensor) { // elements with an address of their own
  int64_t n = 1;
  for (size_t d = 0; d < tensor->sizes().size(); ++d)
    n *= tensor->strides()[d] == 0 ? 1 : tensor->sizes()[d];
  return n;
}

} // namespace detail

// Runs at the begin of an operator. Gives the share of its result; `compared` gets how many elements the smaller of two
// operands that are compared has, since only its end tells how many the result has.
struct Share {
  std::optional<float> share{};
  int64_t compared = 0;
};
inline Share begin_share(Booleans how, Inputs inputs) {
  const auto tensor = [&](size_t i) {
    const c10::TensorImpl *t = i < inputs.size() && inputs[i].isTensor() ? inputs[i].unsafeToTensorImpl() : nullptr;
    return t != nullptr && plain_cuda(t) ? t : nullptr;
  };
  const c10::TensorImpl *first = tensor(0), *second = tensor(1);
  switch (how) {
  case Booleans::kEqual:
    if (first != nullptr && second != nullptr && second->sizes().size() != 0)
      return {0.5F, std::max<int64_t>(1, std::min(detail::distinct(first), detail::distinct(second)))};
    return {0.5F};
  case Booleans::kNever:
    return {0.0F};
  case Booleans::kNegated:
    if (first != nullptr)
      if (const auto share = detail::share_of(first))
        return {1 - *share};
    return {};
  case Booleans::kBoth:
    if (first != nullptr && second != nullptr)
      if (const auto a = detail::share_of(first), b = detail::share_of(second); a && b)
        return {std::min(*a, *b)};
    return {};
  case Booleans::kCopied:
    return second != nullptr ? Share{detail::share_of(second)} : Share{};
  default:
    return {};
  }
}

// Runs at its end: keeps the share with the result.
inline void end_share(const Share &share, const c10::IValue &result) {
  if (!share.share || !result.isTensor() || !plain_cuda(result.unsafeToTensorImpl()))
    return;
  const c10::TensorImpl *tensor = result.unsafeToTensorImpl();
  const int64_t candidates = share.compared == 0 ? 1 : std::max<int64_t>(1, tensor->numel() / share.compared);
  if (const char *storage = detail::storage_of(tensor))
    detail::shares.put(storage, *share.share / static_cast<float>(candidates));
}

} // namespace eidolon::torch_plugin
