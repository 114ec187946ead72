// Operators that read what NCCL still has to bring: computed when it has come.
//
// Such an operator leaves work with the shim (value_work), which does it in stream order, on the thread that takes the
// payload from the inbox. Nobody waits but a host that reads a result. Until then the work must not depend on anything
// that goes on. It holds the addresses of device memory, but no tensor on the device, whose block would not be free
// otherwise. So it comes in two pieces. The first is left at the operator's begin and copies what the operator reads
// (Copying), since an operator in place forgets that next. The second is left at its end, and computes from the copies
// and delivers (Computation). What was read may turn out to be unknown, because NCCL brings what the other ranks know.
// Then the results are what an operator that is not computed leaves.
#pragma once
#include <memory>
#include <vector>

#include "compute.h"
#include "defaults.h"

namespace eidolon::torch_plugin {

// A thread runs an operator on the CPU just now, which is not to be observed.
inline thread_local bool computing = false;

struct Computing {
  bool before = computing;
  Computing() { computing = true; }
  ~Computing() { computing = before; }
};

namespace detail {

// The bytes from the first element of a tensor to its last.
inline ByteRange extent_of(const c10::TensorImpl *tensor) {
  int64_t elements = tensor->numel() == 0 ? 0 : 1;
  for (size_t d = 0; d < tensor->sizes().size() && elements != 0; ++d)
    elements += (tensor->sizes()[d] - 1) * tensor->strides()[d];
  const char *storage = storage_of(tensor);
  const auto item = static_cast<int64_t>(tensor->itemsize());
  if (storage == nullptr || elements == 0)
    return {nullptr, 0};
  return {storage + tensor->storage_offset() * item, static_cast<size_t>(elements * item)};
}

// Tensors on the CPU that alias those on the device; in place of others, none.
inline at::Tensor alias_or_none(const at::Tensor &tensor) {
  return tensor.defined() && plain_cuda(tensor.unsafeGetTensorImpl()) ? alias_on_cpu(tensor) : at::Tensor();
}

using Ranges = std::vector<ByteRange>;
inline void add_extents(Ranges &ranges, const c10::IValue &value) {
  all_tensors(value, [&](const c10::TensorImpl *tensor) {
    ranges.push_back(extent_of(tensor));
    return true;
  });
}

// Copies what an operator reads, as it is at its begin.
class Copying final : public ValueWork {
public:
  struct Pair {
    at::Tensor alias, copy; // of the tensor on the device
  };
  Copying(std::vector<Pair> pairs, std::shared_ptr<Copied> copied)
      : pairs_(std::move(pairs)), copied_(std::move(copied)) {}

  void run() override {
    const Computing computing;
    const BelowModes below;
    for (const Pair &pair : pairs_) {
      const c10::TensorImpl *from = pair.alias.unsafeGetTensorImpl();
      copied_->knowledge = std::min(copied_->knowledge, knowledge(from));
      copied_->origin = std::max(copied_->origin, origin_of(from));
    }
    try {
      for (size_t i = 0; i < pairs_.size() && copied_->knowledge == Knowledge::kKnown; ++i)
        pairs_[i].copy.copy_(pairs_[i].alias);
    } catch (...) {
      copied_->knowledge = Knowledge::kUnknown;
    }
  }

private:
  std::vector<Pair> pairs_;
  std::shared_ptr<Copied> copied_;
};

// What is left to do at the end of an operator.
struct Remainder {
  const Computable *how;
  torch::jit::Stack arguments; // the copies
  std::shared_ptr<Copied> copied;
  std::vector<c10::IValue> results; // aliases
  std::vector<Mutated> written;     // with aliases as originals
  std::vector<Stated> stated;       // of its results, if it cannot be computed
  bool forget;                      // its results, if it cannot be computed
};

class Computation final : public ValueWork {
public:
  explicit Computation(Remainder remainder) : left_(std::move(remainder)) {}

  void run() override {
    const Computing computing;
    if (computed())
      return;
    if (left_.forget)
      for (const c10::IValue &result : left_.results)
        all_tensors(result, [](const c10::TensorImpl *tensor) {
          detail::forget(tensor);
          return true;
        });
    for (const Stated &one : left_.stated)
      one.put();
  }

private:
  static bool known(const c10::IValue &aliases) {
    return all_tensors(aliases, [](const c10::TensorImpl *tensor) { return detail::known(tensor); });
  }

  bool computed() {
    const Origin origin = left_.copied->origin;
    if (left_.copied->knowledge != Knowledge::kKnown)
      return false;
    if (!left_.how->launches && std::all_of(left_.results.begin(), left_.results.end(), known) &&
        std::all_of(left_.written.begin(), left_.written.end(), [](const Mutated &m) { return known(m.original); }))
      return true;
    try {
      const BelowModes below;
      const std::vector<c10::IValue> out = detail::run(*left_.how, std::move(left_.arguments));
      bool all = out.size() == left_.results.size();
      for (size_t i = 0; i < std::min(out.size(), left_.results.size()); ++i)
        all = deliver(out[i], left_.results[i], origin, /*alias=*/true) && all;
      for (const Mutated &mutated : left_.written)
        all = deliver(mutated.copy, mutated.original, origin, /*alias=*/true) && all;
      return all;
    } catch (...) { // what the CPU cannot do stays unknown
      return false;
    }
  }

  Remainder left_;
};

} // namespace detail

// Runs at the begin of an operator that reads what is still coming.
inline void begin_deferred(Pending &pending) {
  pending.copied = std::make_shared<Copied>();
  const detail::BelowModes below;
  std::vector<detail::Copying::Pair> pairs;
  detail::Ranges reads, writes;
  for (const auto &[original, copy] : pending.copies) {
    const auto originals = detail::tensors_of(original), copies = detail::tensors_of(copy);
    for (size_t i = 0; i < originals.size(); ++i)
      if (plain_cuda(originals[i].unsafeGetTensorImpl())) {
        pairs.push_back({detail::alias_on_cpu(originals[i]), copies[i]});
        detail::add_extents(reads, pairs.back().alias);
        detail::add_extents(writes, pairs.back().copy);
      }
  }
  value_work(new detail::Copying(std::move(pairs), pending.copied), reads, writes);
}

// Runs at its end. Leaves what is to be computed, and what holds if that cannot be (`stated`, `forget`).
inline void end_deferred(const Pending &pending, Inputs results, std::vector<detail::Stated> stated, bool forget) {
  const detail::BelowModes below;
  detail::Remainder left{.how = pending.how,
                         .arguments = detail::on_cpu(pending),
                         .copied = pending.copied,
                         .results = {},
                         .written = {},
                         .stated = std::move(stated),
                         .forget = forget};
  detail::Ranges reads, writes;
  for (const auto &[original, copy] : pending.copies)
    detail::add_extents(reads, copy);
  for (const c10::IValue &result : results) {
    left.results.push_back(detail::map_tensors(result, detail::alias_or_none));
    detail::add_extents(writes, left.results.back());
  }
  for (const Mutated &mutated : pending.written) {
    left.written.push_back({detail::map_tensors(mutated.original, detail::alias_or_none), mutated.copy});
    detail::add_extents(writes, left.written.back().original);
  }
  value_work(new detail::Computation(std::move(left)), reads, writes);
}

} // namespace eidolon::torch_plugin
