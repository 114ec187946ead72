// The agent's end of one rank's ring (core/abi.h): what a shim wrote is checked, packed into messages for the core, and
// freed once the core has taken it; what the core answers is written back.
//
// Nothing in the file is trusted. The caller has checked the layout against the file's size; counters, lengths and ids
// are checked here each time, on copies. What does not fit is a RingError, which ends that rank and no other.
//
// Taking has three phases: batch() only reads, sent() notes that the batch is on its way, and taken() frees its room
// once the core has it. The position in the header is that of the last phase, so an agent that dies, at whatever
// moment, loses nothing: the next one begins there, and the core drops what it has.
//
// A ring is not safe for several threads: Python's lock is held in every call but wait_for_news().
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "abi.h"

namespace eidolon::agent {

struct RingError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where the three rings of a file lie: bytes from its start, and capacities in records or bytes, powers of two.
struct Layout {
  uint64_t records_offset, record_capacity;
  uint64_t defs_offset, defs_capacity;
  uint64_t inbox_offset, inbox_capacity;
};

// Consecutive records of a rank and what was defined before them, as the bytes of an EventBatch.
struct Batch {
  uint64_t first_seq = 0, count = 0;
  uint64_t asks = 0;            // records among them for whose answer a thread waits
  uint64_t definitions_end = 0; // position in the ring of definitions
  std::string bytes;
};

// The AgentMessage with these batches, at least one.
std::string pack(const std::vector<const Batch *> &batches);

class Ring {
public:
  // Turns the body of a definition into a serialized Signature of proto/, or throws.
  using ParseSignature = std::function<std::string(const std::string &)>;

  // `memory` stays mapped until release(). `kinds` are the numbers that a record's kind may have.
  Ring(char *memory, const Layout &layout, std::string_view kinds, ParseSignature parse);

  // ---- what the shim wrote

  uint64_t head() const;                  // records written so far
  uint64_t tail() const { return tail_; } // records sent so far
  // There is something to take. A payload may wait for its record (see batch).
  bool has_news() const;
  // What there is to send, of about `limit_bytes` at most: half of it records, half definitions. Empty: nothing.
  //
  // A payload stays in the ring until the record that sends it is in the batch too, unless the shim waits for room.
  // Where definitions alone reach the limit, the batch holds no records.
  std::optional<Batch> batch(uint64_t limit_bytes, uint32_t session);
  // A thread waits for an answer to what was sent. (After a restart, threads that waited before are not counted.)
  bool awaits_answer() const { return asked_ != 0; }
  // A batch, or another message about this rank (null), is on its way to the core.
  void sent(const Batch *batch);
  // The core has taken so many messages about this rank: their room is freed.
  void taken(uint64_t messages);
  uint64_t messages() const { return sent_; }      // that were sent
  bool settled() const { return taken_ == sent_; } // the core has taken all of them

  // ---- what the agent writes

  // Answers the record `seq`, for which `thread` waits in its slot, and wakes it.
  void reply(int64_t thread, uint64_t seq, int64_t clock_ns, int64_t value, int32_t status);
  // Wakes a thread that waits for an answer, without one: it then empties the inbox.
  void nudge(int64_t thread);
  // Puts a payload into the inbox and rings its bell; false while there is no room for it.
  bool deliver(uint64_t seq, std::string_view data, uint64_t number);
  // Makes the rank's clock readable to its background threads; one that went back is not shown (law 5).
  void publish_clock(int64_t clock_ns);
  // The collective of record `seq` has been under way for so long; 0: that is over.
  void overdue(uint64_t seq, int64_t waited_ns);
  // The file is about to be unmapped: every further call is a RingError.
  void release() { memory_ = nullptr; }

private:
  struct Freed { // what may be freed once the core has taken this many messages
    uint64_t messages, tail, definitions_end;
  };
  struct Definition {
    uint16_t type;
    const char *body;
    uint64_t bytes;
    uint64_t end; // position behind it
  };
  struct Definitions {
    uint64_t end;              // position behind what was taken
    std::string wire;          // as fields of an EventBatch
    std::vector<uint32_t> ids; // of the signatures among them
  };

  RingHeader &header() const;
  ReplySlot &slot(int64_t thread) const;
  Definition definition(uint64_t position, uint64_t head) const;
  Definitions definitions(int64_t room, int64_t &count) const;
  void learn(const std::vector<uint32_t> &ids);
  uint64_t check_records(const char *records, uint64_t count) const; // how many of them ask
  bool known(uint32_t id) const { return id < known_.size() && known_[id] != 0; }
  void note(uint64_t tail, uint64_t definitions_end);
  void free_taken();
  void put_message(MessageType type, uint64_t bytes, std::string_view first, std::string_view second);

  char *memory_;
  Layout layout_;
  std::array<bool, 256> is_kind_{};
  ParseSignature parse_;
  uint64_t tail_, defs_tail_, inbox_head_;
  // Ids defined so far. After a restart the earlier definitions are gone, so ids are then left to the core.
  bool check_ids_;
  std::vector<uint8_t> known_;
  std::deque<Freed> in_flight_;
  uint64_t sent_ = 0, taken_ = 0;
  uint64_t asked_ = 0; // records that were sent, and for whose answer a thread waits
};

// Sleeps until the bell of the server's page has another number than `seen`, or one of the rings has news, which is
// looked for every `poll_ns` and not before; for `limit_ns` at most. Returns the bell's number.
uint32_t wait_for_news(ServerPage &page, const std::vector<const Ring *> &rings, uint32_t seen, int64_t poll_ns,
                       int64_t limit_ns);

} // namespace eidolon::agent
