// Stated defaults are put where a program steers by a number that nobody computed.
//
// Losses, norms and checks depend on large tensors, whose elements are unknown. Where an operator leaves one such
// number, or a few, they get a default that lets training go on as it would: a positive finite loss and norm, "all are
// finite", "none is infinite". From there on small operators compute with it for real (compute.h): a clipping factor
// follows from the norm, and an average from the loss. Each read of such a number is counted with its origin.
//
//   loss       loss functions                        the configured loss; times the elements for reduction="sum"
//   reduction  mean, sum of floating-point numbers   the mean is the configured loss, a sum has it for each element
//              sum, mean, count_nonzero of booleans, by their level (levels.h)
//              and of other tensors that have one
//   norm       norms, maxima, minima, deviations     1
//   finite     all, isfinite; any, isnan, isinf      yes; no
//   routing    histc and bincount, sums of a         the tokens, spread over the experts as configured
//              routing map: tokens of each expert
//   number     one floating-point number that no     the configured loss
//              operator above left, read by the host
//              or by an operator on known numbers
//
// In a backward pass means and sums of more than one number are gradients, by which nobody steers: nothing is stated.
//
// Settings of server.conf: values.loss=START or START:END:STEPS (geometric over the optimizer steps);
// values.routing=balanced or zipf:EXPONENT:SEED (the same experts are in demand on every rank and layer).
#pragma once
#include <torch/csrc/autograd/graph_task.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "compute.h"
#include "levels.h"

namespace eidolon::torch_plugin {

// What stands for an operator's results. This is decided once per operator.
enum class Default : uint8_t { kNone, kLoss, kMean, kSum, kNorm, kYes, kNo, kCounts, kRead, kChoice };

// What the default of one call depends on. It is kept because the arguments are gone when the call ends.
struct Statement {
  Default how = Default::kNone;
  bool floating = false;             // argument 0
  bool sum = false;                  // reduction="sum"
  int64_t elements = 0, targets = 0; // of arguments 0 and 1
  std::optional<Level> level{};      // of argument 0
  int64_t choices = 0;               // argument 0 is a routing map: experts chosen for each token
};

namespace detail {

struct Settings {
  double loss = 2.0, last_loss = 2.0;
  int64_t loss_steps = 0;
  double exponent = 0; // of the Zipf distribution; 0: balanced
  uint64_t seed = 0;
};

inline const Settings &settings() {
  static const Settings all = [] {
    Settings s;
    if (const char *text = setting("values.loss")) {
      const int n = sscanf(text, "%lf:%lf:%" SCNd64, &s.loss, &s.last_loss, &s.loss_steps);
      if (n != 1 && n != 3)
        fatal("server.conf: values.loss=%s: START or START:END:STEPS is allowed", text);
      if (n == 1)
        s.last_loss = s.loss;
    }
    if (const char *text = setting("values.routing"); text != nullptr && strcmp(text, "balanced") != 0 &&
                                                      sscanf(text, "zipf:%lf:%" SCNu64, &s.exponent, &s.seed) != 2)
      fatal("server.conf: values.routing=%s: balanced or zipf:EXPONENT:SEED is allowed", text);
    return s;
  }();
  return all;
}

inline double loss_now() {
  const Settings &s = settings();
  if (s.loss_steps <= 0)
    return s.loss;
  const double share = std::min(1.0, static_cast<double>(eidolon_steps()) / static_cast<double>(s.loss_steps));
  return s.loss * std::pow(s.last_loss / s.loss, share);
}

// Spreads `total` tokens over experts, by largest remainders, so that they add up exactly.
inline std::vector<int64_t> routed(int64_t total, size_t experts) {
  std::vector<double> weights(experts, 1.0);
  const Settings &s = settings();
  if (s.exponent > 0) {
    std::vector<size_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(s.seed);
    for (size_t i = experts; i > 1; --i) // unlike std::shuffle this gives the same order with every standard library
      std::swap(order[i - 1], order[random() % i]);
    for (size_t i = 0; i < experts; ++i)
      weights[order[i]] = std::pow(static_cast<double>(i + 1), -s.exponent);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts(experts);
  std::vector<std::pair<double, size_t>> remainders(experts);
  int64_t left = total;
  for (size_t i = 0; i < experts; ++i) {
    const double share = static_cast<double>(total) * weights[i] / sum;
    counts[i] = static_cast<int64_t>(share);
    remainders[i] = {counts[i] - share, i}; // ascending: the largest remainder first, then the first expert
    left -= counts[i];
  }
  std::sort(remainders.begin(), remainders.end());
  for (int64_t i = 0; i < left; ++i)
    ++counts[remainders[static_cast<size_t>(i)].second];
  return counts;
}

// The routing decision that a thread has seen last. Its sum over the tokens is the number of tokens of each expert.
struct Routing {
  int64_t tokens, experts, choices;
};
inline thread_local Routing last_routing{};

inline const c10::TensorImpl *tensor_in(Inputs inputs, size_t i) {
  return i < inputs.size() && inputs[i].isTensor() ? inputs[i].unsafeToTensorImpl() : nullptr;
}

inline bool floating(const c10::TensorImpl *tensor) {
  return c10::isFloatingType(c10::typeMetaToScalarType(tensor->dtype()));
}

// Numbers for a tensor, as bytes in its type, and where they go.
class Stated final : public ValueWork {
public:
  // A single number stands for all elements. Gives nothing where the type or the layout takes no numbers.
  static std::optional<Stated> of(const c10::TensorImpl *tensor, const std::vector<Number> &numbers, Origin origin) {
    char *storage = storage_of(tensor);
    const auto n = static_cast<size_t>(tensor->numel());
    if (storage == nullptr || n == 0 || numbers.empty() || !tensor->is_non_overlapping_and_dense())
      return std::nullopt;
    Stated stated;
    char element[8];
    for (size_t i = 0; i < n; ++i) {
      const Number &number = numbers[numbers.size() == 1 ? 0 : i];
      const size_t item = encode(number, c10::typeMetaToScalarType(tensor->dtype()), element);
      if (item == 0)
        return std::nullopt;
      stated.bytes_.insert(stated.bytes_.end(), element, element + item);
    }
    stated.at_ = storage + tensor->storage_offset() * static_cast<int64_t>(tensor->itemsize());
    stated.origin_ = origin;
    return stated;
  }

  // Puts them there unless what lies there is known. Where it is still coming, that is decided when it has come.
  // Returns false if it is known already.
  bool put() const {
    const Knowledge now = value_knowledge(at_, bytes_.size());
    if (now == Knowledge::kUnknown)
      value_computed(at_, bytes_.size(), bytes_.data(), origin_);
    if (now == Knowledge::kComing) {
      const ByteRange range[] = {{at_, bytes_.size()}};
      value_work(new Stated(*this), range, range);
    }
    return now != Knowledge::kKnown;
  }

  void run() override { put(); }

private:
  char *at_ = nullptr;
  std::vector<char> bytes_;
  Origin origin_ = Origin::kNothing;
};

// Whether this thread runs a backward pass, or a hook in one.
inline bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

inline Number real(double value) { return {false, 0, value}; }
inline Number integer(int64_t value) { return {true, value, 0}; }

} // namespace detail

inline Default default_of(const Operator &op) {
  if (!op.has_schema || op.name.rfind("aten::", 0) != 0)
    return Default::kNone;
  const std::string name = op.name.substr(6);
  const auto is = [&](std::initializer_list<const char *> names) {
    return std::any_of(names.begin(), names.end(), [&](const char *n) { return name == n; });
  };
  if (is({"nll_loss_forward", "nll_loss2d_forward", "cross_entropy_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
          "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss",
          "ctc_loss"}))
    return Default::kLoss;
  if (is({"mean"}))
    return Default::kMean;
  if (is({"sum", "count_nonzero"}))
    return Default::kSum;
  if (is({"linalg_vector_norm", "norm", "_foreach_norm", "linalg_norm", "linalg_matrix_norm", "frobenius_norm",
          "nuclear_norm", "amax", "amin", "max", "min", "_foreach_max", "std", "var", "dot", "vdot",
          "cosine_similarity"}))
    return Default::kNorm;
  if (is({"all", "isfinite"}))
    return Default::kYes;
  if (is({"any", "isnan", "isinf", "isposinf", "isneginf"}))
    return Default::kNo;
  if (is({"histc", "bincount"}))
    return Default::kCounts;
  if (is({"_local_scalar_dense", "copy_"}))
    return Default::kRead;
  if (is({"topk"}))
    return Default::kChoice;
  return Default::kNone;
}

// Runs at the begin of an operator and notes what its default will depend on. A number that the host is about to read
// gets its default at once.
inline Statement prepare(Default how, const Operator &op, Inputs inputs) {
  Statement s{.how = how};
  const c10::TensorImpl *first = detail::tensor_in(inputs, 0), *second = detail::tensor_in(inputs, 1);
  if (how == Default::kRead) {
    const c10::TensorImpl *source = op.copies ? second : first;
    const bool to_host = !op.copies || (first != nullptr && first->key_set().has(c10::DispatchKey::CPU));
    if (to_host && source != nullptr && plain_cuda(source) && source->numel() == 1 && detail::floating(source))
      if (const auto loss = detail::Stated::of(source, {detail::real(detail::loss_now())}, Origin::kNumber))
        loss->put();
    return {};
  }
  if (how == Default::kChoice) {
    if (first != nullptr && plain_cuda(first) && first->sizes().size() == 2 && inputs.size() > 1 && inputs[1].isInt())
      detail::last_routing = {first->sizes()[0], first->sizes()[1], inputs[1].toInt()};
    return {};
  }
  if (first != nullptr) {
    s.floating = detail::floating(first);
    s.elements = first->numel();
    if ((how == Default::kSum || how == Default::kMean) && plain_cuda(first))
      s.level = detail::level_of(first);
    const auto &seen = detail::last_routing;
    if (first->sizes().size() == 2 && first->sizes()[0] == seen.tokens && first->sizes()[1] == seen.experts)
      s.choices = seen.choices;
  }
  if (second != nullptr)
    s.targets = second->numel();
  if (how == Default::kLoss) {
    constexpr int64_t kSum = 2; // at::Reduction
    for (size_t i = 2; i < inputs.size(); ++i)
      s.sum = s.sum || (inputs[i].isInt() && inputs[i].toInt() == kSum);
  }
  return s;
}

namespace detail {

// What stands for one result: one number for all of its elements, or one for each element. It is empty where nothing is
// stated.
inline std::pair<std::vector<Number>, Origin> stand_in(const Statement &s, const c10::TensorImpl *result) {
  const double each = static_cast<double>(s.elements) / static_cast<double>(std::max<int64_t>(result->numel(), 1));
  const auto counts = [&](int64_t total) {
    std::vector<Number> numbers;
    for (const int64_t count : routed(total, static_cast<size_t>(result->numel())))
      numbers.push_back(integer(count));
    return std::pair(numbers, Origin::kRouting);
  };
  const bool numbers = floating(result) && s.floating && (result->numel() == 1 || !in_backward());
  switch (s.how) {
  case Default::kLoss: {
    const bool whole = s.sum && result->numel() == 1;
    return {{real(loss_now() * static_cast<double>(whole ? std::max<int64_t>(s.targets, 1) : 1))}, Origin::kLoss};
  }
  case Default::kMean:
    if (s.level)
      return {{real(s.level->mean)}, Origin::kReduction};
    if (numbers)
      return {{real(loss_now())}, Origin::kReduction};
    break;
  case Default::kSum:
    if (s.choices > 0 && !floating(result) && result->numel() == last_routing.experts)
      return counts(last_routing.tokens * s.choices);
    if (s.level) {
      const double sum = each * static_cast<double>(s.level->mean);
      return {{real(s.level->counts ? std::round(sum) : sum)}, Origin::kReduction};
    }
    if (numbers)
      return {{real(loss_now() * each)}, Origin::kReduction};
    break;
  case Default::kNorm:
    if (floating(result))
      return {{real(1.0)}, Origin::kNorm};
    break;
  case Default::kYes:
  case Default::kNo:
    return {{integer(s.how == Default::kYes)}, Origin::kFinite};
  case Default::kCounts:
    if (result->numel() > 1) // with one element it is a bincount whose length is unknown as well
      return counts(s.elements);
    break;
  default:
    break;
  }
  return {{}, Origin::kNothing};
}

} // namespace detail

// States the loss for a single floating-point number of which nothing is known, so that arithmetic goes on from it as
// it would (a loss that a compiled graph left, divided by the steps that gradients accumulate over). Returns false for
// any other tensor.
inline bool take_for_loss(const c10::TensorImpl *tensor) {
  if (tensor->numel() != 1 || !detail::floating(tensor))
    return false;
  const auto loss = detail::Stated::of(tensor, {detail::real(detail::loss_now())}, Origin::kNumber);
  return loss && loss->put();
}

// Runs at the end of an operator. Gives what stands for its first result if that is small. The results after it
// (weights, indices) have no default.
inline std::vector<detail::Stated> stated_results(const Statement &s, Inputs results) {
  std::vector<detail::Stated> all;
  if (s.how == Default::kNone || results.empty() || capturing())
    return all;
  each_tensor(results[0], [&](const c10::TensorImpl *result) {
    if (result->numel() > kMostElements)
      return;
    const auto [numbers, origin] = detail::stand_in(s, result);
    if (auto stated = detail::Stated::of(result, numbers, origin))
      all.push_back(std::move(*stated));
  });
  return all;
}

// States the first result of an operator that was not computed, and returns whether it did.
inline bool state_results(const Statement &s, Inputs results) {
  bool stated = false;
  for (const detail::Stated &one : stated_results(s, results))
    stated = one.put() || stated;
  return stated;
}

} // namespace eidolon::torch_plugin
