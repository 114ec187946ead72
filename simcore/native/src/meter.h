// How much work a rank's device does from one cut to the next. It is the sum over signatures of the work for a launch
// times the number of launches, and of the work for a byte times the number of bytes that the records named. A record
// costs no more than counting it.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace eidolon {

class Meter {
public:
  static constexpr std::size_t kFields = 5; // WORK_FIELDS of work.py
  using Work = std::array<double, kFields>;

  void define(std::uint32_t signature, const Work &of_launch, const Work &of_byte) {
    if (signature >= costs_.size()) {
      costs_.resize(signature + 1);
      counts_.resize(signature + 1);
    }
    costs_[signature] = {of_launch, of_byte};
  }

  // Counts a launch of a signature, with its record's value. A signature that was not defined here does no work.
  void take(std::uint32_t signature, std::uint64_t value) {
    if (signature >= counts_.size()) {
      return;
    }
    Count &count = counts_[signature];
    if (count.launches++ == 0) {
      used_.push_back(signature);
    }
    count.bytes += value;
  }

  // The work since the last cut.
  Work cut() {
    Work sum{};
    for (const std::uint32_t signature : used_) {
      const Cost &cost = costs_[signature];
      const Count count = std::exchange(counts_[signature], {});
      const auto launches = static_cast<double>(count.launches), bytes = static_cast<double>(count.bytes);
      for (std::size_t field = 0; field < kFields; ++field) {
        sum[field] += cost.of_launch[field] * launches + cost.of_byte[field] * bytes;
      }
    }
    used_.clear();
    return sum;
  }

private:
  struct Cost {
    Work of_launch{};
    Work of_byte{};
  };
  struct Count {
    std::uint64_t launches = 0;
    std::uint64_t bytes = 0; // whatever a value means where of_byte is 0
  };
  std::vector<Cost> costs_;         // by signature
  std::vector<Count> counts_;       // by signature, apart from the costs: only these are touched for a record
  std::vector<std::uint32_t> used_; // since the last cut
};

} // namespace eidolon
