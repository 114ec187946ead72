// The event record as it lies in shared memory (interposer/native/core/abi.h), and what its kind says to the core.
#pragma once

#include <cstdint>

#include "vocabulary.h"

namespace eidolon {

struct EventRecord {
  std::uint32_t seq = 0; // lower 32 bits of its rank-wide number
  Kind kind = Kind::kHost;
  std::uint8_t flags = 0; // RecordFlag
  std::uint16_t thread = 0;
  std::uint32_t host_ns = 0;
  std::uint16_t call = 0;
  std::uint16_t device = 0;
  std::uint32_t stream = 0;
  std::uint32_t sig = 0;
  std::uint64_t value = 0;

  [[nodiscard]] constexpr bool has(RecordFlag flag) const { return (flags & static_cast<std::uint8_t>(flag)) != 0; }
};
static_assert(sizeof(EventRecord) == 32);

// What the engine does for a record; kHost where it only costs host time.
constexpr Op operation_of(Kind kind) {
  switch (kind) {
  case Kind::kKernel:
  case Kind::kCopy:
  case Kind::kSet:
    return Op::kWork;
  case Kind::kEventRecord:
    return Op::kRecord;
  case Kind::kStreamWait:
    return Op::kWait;
  case Kind::kCollective:
  case Kind::kCommInit:
    return Op::kCollective;
  case Kind::kCallback:
    return Op::kCallback;
  case Kind::kSyncStream:
    return Op::kSyncLane;
  case Kind::kSyncEvent:
    return Op::kSyncKey;
  case Kind::kSyncDevice:
    return Op::kSyncDevice;
  case Kind::kQueryStream:
    return Op::kQueryLane;
  case Kind::kQueryEvent:
    return Op::kQueryKey;
  case Kind::kEventTime:
    return Op::kKeyTime;
  case Kind::kClock:
    return Op::kClock;
  case Kind::kIdle:
    return Op::kIdle;
  case Kind::kResume:
    return Op::kResume;
  default:
    return Op::kHost;
  }
}

// Whether it touches a stream: its lane must be known.
constexpr bool on_stream(Kind kind) {
  switch (kind) {
  case Kind::kKernel:
  case Kind::kCopy:
  case Kind::kSet:
  case Kind::kEventRecord:
  case Kind::kStreamWait:
  case Kind::kCollective:
  case Kind::kCallback:
  case Kind::kSyncStream:
  case Kind::kQueryStream:
    return true;
  default:
    return false;
  }
}

// Whether it has a duration on the device.
constexpr bool works(Kind kind) { return kind == Kind::kKernel || kind == Kind::kCopy || kind == Kind::kSet; }

// Whether it polls: then it costs at least a microsecond (law 5).
constexpr bool polls(Kind kind) {
  return kind == Kind::kQueryStream || kind == Kind::kQueryEvent || kind == Kind::kEventTime || kind == Kind::kClock;
}

// Whether it says if the rank acts at all. A monitor thread writes it, but it is about the host lane.
constexpr bool moves(Kind kind) { return kind == Kind::kIdle || kind == Kind::kResume; }

// Whether the rank itself does something, and not a thread that watches.
constexpr bool acts(const EventRecord &record) { return record.has(RecordFlag::kForeground) || moves(record.kind); }

// Whether it tells one optimizer step from the next: a launch by an autograd thread.
constexpr bool is_autograd_launch(const EventRecord &record) {
  const bool launch =
      record.kind == Kind::kKernel || record.kind == Kind::kCollective || record.kind == Kind::kGraphLaunch;
  return launch && record.has(RecordFlag::kAutograd);
}

// Whether it tells somebody beyond its rank's lanes something, so that the session looks at it. Marks do too, but they
// have a way of their own (Intake::translate).
constexpr bool reaches_beyond(const EventRecord &record) {
  switch (record.kind) {
  case Kind::kCollective:
  case Kind::kCommInit:
  case Kind::kCommDestroy:
  case Kind::kMemory:
  case Kind::kOutOfMemory:
  case Kind::kUnmodelled:
  case Kind::kUnknownRead:
    return true;
  case Kind::kHost:
    return record.sig != 0;
  default:
    return false;
  }
}

} // namespace eidolon
