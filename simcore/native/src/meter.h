// What a rank's device work adds up to: how often each signature was launched and how long that took, since the
// beginning; and what it did from one cut to the next: each signature's work of a launch and of a byte, times how often
// it was launched and how many bytes its records named. Counting is all that a record costs.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "arithmetic.h"

namespace eidolon {

class Meter {
public:
  static constexpr std::size_t kFields = 5; // WORK_FIELDS of work.py
  using Work = std::array<double, kFields>;
  struct Spent {
    std::int64_t signature = 0;
    std::int64_t launches = 0;
    Time time = 0;
  };

  void define(std::uint32_t signature, const Work &of_launch, const Work &of_byte) {
    if (signature >= does_.size()) {
      does_.resize(signature + 1);
    }
    does_[signature] = {of_launch, of_byte};
  }

  // A launch of a signature, with its record's value and its duration.
  void take(std::uint32_t signature, std::uint64_t value, Time duration) {
    if (signature >= counts_.size()) {
      counts_.resize(signature + 1);
    }
    Count &count = counts_[signature];
    if (count.launches++ == count.cut) {
      used_.push_back(signature);
    }
    count.bytes += value;
    count.time += duration;
  }

  // The work since the last cut. Of signatures that were not defined there is none.
  Work cut() {
    Work sum{};
    for (const std::uint32_t signature : used_) {
      Count &count = counts_[signature];
      const auto launches = static_cast<double>(count.launches - std::exchange(count.cut, count.launches));
      const auto bytes = static_cast<double>(std::exchange(count.bytes, 0));
      if (signature < does_.size()) {
        const Does &does = does_[signature];
        for (std::size_t field = 0; field < kFields; ++field) {
          sum[field] += does.of_launch[field] * launches + does.of_byte[field] * bytes;
        }
      }
    }
    used_.clear();
    return sum;
  }

  // By signature, since the beginning.
  [[nodiscard]] std::vector<Spent> spent() const {
    std::vector<Spent> result;
    for (std::size_t signature = 0; signature < counts_.size(); ++signature) {
      const Count &count = counts_[signature];
      if (count.launches > 0) {
        result.push_back({static_cast<std::int64_t>(signature), static_cast<std::int64_t>(count.launches), count.time});
      }
    }
    return result;
  }

private:
  struct Does {
    Work of_launch{};
    Work of_byte{};
  };
  struct Count {
    std::uint64_t launches = 0;
    std::uint64_t cut = 0;   // launches up to the last cut
    std::uint64_t bytes = 0; // since then; whatever a value means where of_byte is 0
    Time time = 0;
  };
  std::vector<Does> does_;
  std::vector<Count> counts_;
  std::vector<std::uint32_t> used_; // since the last cut
};

} // namespace eidolon
