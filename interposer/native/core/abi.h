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
// Everything is little-endian; `interposer/eidolon_interposer/abi.py` mirrors this file and a test compares both. The
// kinds of record, their flags, and the types of message are words of proto/vocabulary.toml (vocabulary.h).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "vocabulary.h"

namespace eidolon {

inline constexpr char kRingMagic[8] = {'E', 'I', 'D', 'R', 'I', 'N', 'G', '1'};

struct EventRecord {
  uint32_t seq;     // low 32 bits of the rank-wide sequence number (the record's index)
  uint8_t kind;     // Kind
  uint8_t flags;    // RecordFlag bits
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

// Where one blocked thread waits. The agent writes clock, value and status, then `reply_seq`, then wakes it.
struct alignas(64) ReplySlot {
  std::atomic<uint32_t> reply_seq; // low 32 bits of (sequence number + 1) of the answered record; futex word
  int32_t status;                  // ReplyStatus
  int64_t clock_ns;                // the rank's virtual clock after the call
  int64_t value;
};
static_assert(sizeof(ReplySlot) == 64);

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
  std::atomic<uint64_t> answer_wait_ns;   // real time in which foreground threads waited for answers,
  std::atomic<uint64_t> room_wait_ns;     // threads for room in the ring,
  std::atomic<uint64_t> watcher_wait_ns;  // and foreground threads for those that watch

  alignas(64) std::atomic<uint64_t> tail; // records that the core has taken: a restarted agent begins here
  std::atomic<uint64_t> defs_tail;
  std::atomic<uint64_t> inbox_head;   // inbox bytes written (by the agent)
  std::atomic<uint32_t> inbox_bell;   // futex word, bumped after each inbox message
  std::atomic<uint32_t> space_bell;   // futex word, bumped when room was made and space_wanted was 1
  std::atomic<int64_t> clock_ns;      // the rank's virtual clock as last published (every 10 ms or less)
  std::atomic<uint32_t> fatal_status; // ReplyStatus; non-zero ends the process at its next call
  std::atomic<uint64_t> delivered;    // number of the last payload from the core that is in the inbox
  // A collective of this rank that the timeout of its group may end (timeout.cpp): sequence number + 1 of its record, 0
  // for none, written after the time for which it has been under way.
  std::atomic<uint64_t> overdue_seq;
  std::atomic<int64_t> overdue_ns;
  alignas(64) char fatal[1024]; // NUL-terminated reason
  // Device memory of this rank, per device: what the agent takes back from ServerPage::used_bytes if the process dies.
  alignas(64) std::atomic<int64_t> used_bytes[kMaxDevices];
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
