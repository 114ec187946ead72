// The network alone, for flows whose start times are given from outside, in any order.
//
// A flow that starts before what was already simulated is late. Nothing happens until a time is asked for (`advance`);
// then one cut at the earliest of them serves all late flows. This is for uses without ranks: comparing the network
// with another simulator, and measuring it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "network.h"

namespace eidolon {

class Schedule {
public:
  explicit Schedule(bool journal) : network_(journal) {}

  Network &network() { return network_; }

  // Returns the flow's number, counted from 0.
  std::uint64_t add(Time start, std::uint32_t route, std::uint32_t weight, std::uint64_t bytes) {
    if (start < 0 || route >= network_.routes() || weight == 0 || weight > (1U << 20) || bytes > kMaxBytes) {
      throw std::invalid_argument(
          "a flow has a start from 0, a known route, a weight from 1 to 2^20, up to 2^50 bytes");
    }
    const std::uint64_t number = flows_.size();
    flows_.push_back({start, bytes, route, weight});
    ends_.push_back(kNever);
    if (bytes == 0) {
      ends_.back() = start;
    } else {
      push(number);
      if (start < network_.now()) {
        late_ = std::min(late_, start);
      }
    }
    return number;
  }

  // Simulates everything up to and including `limit`, or up to the end with kNever.
  void advance(Time limit) {
    if (late_ < network_.now()) {
      rollback(late_);
    }
    late_ = kNever;
    for (;;) {
      const Time start = pending_.empty() ? kNever : pending_.front().start;
      const Time time = start == network_.now() ? start : std::min(start, network_.next());
      if (time > limit || time == kNever) {
        break;
      }
      network_.move(time);
      ended_.clear();
      network_.complete(ended_);
      for (const auto &[tag, end] : ended_) {
        ends_[tag] = end;
        recent_.push_back(static_cast<std::int64_t>(tag));
      }
      while (!pending_.empty() && pending_.front().start == time) {
        const std::uint64_t number = pending_.front().number;
        std::pop_heap(pending_.begin(), pending_.end(), kLaterStart);
        pending_.pop_back();
        const Flow &flow = flows_[number];
        network_.start(flow.route, flow.weight, 1, flow.bytes, number);
      }
    }
    if (limit != kNever && limit > network_.now()) {
      network_.move(limit);
    }
  }

  // When something next begins or ends.
  [[nodiscard]] Time next() { return std::min(pending_.empty() ? kNever : pending_.front().start, network_.next()); }
  // Flows that ended since the last call.
  [[nodiscard]] std::vector<std::int64_t> take_ended() { return std::exchange(recent_, {}); }
  [[nodiscard]] std::span<const Time> ends() const { return ends_; }
  [[nodiscard]] std::uint64_t rollbacks() const { return rollbacks_; }

private:
  struct Flow {
    Time start;
    std::uint64_t bytes;
    std::uint32_t route;
    std::uint32_t weight;
  };
  struct Pending {
    Time start;
    std::uint64_t number;
  };
  static constexpr auto kLaterStart = [](const Pending &a, const Pending &b) { return a.start > b.start; };

  void push(std::uint64_t number) {
    pending_.push_back({flows_[number].start, number});
    std::push_heap(pending_.begin(), pending_.end(), kLaterStart);
  }

  void rollback(Time time) {
    Network::Undone undone;
    network_.cut(time, undone);
    ++rollbacks_;
    for (const std::uint64_t number : undone.ended) {
      ends_[number] = kNever;
    }
    for (const std::uint64_t number : undone.started) {
      push(number);
    }
  }

  Network network_;
  std::vector<Flow> flows_;
  std::vector<Time> ends_;
  std::vector<Pending> pending_;
  std::vector<Network::Ended> ended_;
  std::vector<std::int64_t> recent_;
  Time late_ = kNever;
  std::uint64_t rollbacks_ = 0;
};

} // namespace eidolon
