// Made from proto/vocabulary.toml by `make generate`; do not edit. docs/reference-vocabulary.md shows all of it.
#pragma once
#include <cstdint>

// clang-format off
namespace eidolon {

// Operations that an engine understands: a coarser set than the kinds of event record.
enum class Op : std::uint8_t {
  kHost = 0, // host node only
  kWork = 1, // device node of work_ns on lane
  kRecord = 2, // key value names the end of lane
  kWait = 3, // lane waits for key value
  kCollective = 4, // joins collective value (a handle from Engine.collective) on lane
  kSyncLane = 5, // host waits for lane
  kSyncKey = 6, // host waits for key value
  kSyncDevice = 7, // host waits for all lanes of the rank on device value
  kQueryLane = 8, // answers 1 if all work of lane ended at or before the host node's time, else 0
  kQueryKey = 9, // the same for key value
  kKeyTime = 10, // answers the end of key value in ns, -1 if it has not ended; the host waits for nothing
  kClock = 11, // answers the time only
  kMark = 12, // step mark: its end is the latest end of all lanes of the rank, no lane waits
  kCallback = 13, // device node of no work, answered with its end as clock when that is final; the host does not wait
  kIdle = 14, // the rank will not act before it resumes; background reads do not count, acting without resume is one
  kResume = 15, // the host lane goes on at max(its own time, horizon); the jump is recorded
  kCount
};

// Bits of an operation's flags.
inline constexpr std::uint8_t kAsk = 1; // an answer is wanted for this operation
inline constexpr std::uint8_t kGroupMore = 2; // the next operation belongs to the same group
inline constexpr std::uint8_t kNoHost = 4; // no host node of its own: issued together with the operation before it (graph replay)
inline constexpr std::uint8_t kBackground = 8; // issued by a thread that does not advance the host lane: host_ns is 0

} // namespace eidolon
