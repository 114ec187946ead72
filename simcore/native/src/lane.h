// A lane: device work in order, as segments.
//
// A lane is cut into segments at the points where it can depend on something else: a *join* (it waits for a group of
// collectives), a *wait* (for a node of another lane of the rank), and between two of them *plain* work. A plain
// segment is timed as one, however many kernels it has. With the work w_i and the issue time h_i of kernel i, the
// prefix sums P_i = w_1 + ... + w_i and M_i = max over j <= i of (h_j - P_(j-1)), kernel i ends at
//
//     end_i = P_i + max(base, M_i)        (base: end of the segment before)
//
// since end_i = max(end_(i-1), h_i) + w_i. When base moves, the segment moves in one step, and any single kernel can
// still be asked for its time.
//
// Segments are evaluated in order, and `known` is the number of those that are evaluated. A *coupled* lane (rates.h)
// has one kernel per segment. It is evaluated from outside, event by event, because its times follow from the device's
// activity.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "arithmetic.h"
#include "containers.h"
#include "records.h"

namespace eidolon {

// A node of a lane of the same rank.
struct Ref {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint64_t node = 0;
  std::uint32_t lane = kNone;
  std::uint32_t pad = 0;
};

struct Node {
  Time issue = 0;
  std::int64_t work = 0;
  std::int64_t prefix = 0; // P
  Time latest = 0;         // M
  std::uint64_t seq = 0;
  std::uint64_t key = 0; // of a record
  std::uint32_t label = 0;
  std::uint32_t segment = 0; // low bits of its number
  std::uint16_t work_class = 0;
  std::uint16_t table = 0;
  Op op = Op::kHost;
  std::uint8_t pad[3] = {};
};

struct Segment {
  enum class Kind : std::uint8_t { kPlain, kJoin, kWait };
  std::uint64_t first = 0; // nodes [first, last)
  std::uint64_t last = 0;
  Time base = 0; // plain: see above; join: when the lane arrived at it
  Time end = 0;
  std::uint64_t group = 0; // join
  Ref target;              // wait
  Kind kind = Kind::kPlain;
  bool begun = false;      // whether a coupled plain segment started at `base`, or a join arrived at `base`
  bool base_final = false; // whether its first nodes are final and gone
  std::uint8_t pad[5] = {};
};

class Lane {
public:
  std::uint32_t number = 0;
  std::uint32_t device = 0; // index within the rank
  Ring<Node> nodes;
  Ring<Segment> segments;
  std::uint64_t known = 0; // segments before it are evaluated
  bool coupled = false;
  bool pad[7] = {};
  Time floor = 0; // end of the last node that was dropped

  [[nodiscard]] bool blocked() const { return known < segments.end(); }

  // The end of what is evaluated.
  [[nodiscard]] Time base() const { return known == segments.first() ? floor : segments[known - 1].end; }

  void append_work(Node node) {
    const bool extend = !coupled && !segments.empty() && segments.back().kind == Segment::Kind::kPlain &&
                        segments.back().last - segments.back().first < kLongest;
    if (!extend) {
      open(Segment::Kind::kPlain);
    }
    Segment &segment = segments.back();
    const bool fresh = segment.first == segment.last;
    const std::int64_t before = fresh ? 0 : nodes.back().prefix;
    node.prefix = before + node.work;
    node.latest = fresh ? node.issue : std::max(nodes.back().latest, node.issue - before);
    node.segment = static_cast<std::uint32_t>(segments.end() - 1);
    nodes.push_back(node);
    ++segment.last;
    if (known == segments.end()) {
      segment.end = node.prefix + std::max(segment.base, node.latest);
    } else if (!coupled && known + 1 == segments.end()) {
      evaluate_plain();
    }
  }

  Segment &append_point(Segment::Kind kind, Node node) {
    Segment &segment = open(kind);
    node.segment = static_cast<std::uint32_t>(segments.end() - 1);
    nodes.push_back(node);
    ++segment.last;
    return segment;
  }

  // Undoes the last append, whose segment must not be evaluated.
  void pop_node() {
    nodes.pop_back();
    Segment &segment = segments.back();
    --segment.last;
    if (segment.first == segment.last) {
      segments.pop_back();
    }
  }

  // Evaluates the plain segment at `known`, whose times follow from the segment before.
  void evaluate_plain() {
    const Time from = base();
    Segment &segment = segments[known];
    if (!segment.base_final) {
      segment.base = from;
    }
    const Node &last = nodes[segment.last - 1];
    segment.end = last.prefix + std::max(segment.base, last.latest);
    ++known;
  }

  // Notes that the coupled plain segment at `known` has ended.
  void finish_plain(Time end) {
    Segment &segment = segments[known];
    Node &node = nodes[segment.first];
    node.prefix = end - segment.base;
    node.latest = std::numeric_limits<Time>::min();
    segment.end = end;
    ++known;
  }

  // When the node ended, or kNever if that is not known. It is 0 for a dropped node, which ended long ago.
  [[nodiscard]] Time end_of(std::uint64_t number_of_node) const {
    if (number_of_node < nodes.first()) {
      return 0;
    }
    const Node &node = nodes[number_of_node];
    const std::uint64_t first = segments.first();
    const std::uint64_t at = first + static_cast<std::uint32_t>(node.segment - static_cast<std::uint32_t>(first));
    if (at >= known) {
      return kNever;
    }
    const Segment &segment = segments[at];
    return segment.kind == Segment::Kind::kPlain ? node.prefix + std::max(segment.base, node.latest) : segment.end;
  }

  // Undoes what happened after `time` and returns how many nodes have no time any more. Calls `on_left(group)` for each
  // join at which the lane has no longer arrived.
  template <typename OnLeft> std::uint64_t cut(Time time, OnLeft on_left) {
    std::uint64_t retimed = 0;
    if (blocked()) {
      unbegin(segments[known], time, on_left);
    }
    while (known > segments.first() && over(segments[known - 1]) > time) {
      --known;
      retimed += segments[known].last - segments[known].first;
      unbegin(segments[known], time, on_left);
    }
    return retimed;
  }

  // Drops what ended up to `time`, and calls `emit(node, start, end)` for each node that it drops.
  template <typename Emit> void forget(Time time, Emit emit) {
    while (segments.first() < known) {
      Segment &segment = segments.front();
      if (segment.kind == Segment::Kind::kPlain) {
        while (segment.first < segment.last) {
          const Node &node = nodes.front();
          const Time end = node.prefix + std::max(segment.base, node.latest);
          if (end > time) {
            return;
          }
          emit(node, segment.first, end - (coupled ? node.prefix : node.work), end);
          nodes.pop_front();
          ++segment.first;
          segment.base_final = true;
          floor = end;
        }
      } else if (over(segment) <= time) {
        nodes.pop_front();
        floor = segment.end;
      } else {
        return;
      }
      segments.pop_front();
    }
  }

  template <typename Archive> void archive(Archive &ar) { ar(number, device, nodes, segments, known, coupled, floor); }

private:
  static constexpr std::uint64_t kLongest = 4096;

  // The time after which it can no longer be undone. A wait that has no effect ends before it is issued.
  [[nodiscard]] Time over(const Segment &segment) const {
    return segment.kind == Segment::Kind::kWait ? std::max(segment.end, nodes[segment.first].issue) : segment.end;
  }

  Segment &open(Segment::Kind kind) {
    Segment segment;
    segment.first = segment.last = nodes.end();
    segment.kind = kind;
    return segments.push_back(segment);
  }

  template <typename OnLeft> void unbegin(Segment &segment, Time time, OnLeft on_left) {
    if (segment.begun && segment.base > time) {
      segment.begun = false;
      if (segment.kind == Segment::Kind::kJoin) {
        on_left(segment.group);
      }
    }
  }
};

} // namespace eidolon
