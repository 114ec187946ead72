// A timeline in outline, made from a rank's own list of operations, without the other ranks.
//
// Lanes, keys and the host are as the engine has them, except that a collective starts when this rank comes to it and
// takes the time that it takes alone. This gives the gaps in which nothing is computed, because the host has not issued
// anything or because all lanes wait for a collective. The gaps are a pure function of the list and are known as soon
// as the list is, unlike any simulated time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "records.h"

namespace eidolon {

class Outline {
public:
  // Longer pauses do not count to the mean, because the clock has adapted to the pause by then (see sm_clock.py).
  static constexpr std::int64_t kWindowNs = 100'000'000;

  // Takes one operation. `alone_ns` is the time that a collective takes alone.
  void take(const Operation &operation, std::int64_t alone_ns) {
    if (is_sync(operation.op) && !holds_host(operation)) {
      return;
    }
    host_ += operation.host_ns;
    if (operation.op == Op::kHost) {
      return;
    }
    std::int64_t &lane = lane_of(operation.lane);
    switch (operation.op) {
    case Op::kWork: {
      const std::int64_t start = std::max(lane, host_);
      lane = start + operation.work_ns;
      if (start > covered_) {
        idle_ += std::min(start - covered_, kWindowNs);
      }
      covered_ = std::max(covered_, lane);
      break;
    }
    case Op::kCollective: // a group is on one lane, starts as one, and takes as long as its longest member
      if (!in_group_) {
        group_start_ = std::max(lane, host_);
      }
      lane = std::max(lane, group_start_ + alone_ns);
      in_group_ = (operation.flags & kGroupMore) != 0;
      break;
    case Op::kRecord:
      keys_[operation.value] = std::max(lane, host_);
      break;
    case Op::kWait:
      lane = std::max(lane, key(operation.value));
      break;
    case Op::kSyncLane:
      host_ = std::max(host_, lane);
      break;
    case Op::kSyncKey:
      host_ = std::max(host_, key(operation.value));
      break;
    case Op::kSyncDevice:
      for (const auto &[number, end] : lanes_) {
        host_ = std::max(host_, end);
      }
      break;
    default:
      break;
    }
  }

  // The nanoseconds of gaps before the work since the last cut.
  [[nodiscard]] std::int64_t cut() {
    std::erase_if(keys_, [this](const auto &entry) { return entry.second <= host_; }); // nobody waits for them any more
    return std::exchange(idle_, 0);
  }

private:
  std::int64_t &lane_of(std::uint32_t number) {
    if (last_ == nullptr || number != last_->first) {
      last_ = &*lanes_.try_emplace(number).first;
    }
    return last_->second;
  }
  [[nodiscard]] std::int64_t key(std::uint64_t value) const {
    const auto found = keys_.find(value);
    return found == keys_.end() ? 0 : found->second;
  }

  std::int64_t host_ = 0, covered_ = 0, idle_ = 0;
  std::unordered_map<std::uint32_t, std::int64_t> lanes_;
  std::pair<const std::uint32_t, std::int64_t> *last_ = nullptr; // of them: the one that was used last
  std::unordered_map<std::uint64_t, std::int64_t> keys_;
  bool in_group_ = false;
  std::int64_t group_start_ = 0;
};

} // namespace eidolon
