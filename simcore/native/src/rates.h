// How fast device work goes. Each class of work has a rate, by what else happens on the device.
//
// A table gives each class of work four rates, in 2^-20 of the reference rate: alone, while a collective is under way
// on the device, while another lane of the device works, and with both. It also says what share of the device's ports
// work of the class *leaves* to the collectives beside it, in the same unit, because a collective's own blocks compete
// with the work for multiprocessors and memory. A table that leaves everything, and whose four rates are equal for each
// class, only *scales* work. Any other table *couples* the lanes of a device to each other and to its collectives.
//
// `Activity` is a device's history of what was under way when. The progress of a kernel is a pure function of its start
// and this history, so undoing history is all it takes to undo progress. What is left to collectives takes effect on
// links (Network::set_capacity), which keep a history of their own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arithmetic.h"
#include "containers.h"

namespace eidolon {

struct RateTable {
  static constexpr std::size_t kAlone = 0;
  static constexpr std::size_t kWithCollective = 1;
  static constexpr std::size_t kWithLane = 2;
  static constexpr std::size_t kLeaves = 4;
  using Rates = std::array<std::int64_t, 5>; // index: kWithCollective | kWithLane; kLeaves

  std::vector<Rates> classes; // classes beyond the end go at the reference rate

  [[nodiscard]] Rates rates(std::uint16_t work_class) const {
    return work_class < classes.size()
               ? classes[work_class]
               : Rates{kReferenceRate, kReferenceRate, kReferenceRate, kReferenceRate, kReferenceRate};
  }
  [[nodiscard]] bool couples() const {
    for (const Rates &rates : classes) {
      if (rates[1] != rates[0] || rates[2] != rates[0] || rates[3] != rates[0] || rates[kLeaves] != kReferenceRate) {
        return true;
      }
    }
    return false;
  }
  // Nanoseconds that `work` takes at a constant rate.
  [[nodiscard]] static std::int64_t scaled(std::int64_t work, std::int64_t rate) {
    return rate == kReferenceRate ? work : time_to_serve(static_cast<Volume>(work) << kRateBits, rate);
  }

  template <typename Archive> void archive(Archive &ar) { ar(classes); }
};

class Activity {
public:
  struct Piece {
    Time time = 0;
    std::int32_t collectives = 0;       // under way
    std::int32_t busy = 0;              // lanes that work
    std::int64_t left = kReferenceRate; // of the ports, to collectives; all of them while none is under way
  };

  Activity() { pieces_.push_back({}); }

  [[nodiscard]] const Piece &present() const { return pieces_.back(); }

  // Sets the state from `time` on. Does nothing if it is the present one.
  void set(Time time, std::int32_t collectives, std::int32_t busy, std::int64_t left) {
    Piece &last = pieces_.back();
    if (last.time == time) {
      last = {time, collectives, busy, left};
    } else if (last.collectives != collectives || last.busy != busy || last.left != left) {
      pieces_.push_back({time, collectives, busy, left});
    }
  }

  // Whether a collective was under way at some time after `time`.
  [[nodiscard]] bool communicated_since(Time time) const {
    std::uint64_t at = pieces_.end() - 1;
    while (pieces_[at].collectives == 0 && at > pieces_.first() && pieces_[at].time > time) {
      --at;
    }
    return pieces_[at].collectives > 0;
  }

  void cut(Time time) {
    while (pieces_.back().time > time) {
      pieces_.pop_back();
    }
  }

  // Drops what is needed only for work that started before `time`.
  void forget(Time time) {
    while (pieces_.size() > 1 && pieces_[pieces_.first() + 1].time <= time) {
      pieces_.pop_front();
    }
  }

  // When `work` ns that began at `start` are done at these rates, if nothing changes after the last piece. The lane
  // itself counts as one of the busy ones.
  [[nodiscard]] Time finish(Time start, std::int64_t work, const RateTable::Rates &rates) const {
    std::uint64_t at = pieces_.end() - 1;
    while (at > pieces_.first() && pieces_[at].time > start) {
      --at;
    }
    Volume left = static_cast<Volume>(work) << kRateBits;
    Time from = start;
    for (;; ++at) {
      const Piece &piece = pieces_[at];
      const std::size_t state =
          (piece.collectives > 0 ? RateTable::kWithCollective : 0) | (piece.busy > 1 ? RateTable::kWithLane : 0);
      const Time end = later(from, time_to_serve(left, rates[state]));
      if (at + 1 == pieces_.end() || end <= pieces_[at + 1].time) {
        return end;
      }
      left -= static_cast<Volume>(rates[state]) * static_cast<Volume>(pieces_[at + 1].time - from);
      from = pieces_[at + 1].time;
    }
  }

  [[nodiscard]] std::size_t bytes() const { return pieces_.bytes(); }
  template <typename Archive> void archive(Archive &ar) { ar(pieces_); }

private:
  Ring<Piece> pieces_;
};

} // namespace eidolon
