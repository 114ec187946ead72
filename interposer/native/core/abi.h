// The shared-memory contract between the shim (one per rank) and the agent (one per emulated server).
//
// A rank owns one file, `<EIDOLON_DIR>/ranks/<id>.ring`, mapped by both sides:
//
//   RingHeader | ReplySlot[kReplySlots] | records | definitions | inbox
//
//   records      fixed 32-byte EventRecord, shim -> agent. Its index is the rank-wide sequence number.
//   definitions  variable-length messages, shim -> agent: signatures, payload bytes, text.
//   inbox        variable-length messages, agent -> shim: payload bytes.
//
// All three are single-consumer rings addressed by free-running 64-bit counters; the producer publishes with a
// release store of its counter, the consumer frees with a release store of its own. Several threads of a rank
// produce under one process-wide mutex: the order in which they take it *is* the rank-wide order of their calls.
// A definition is always published before the first record that names it, so a consumer that reads `head` of the
// records first and of the definitions second has everything it needs.
//
// A rank is alive while it holds a POSIX record lock (fcntl F_SETLK, write, byte 0) on its ring file; a pid means
// nothing across containers. When the lock is gone the ring stays readable up to `head`.
//
// Everything is little-endian; `interposer/eidolon_interposer/abi.py` mirrors this file and a test compares both.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace eidolon {

inline constexpr char kRingMagic[8] = {'E', 'I', 'D', 'R', 'I', 'N', 'G', '1'};
inline constexpr uint32_t kAbiVersion = 2;
inline constexpr uint32_t kReplySlots = 256; // one per thread of a rank that ever blocks
inline constexpr int kMaxDevices = 64;       // emulated GPUs of one server

// What one intercepted call was. The meaning of `value` and `sig` is stated per kind. Numbers 0 and 22 are reserved:
// earlier versions of the ABI used them.
enum class Kind : uint8_t {
  kHost = 1,         // host-only call: costs host time, nothing else
  kKernel = 2,       // sig = operation signature
  kCopy = 3,         // sig = copy signature, value = bytes
  kSet = 4,          // sig = set signature, value = bytes
  kEventRecord = 5,  // value = event key (unique per recording, never reused)
  kStreamWait = 6,   // stream waits for event key `value`
  kCollective = 7,   // sig = collective signature, value = position in its communicator (p2p: in its pair)
  kCallback = 8,     // host function in stream order, answered in its reply slot when it is due
  kSyncStream = 9,   // blocks until all work issued to `stream` before it has ended
  kSyncEvent = 10,   // blocks until event key `value` has ended
  kSyncDevice = 11,  // blocks until all work of this rank on `device` has ended
  kQueryStream = 12, // reply.value = 1 if all work of `stream` ended at or before the caller's clock
  kQueryEvent = 13,  // same for event key `value`
  kEventTime = 14,   // reply.value = end of event key `value`, ns of virtual time (the event has ended)
  kClock = 15,       // reply.clock_ns is all that is asked for
  kSleep = 16,       // host lane advances by `value` ns
  kMark = 17,        // step mark; covers all device work of this rank before it; sig = signature of kind "mark"
  kCommInit = 18,    // blocks until all ranks of the communicator made it; sig = "comm" signature
  kCommDestroy = 19, // value = communicator id (hash of its unique id and the split path)
  kGraphLaunch = 20, // host cost of a graph launch; its nodes follow as records flagged kInGraph
  kStreamCreate = 21,
  kMemory = 23, // value = bytes now allocated on `device` by this rank (int64); sig = memory signature (which pool)
  kIdle = 24,   // all foreground threads sleep outside our calls
  kResume = 25, // the first record after kIdle
  kOutOfMemory = 26, // an allocation of `value` bytes was refused on `device`
  kExit = 27,        // last record of an orderly process exit; value = 0
  kUnmodelled = 28,  // sig = signature of kind "unmodelled", name = library:function; value = 1
  kUnknownRead = 29, // a device-to-host read of `value` never-computed bytes; sig = "read" signature (call site)
};

enum Flag : uint8_t {
  kForeground = 1 << 0, // the thread advances the clock (law 3); others only read it
  kBlocking = 1 << 1,   // the thread waits in reply slot `thread` until the answer is there
  kGroupMore = 1 << 2,  // further members of the same NCCL group follow at once (same thread, same seq run)
  kInGraph = 1 << 3,    // a node of a replayed CUDA graph: no host cost of its own
  kAutograd = 1 << 4,   // the thread is not the main thread of its process (autograd); for step marks
  kPayload = 1 << 5,    // a collective small enough that its bytes are moved: a member that sends publishes exactly one
                        // kPayload message (zero length: unknown bytes), before the record or later; a member that
                        // receives gets exactly one, before the answer to any later record that depends on it
};

struct EventRecord {
  uint32_t seq;     // low 32 bits of the rank-wide sequence number (the record's index)
  uint8_t kind;     // Kind
  uint8_t flags;    // Flag bits
  uint16_t thread;  // thread index within the rank; also its reply slot
  uint32_t host_ns; // host cost since this thread's last record: what it did between calls or, if `measured`, CPU time
  uint16_t call;    // id of a "call" signature: which API call this was; indexes the host cost table
  uint16_t device;  // device ordinal within the emulated server
  uint32_t stream;  // stream id, unique in the rank; 0 = none. Each device has its own default stream id
  uint32_t sig;     // signature id, 0 = none
  uint64_t value;
};
static_assert(sizeof(EventRecord) == 32);

// Variable-length messages (definitions and inbox): this head, then `bytes` of body, padded to 8. A message never
// wraps: kPad fills the rest of the ring.
struct MessageHead {
  uint32_t bytes;
  uint16_t type; // MessageType
  uint16_t reserved;
};
enum class MessageType : uint16_t {
  kPad = 0,
  kSignature = 1, // u32 id ("call" signatures have ids below 1,024, all others from there on), then text: kind '\n'
                  // name '\n' then lines "key=integer"; UTF-8
  kPayload = 2,   // u64 seq of the collective record it belongs to, then the bytes (both directions): all n of them; if
                  // some are unknown, zeros for those and a mask of (n + 7) / 8 bytes (bit i % 8 of byte i / 8: byte i
                  // is known); if none is known, nothing
};

// Where one blocked thread waits. The agent writes clock, value and status, then `reply_seq`, then wakes it.
struct alignas(64) ReplySlot {
  std::atomic<uint32_t> reply_seq; // low 32 bits of (sequence number + 1) of the answered record; futex word
  int32_t status;                  // ReplyStatus
  int64_t clock_ns;                // the rank's virtual clock after the call
  int64_t value;
};
static_assert(sizeof(ReplySlot) == 64);
enum class ReplyStatus : int32_t {
  kOk = 0,
  kFailed = 1, // RingHeader::fatal says why: print it, exit non-zero
  kStop = 2,   // the run reached its end condition: exit with 0
};

struct RingHeader {
  char magic[8];
  uint32_t abi_version;
  uint32_t record_bytes;
  uint64_t record_capacity; // records, a power of two
  uint64_t records_offset;  // bytes from the start of the file
  uint64_t defs_capacity;   // bytes, a power of two
  uint64_t defs_offset;
  uint64_t inbox_capacity; // bytes, a power of two
  uint64_t inbox_offset;
  int32_t pid;        // informative only
  int32_t rank;       // RANK of the environment, -1 if unset
  int32_t local_rank; // LOCAL_RANK, -1 if unset
  int32_t world;      // WORLD_SIZE, -1 if unset
  int64_t epoch_ns;   // CLOCK_REALTIME at virtual time 0 of this rank
  uint32_t session;   // assigned by the agent, 1-based; 0 until then

  alignas(64) std::atomic<uint64_t> head; // records written
  std::atomic<uint64_t> defs_head;        // definition bytes written
  std::atomic<uint64_t> inbox_tail;       // inbox bytes consumed (by the shim)
  std::atomic<uint32_t> closed;           // 1: the process is exiting in order
  std::atomic<uint32_t> idle;             // 1: all foreground threads sleep outside our calls
  std::atomic<uint32_t> space_wanted;     // futex word: the shim waits for room in records or definitions

  alignas(64) std::atomic<uint64_t> tail; // records that the core has taken: a restarted agent begins here
  std::atomic<uint64_t> defs_tail;
  std::atomic<uint64_t> inbox_head;   // inbox bytes written (by the agent)
  std::atomic<uint32_t> inbox_bell;   // futex word, bumped after each inbox message
  std::atomic<uint32_t> space_bell;   // futex word, bumped when room was made and space_wanted was 1
  std::atomic<int64_t> clock_ns;      // the rank's virtual clock as last published (every 10 ms or less)
  std::atomic<uint32_t> fatal_status; // ReplyStatus; non-zero ends the process at its next call
  std::atomic<uint64_t> delivered;    // number of the last payload from the core that is in the inbox
  alignas(64) char fatal[1024];       // NUL-terminated reason
  alignas(
      64) std::atomic<int64_t> used_bytes[kMaxDevices]; // device memory of this rank, per device: what the agent takes
                                                        // back from ServerPage::used_bytes if the process dies
};
static_assert(sizeof(RingHeader) % 64 == 0);

// `<EIDOLON_DIR>/server.page`: made by the agent before any rank starts.
struct ServerPage {
  char magic[8]; // "EIDSERV1"
  uint32_t abi_version;
  std::atomic<uint32_t> bell;      // futex word: a shim bumps and wakes it when a thread blocks
  std::atomic<uint32_t> listening; // 1 while the agent sleeps on the bell
  uint32_t reserved;
  std::atomic<uint64_t> heartbeat_ns; // CLOCK_MONOTONIC of the agent, refreshed every second or less
  alignas(64) std::atomic<int64_t> used_bytes[kMaxDevices]; // device memory in use, per device, by all processes
};

} // namespace eidolon
