// Random numbers of small tensors: those that torch's generator of the device gives.
//
// Programs steer by random numbers: by masks, shuffles, choices. Torch's kernels for CUDA draw them with Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as cuRAND has it (curand_philox4x32_x.h). A
// generator has a seed and an offset, which each operator moves on. Element i of a tensor gets its number from block
// (offset / 4, i) of four words. This is so as long as the kernel has a thread for each element, which holds far beyond
// `kMostDrawn` (ATen/native/cuda/DistributionTemplates.h: distribution_nullary_kernel). "In order" means in the order
// of addresses, since that is how a TensorIterator walks a tensor.
//
// Uniform numbers, integers, Bernoulli numbers and permutations equal those of a real device to the bit. Where a kernel
// uses a function of the device's mathematical library (normal, exponential, and others), the last bits may differ.
#pragma once
#include <ATen/Context.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "compute.h"

namespace eidolon::torch_plugin {

inline constexpr int64_t kMostDrawn = 1 << 16;

// The operators that draw.
enum class Draws : uint8_t {
  kNone,
  kUniform,
  kNormal,
  kLogNormal,
  kExponential,
  kCauchy,
  kGeometric,
  kBernoulli,  // with one probability
  kBernoullis, // with a probability for each element
  kIntegers,   // from a range
  kWords,      // random_() without a range
  kPermutation
};

inline Draws draws_of(const Operator &op) {
  static constexpr struct {
    const char *name, *overload;
    Draws draws;
  } kAll[] = {{"aten::uniform_", "", Draws::kUniform},
              {"aten::normal_", "", Draws::kNormal},
              {"aten::log_normal_", "", Draws::kLogNormal},
              {"aten::exponential_", "", Draws::kExponential},
              {"aten::cauchy_", "", Draws::kCauchy},
              {"aten::geometric_", "", Draws::kGeometric},
              {"aten::bernoulli_", "float", Draws::kBernoulli},
              {"aten::bernoulli_", "Tensor", Draws::kBernoullis},
              {"aten::random_", "from", Draws::kIntegers},
              {"aten::random_", "to", Draws::kIntegers},
              {"aten::random_", "", Draws::kWords},
              {"aten::randperm", "generator_out", Draws::kPermutation}};
  for (const auto &one : kAll)
    if (op.name == one.name && op.overload == one.overload)
      return one.draws;
  return Draws::kNone;
}

namespace detail {

// One thread's part of the generator.
class Philox {
public:
  using Block = std::array<uint32_t, 4>;

  Philox(uint64_t seed, uint64_t thread, uint64_t offset) : seed_(seed), thread_(thread), position_(offset / 4) {}

  Block block() { // the next four words
    Block c = {static_cast<uint32_t>(position_), static_cast<uint32_t>(position_ >> 32), static_cast<uint32_t>(thread_),
               static_cast<uint32_t>(thread_ >> 32)};
    auto key0 = static_cast<uint32_t>(seed_), key1 = static_cast<uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(b),
           static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(a)};
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    ++position_;
    return c;
  }

  uint32_t word() { // the next one
    if (used_ == 4) {
      words_ = block();
      used_ = 0;
    }
    return words_[used_++];
  }

private:
  uint64_t seed_, thread_, position_;
  Block words_{};
  size_t used_ = 4;
};

// As an element of a type of floating-point numbers.
inline double rounded(double value, c10::ScalarType type) {
  switch (type) {
  case c10::ScalarType::Half:
    return c10::Half(static_cast<float>(value));
  case c10::ScalarType::BFloat16:
    return c10::BFloat16(static_cast<float>(value));
  case c10::ScalarType::Float:
    return static_cast<float>(value);
  default:
    return value;
  }
}

inline uint64_t wide(const Philox::Block &b) { return uint64_t{b[0]} << 32 | b[1]; }

// Uniform in (0, 1]: curand_uniform.h, _curand_uniform and _curand_uniform_double_hq.
inline float uniform(uint32_t x) { return std::fma(static_cast<float>(x), 0x1p-32F, 0x1p-33F); }
inline double uniform(uint32_t x, uint32_t y) {
  return std::fma(static_cast<double>(uint64_t{x} ^ uint64_t{y} << 21), 0x1p-53, 0x1p-54);
}
inline float uniform(const Philox::Block &b, float) { return uniform(b[0]); }
inline double uniform(const Philox::Block &b, double) { return uniform(b[0], b[1]); }

// Normal with mean 0 and deviation 1: curand_normal.h, _curand_box_muller and _curand_box_muller_double.
inline float normal(const Philox::Block &b, float) {
  constexpr float kTurn = 2 * std::numbers::pi_v<float>;
  const float v = std::fma(static_cast<float>(b[1]), 0x1p-32F * kTurn, 0x1p-33F * kTurn);
  return std::sqrt(-2.0F * std::log(uniform(b[0]))) * std::sin(v);
}
inline double normal(const Philox::Block &b, double) {
  const double v = 2 * uniform(b[2], b[3]);
  return std::sqrt(-2.0 * std::log(uniform(b[0], b[1]))) * std::sin(v * std::numbers::pi);
}

} // namespace detail

// What an operator draws: known at its begin, before it moves its generator on.
struct Draw {
  Draws how;
  uint64_t seed, offset;
  double a = 0, b = 0;               // parameters of the distribution
  int64_t first = 0;                 // kIntegers: the least number
  uint64_t range = 0;                // kIntegers: how many there are; kPermutation: of how many numbers
  std::optional<at::Tensor> chances; // kBernoullis
};

namespace detail {

// ATen/core/TransformationHelper.h; T is the type that the kernel computes in.
template <class T> T transformed(const Draw &d, const Philox::Block &block) {
  const auto a = static_cast<T>(d.a), b = static_cast<T>(d.b);
  switch (d.how) {
  case Draws::kNormal:
    return std::fma(normal(block, T{}), b, a);
  case Draws::kLogNormal:
    return std::exp(std::fma(normal(block, T{}), b, a));
  case Draws::kBernoulli:
    return uniform(block, T{}) < a;
  default:
    break;
  }
  constexpr T kEpsilon = std::numeric_limits<T>::epsilon();
  const T u = uniform(block, T{});
  switch (d.how) {
  case Draws::kUniform:
    return std::fma(u, b - a, a);
  case Draws::kExponential:
    return T{-1} / a * (u >= 1 - kEpsilon / 2 ? -kEpsilon / 2 : std::log(u));
  case Draws::kCauchy:
    return a + b * std::tan(std::numbers::pi_v<T> * (std::clamp(u, kEpsilon, 1 - kEpsilon) - T{0.5}));
  default: // kGeometric
    return std::ceil(std::log(u) / std::log1p(-a));
  }
}

// random_() without a range: how many different numbers a type gets (TransformationHelper.h, uniform_int).
inline uint64_t full_range(c10::ScalarType type) {
  switch (type) {
  case c10::ScalarType::Bool:
    return 2;
  case c10::ScalarType::Byte:
    return 1U << 8;
  case c10::ScalarType::Char:
    return 1U << 7;
  case c10::ScalarType::Short:
    return 1U << 15;
  case c10::ScalarType::Int:
    return 1U << 31;
  case c10::ScalarType::Long:
    return uint64_t{1} << 63;
  case c10::ScalarType::Half:
    return (1U << 11) + 1;
  case c10::ScalarType::BFloat16:
    return (1U << 8) + 1;
  case c10::ScalarType::Float:
    return (1U << 24) + 1;
  default:
    return (uint64_t{1} << 53) + 1;
  }
}

inline Number integral(int64_t value) { return {true, value, 0}; }

// Element i of a tensor of this type.
inline Number element(const Draw &d, int64_t i, c10::ScalarType type) {
  const Philox::Block block = Philox(d.seed, static_cast<uint64_t>(i), d.offset).block();
  if (d.how == Draws::kIntegers) {
    constexpr uint64_t kNarrow = 1 << 28; // larger ranges take two words (random_from_to_kernel)
    return integral(static_cast<int64_t>((d.range < kNarrow ? block[0] : wide(block)) % d.range) + d.first);
  }
  if (d.how == Draws::kWords) {
    const bool is_wide = type == c10::ScalarType::Long || type == c10::ScalarType::Double;
    return integral(static_cast<int64_t>((is_wide ? wide(block) : block[0]) % full_range(type)));
  }
  const double value = type == c10::ScalarType::Double ? transformed<double>(d, block) : transformed<float>(d, block);
  if (d.how == Draws::kUniform && rounded(value, type) == rounded(d.b, type)) // (0, 1] becomes [0, 1)
    return {false, 0, d.a};
  return {false, 0, value};
}

// ATen/native/cuda/Randperm.cu: numbers are sorted by the low bits of random keys, just so many that all keys differ
// in nine of ten cases. Numbers whose keys are the same are shuffled among themselves.
inline std::vector<Number> permutation(const Draw &d) {
  const size_t n = d.range;
  const auto real = static_cast<double>(n);
  const int bits = static_cast<int>(std::ceil(std::log2(real - (6 * real * real + 1) / (std::log(0.9) * 12))));
  const uint32_t mask = bits < 32 ? (uint32_t{1} << bits) - 1 : ~uint32_t{0};
  const Draw of_keys{.how = Draws::kIntegers,
                     .seed = d.seed,
                     .offset = d.offset,
                     .first = std::numeric_limits<int32_t>::min(),
                     .range = std::numeric_limits<uint32_t>::max(),
                     .chances = {}};
  std::vector<uint32_t> keys(n);
  for (size_t i = 0; i < n; ++i)
    keys[i] = static_cast<uint32_t>(element(of_keys, static_cast<int64_t>(i), c10::ScalarType::Int).integer) & mask;
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int64_t i) { return keys[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  constexpr uint64_t kOfKeys = 4; // what the keys move the generator on by
  for (size_t begin = 0, end; begin < n; begin = end) {
    for (end = begin + 1; end < n && key(order[end]) == key(order[begin]);)
      ++end;
    Philox words(d.seed, begin, d.offset + kOfKeys);
    for (size_t i = end - begin - 1; i > 0; --i)
      std::swap(order[begin + i], order[begin + words.word() % (i + 1)]);
  }
  std::vector<Number> out;
  for (const int64_t i : order)
    out.push_back(integral(i));
  return out;
}

// Each thread of the kernel draws for four elements (bernoulli_tensor_cuda_kernel).
inline std::vector<Number> bernoullis(const Draw &d, int64_t n) {
  const c10::TensorImpl *impl = d.chances->unsafeGetTensorImpl();
  if (impl->numel() != n || !impl->is_contiguous() || !known(impl))
    return {};
  const BelowModes below;
  const at::Tensor chances = alias_on_cpu(*d.chances).to(at::kDouble);
  std::vector<Number> out;
  for (int64_t i = 0; i < n; ++i) {
    const Philox::Block block = Philox(d.seed, static_cast<uint64_t>(i / 4), d.offset).block();
    out.push_back(integral(uniform(block[static_cast<size_t>(i % 4)]) <= chances.const_data_ptr<double>()[i]));
  }
  return out;
}

// The numbers of a tensor in order; none where they are not drawn.
inline std::vector<Number> numbers(const Draw &d, const c10::TensorImpl *tensor) {
  if (d.how == Draws::kPermutation)
    return permutation(d);
  if (d.how == Draws::kBernoullis)
    return bernoullis(d, tensor->numel());
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor->dtype());
  std::vector<Number> out;
  for (int64_t i = 0; i < tensor->numel(); ++i)
    out.push_back(element(d, i, type));
  return out;
}

} // namespace detail

// Runs at the begin of an operator. Gives what it will draw, if that is few numbers.
inline std::optional<Draw> begin_draw(Draws how, Inputs inputs) {
  const bool permutes = how == Draws::kPermutation;
  const size_t at = permutes ? 2 : 0;
  const c10::TensorImpl *out = at < inputs.size() && inputs[at].isTensor() ? inputs[at].unsafeToTensorImpl() : nullptr;
  if (out == nullptr || !plain_cuda(out) || capturing())
    return std::nullopt;
  const int64_t count = permutes ? inputs[0].toInt() : out->numel();
  const bool integers = permutes || how == Draws::kIntegers || how == Draws::kWords;
  if (count == 0 || count > (integers ? kMostDrawn : kMostElements)) {
    if (permutes && count != 0)
      warn_once("torch.randperm of more than %lld numbers on the device is not drawn: the numbers read as 0",
                static_cast<long long>(kMostDrawn));
    return std::nullopt;
  }
  const auto given = std::find_if(inputs.begin(), inputs.end(), [](const c10::IValue &v) { return v.isGenerator(); });
  at::Generator generator =
      given != inputs.end() ? given->toGenerator() : at::globalContext().defaultGenerator(out->device());
  Draw draw{.how = how, .seed = 0, .offset = 0, .chances = {}};
  {
    std::lock_guard hold(generator.mutex());
    draw.seed = generator.current_seed();
    draw.offset = generator.get_offset();
  }
  if (permutes)
    draw.range = static_cast<uint64_t>(count);
  if (how == Draws::kBernoullis)
    draw.chances = inputs[1].toTensor();
  if (how == Draws::kIntegers) {
    const bool has_first = inputs.size() > 3; // random_.from, else random_.to
    if (!inputs[1].isInt() || (has_first && !inputs[2].isInt()))
      return std::nullopt;
    draw.first = has_first ? inputs[1].toInt() : 0;
    draw.range = static_cast<uint64_t>((has_first ? inputs[2] : inputs[1]).toInt()) - static_cast<uint64_t>(draw.first);
  }
  if (inputs.size() > 1 && inputs[1].isDouble())
    draw.a = inputs[1].toDouble();
  if (inputs.size() > 2 && inputs[2].isDouble())
    draw.b = inputs[2].toDouble();
  return draw;
}

// Runs at its end, and puts the numbers where the operator left its own. Returns false if they are not known.
inline bool end_draw(const Draw &draw, const c10::IValue &result) {
  if (!result.isTensor())
    return false;
  const c10::TensorImpl *tensor = result.unsafeToTensorImpl();
  char *storage = detail::storage_of(tensor);
  const std::vector<detail::Number> numbers = detail::numbers(draw, tensor);
  if (storage == nullptr || numbers.size() != static_cast<size_t>(tensor->numel()))
    return false;
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor->dtype());
  std::vector<char> bytes;
  char one[8];
  for (const detail::Number &number : numbers) {
    const size_t item = detail::encode(number, type, one);
    if (item == 0)
      return false;
    bytes.insert(bytes.end(), one, one + item);
  }
  bool all = true;
  size_t done = 0;
  detail::each_run(tensor, storage, [&](char *at, size_t n, bool exact) { // in the order of addresses
    if (exact)
      value_computed(at, n, bytes.data() + done);
    all = all && exact;
    done += n;
  });
  return all;
}

} // namespace eidolon::torch_plugin
