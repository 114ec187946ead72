// What goes in and out, byte for byte as the numpy types of engine/interface.py.
#pragma once

#include <cstdint>
#include <vector>

#include "arithmetic.h"
#include "vocabulary.h"

namespace eidolon {

struct Operation {
  std::uint64_t seq = 0;
  Op op = Op::kHost;
  std::uint8_t flags = 0;
  std::uint16_t work_class = 0;
  std::uint32_t lane = 0;
  std::int64_t host_ns = 0;
  std::int64_t work_ns = 0;
  std::uint64_t value = 0;
  std::uint32_t label = 0;
  std::uint32_t pad = 0;
};
static_assert(sizeof(Operation) == 48);

struct Span {
  std::uint64_t seq = 0;
  std::uint32_t lane = 0;
  std::uint32_t label = 0;
  Op op = Op::kHost;
  std::uint8_t pad[7] = {};
  Time start = 0;
  Time end = 0;
  Time issue = 0;
};
static_assert(sizeof(Span) == 48);

constexpr bool is_sync(Op op) { return op == Op::kSyncLane || op == Op::kSyncKey || op == Op::kSyncDevice; }
constexpr bool is_read(Op op) {
  return op == Op::kQueryLane || op == Op::kQueryKey || op == Op::kKeyTime || op == Op::kClock;
}
// It has no host node of its own, and happens at the host lane's present.
constexpr bool is_hostless(const Operation &op) { return (op.flags & (kNoHost | kBackground)) != 0; }
// Whether the rank does something, rather than a thread that only watches it.
constexpr bool acts(const Operation &op) {
  if (op.op == Op::kIdle || (op.op == Op::kHost && op.host_ns == 0)) {
    return false;
  }
  return (op.flags & kBackground) == 0 || !is_read(op.op);
}
// Whether it takes a place in its device's launch queue. A group of collectives takes one place.
constexpr bool is_launch(const Operation &op) {
  return (op.op == Op::kWork || op.op == Op::kCollective) && !is_hostless(op);
}
constexpr bool holds_host(const Operation &op) { return is_sync(op.op) && (op.flags & kBackground) == 0; }

struct Answer {
  std::uint32_t rank = 0;
  std::uint64_t seq = 0;
  Time clock = 0;
  std::int64_t value = 0;
};

struct Mark {
  std::uint32_t rank = 0;
  std::uint64_t seq = 0;
  Time issue = 0;
  Time end = 0;
};

struct Jump {
  std::uint32_t rank = 0;
  std::uint64_t seq = 0;
  Time time = 0;
};

// A member's call whose collective has not ended yet.
struct OpenCall {
  std::uint64_t seq = 0;
  Time issue = 0;
  std::uint32_t lane = 0;
};

struct Blocked {
  std::uint32_t rank = 0;
  std::uint64_t seq = 0;
  std::uint64_t collective = 0;
  std::vector<std::uint32_t> missing;
};

} // namespace eidolon
