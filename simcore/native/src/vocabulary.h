// Made from proto/vocabulary.toml by `make generate`; do not edit. docs/reference-vocabulary.md shows all of it.
#pragma once
#include <cstdint>

// clang-format off
namespace eidolon {

inline constexpr std::uint32_t kCallIds = 1024; // signatures of kind call have ids below this, all others have ids from it on

// What one intercepted call was.
enum class Kind : std::uint8_t {
  kHost = 1, // a call that only costs host time; sig: mark
  kKernel = 2, // an operation of a library or a kernel launch; sig: kernel, gemm, conv, attention, library
  kCopy = 3, // a copy; value: bytes; sig: copy
  kSet = 4, // a fill of device memory; value: bytes; sig: set
  kEventRecord = 5, // an event is recorded on the stream; value: event key: unique per recording, never used again
  kStreamWait = 6, // the stream waits for an event; value: event key
  kCollective = 7, // one member's part in a collective, a send or a receive; value: position in its communicator; for send and recv, in its pair and direction; sig: collective
  kCallback = 8, // a host function in stream order, answered in its reply slot when it is due
  kSyncStream = 9, // blocks until all work issued to the stream before it has ended
  kSyncEvent = 10, // blocks until an event has ended; value: event key
  kSyncDevice = 11, // blocks until all work of this rank on the device has ended
  kQueryStream = 12, // asks whether all work of the stream ended at or before the caller's clock; the reply's value is 1 if so
  kQueryEvent = 13, // asks the same for an event; value: event key
  kEventTime = 14, // asks when an event, which has ended, did so; the reply's value is nanoseconds of virtual time; value: event key
  kClock = 15, // asks for the rank's clock alone
  kSleep = 16, // the host lane advances; value: nanoseconds
  kMark = 17, // a mark, such as the end of a step; it covers all device work of this rank before it; sig: mark
  kCommInit = 18, // blocks until all ranks of the communicator have made it, or have split it; sig: comm, split
  kCommDestroy = 19, // one member leaves a communicator; value: communicator id: hash of its unique id and the path of splits
  kGraphLaunch = 20, // host cost of a graph launch; its nodes follow as records with the flag in_graph
  kStreamCreate = 21, // a stream was made; not read: to the core it is a call that costs host time
  kMemory = 23, // device memory of this rank changed; value: bytes that this rank now has on the device; sig: memory
  kIdle = 24, // all foreground threads sleep outside our calls
  kResume = 25, // the first record after idle
  kOutOfMemory = 26, // an allocation was refused; value: bytes asked for
  kExit = 27, // the last record of an orderly process exit; not read: the agent tells of the end itself (RankLeft)
  kUnmodelled = 28, // calls that are not modelled; value: how many; sig: unmodelled
  kUnknownRead = 29, // the host read bytes that were never computed; value: bytes; sig: read
  kCount
};

// Bits of a record's flags.
enum class RecordFlag : std::uint8_t {
  kForeground = 1, // the thread advances the clock (law 3); others only read it
  kBlocking = 2, // the thread waits in reply slot thread until the answer is there
  kGroupMore = 4, // further members of the same NCCL group follow at once, on the same thread
  kInGraph = 8, // a node of a replayed CUDA graph: it has no host cost of its own
  kAutograd = 16, // the thread is not the main thread of its process (autograd); for step marks
  kPayload = 32, // a collective so small that its bytes are moved: a member that sends publishes one payload message (empty if no byte is known), before the record or later, and a member that receives gets one, before the answer to any later record that depends on it
};

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
