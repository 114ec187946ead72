// What a rank's device work costs: a price for each signature, looked up record by record.
//
// A price is in nanoseconds at the greatest clock. For copies and sets, the time for the bytes that the record names
// comes on top (lines between points). The pace of the step, a factor for each class of work, turns the price into the
// duration. Time that was spent is counted on the way: by signature and by source of the price, and by class at the
// greatest clock since the last cut for the next step's pace.
//
// What was spent until the first step's end is the start-up: models are built, kernels are compiled and tuned. It is
// kept apart once a second step has ended. Until then nothing tells steps from start-up, and all that was spent counts.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace eidolon {

struct Price {
  struct Point {
    std::uint64_t bytes = 0;
    double ns = 0;
  };

  std::int64_t base_ns = 0;
  std::vector<Point> by_bytes; // ascending
  std::uint32_t label = 0;
  std::uint16_t work_class = 0;
  std::uint8_t source = 0;

  // The time on top of base_ns, on the lines between the points. Below the first point it is that point's time, and
  // beyond the last point the last line goes on.
  [[nodiscard]] double of_bytes(std::uint64_t bytes) const {
    if (by_bytes.size() < 2 || bytes <= by_bytes.front().bytes) {
      return by_bytes.empty() ? 0.0 : by_bytes.front().ns;
    }
    const auto above = std::lower_bound(by_bytes.begin() + 1, by_bytes.end() - 1, bytes,
                                        [](const Point &point, std::uint64_t n) { return point.bytes < n; });
    const Point &from = *(above - 1);
    const double share = static_cast<double>(bytes - from.bytes) / static_cast<double>(above->bytes - from.bytes);
    return from.ns + share * (above->ns - from.ns);
  }
};

class Prices {
public:
  static constexpr std::size_t kClasses = 8;
  static constexpr std::size_t kSources = 4;

  struct Spent {
    std::int64_t count = 0;
    std::int64_t ns = 0;
    std::int64_t free = 0; // how many of these, and of all before, took no time
  };

  Prices() { pace_.fill(1.0); }

  void define(std::uint32_t signature, const Price &price) {
    if (price.work_class >= kClasses || price.source >= kSources) {
      throw std::invalid_argument("no such class of work or source");
    }
    if (std::adjacent_find(price.by_bytes.begin(), price.by_bytes.end(), [](const auto &one, const auto &next) {
          return one.bytes >= next.bytes;
        }) != price.by_bytes.end()) {
      throw std::invalid_argument("the points of a price by bytes are not in ascending order");
    }
    if (signature >= entries_.size()) {
      entries_.resize(signature + 1);
    }
    entries_[signature].price = price;
  }

  // Sets how many times as long work of each class takes from now on.
  void set_pace(const std::vector<double> &slowdown) {
    for (std::size_t i = 0; i < kClasses; ++i) {
      pace_[i] = i < slowdown.size() ? slowdown[i] : 1.0;
    }
  }

  struct Priced {
    std::int64_t ns = 0;
    std::uint32_t label = 0;
    std::uint16_t work_class = 0;
  };

  // The duration of work that starts `gap_ns` later than on an uncrowded device. A signature without a price is free
  // and is counted as free.
  Priced take(std::uint32_t signature, std::uint64_t value, std::int64_t gap_ns) {
    if (signature >= entries_.size()) {
      entries_.resize(signature + 1);
    }
    Entry &entry = entries_[signature];
    std::int64_t ns = entry.price.base_ns;
    if (!entry.price.by_bytes.empty()) {
      ns += std::llrint(entry.price.of_bytes(value));
    }
    at_full_clock_[entry.price.work_class] += static_cast<double>(ns);
    ns = std::llrint(static_cast<double>(ns) * pace_[entry.price.work_class]); // exact for 1, below 104 days
    if (ns > 0) {
      ns += gap_ns;
    } else {
      ++entry.spent.free;
    }
    count(entry, ns);
    return {ns, entry.price.label, entry.price.work_class};
  }

  // A collective: its time follows from the fabric, so its price is what it takes alone. The clock has no part in it.
  void join(std::uint32_t signature) {
    if (signature < entries_.size()) {
      count(entries_[signature], entries_[signature].price.base_ns);
    }
  }

  [[nodiscard]] const std::array<double, kClasses> &at_full_clock() const { return at_full_clock_; }
  // By source, what was spent in the steps, or in all while these are not told apart; and in the start-up.
  [[nodiscard]] std::array<std::int64_t, kSources> source_ns() const {
    std::array<std::int64_t, kSources> sums = source_ns_;
    for (std::size_t i = 0; !apart() && i < kSources; ++i) {
      sums[i] += startup_ns_[i];
    }
    return sums;
  }
  [[nodiscard]] std::array<std::int64_t, kSources> startup_ns() const {
    return apart() ? startup_ns_ : std::array<std::int64_t, kSources>{};
  }
  void cut() { at_full_clock_.fill(0); }

  // A step ends.
  void end_step() {
    if (++ends_ > 1) {
      return;
    }
    startup_ns_ = std::exchange(source_ns_, {});
    for (Entry &entry : entries_) {
      startup_.push_back(std::exchange(entry.spent, {0, 0, entry.spent.free}));
    }
  }

  // What every signature spent in the steps, by the number of the signature; in all while these are not told apart.
  [[nodiscard]] std::vector<Spent> spent() const {
    std::vector<Spent> all;
    all.reserve(entries_.size());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      all.push_back(entries_[i].spent);
      if (!apart() && i < startup_.size()) {
        all.back().count += startup_[i].count;
        all.back().ns += startup_[i].ns;
      }
    }
    return all;
  }

private:
  struct alignas(64) Entry { // one line of the cache
    Price price;
    Spent spent;
  };
  static_assert(sizeof(Entry) == 64);

  void count(Entry &entry, std::int64_t ns) {
    ++entry.spent.count;
    entry.spent.ns += ns;
    source_ns_[entry.price.source] += ns;
  }
  [[nodiscard]] bool apart() const { return ends_ > 1; }

  std::vector<Entry> entries_;
  std::vector<Spent> startup_; // the same signatures' until the first step ended
  std::int64_t ends_ = 0;      // steps that have ended
  std::array<double, kClasses> pace_{};
  std::array<double, kClasses> at_full_clock_{};
  std::array<std::int64_t, kSources> source_ns_{};
  std::array<std::int64_t, kSources> startup_ns_{};
};

} // namespace eidolon
