#include "ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <sstream>

#include "wire.h"

namespace eidolon::agent {
namespace {

template <typename... Parts> [[noreturn]] void broken(const Parts &...parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw RingError(text.str());
}

void futex_wake(std::atomic<uint32_t> &word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void ring_bell(std::atomic<uint32_t> &bell) {
  bell.fetch_add(1);
  futex_wake(bell);
}

uint64_t aligned(uint64_t bytes) { return (bytes + 7) & ~uint64_t{7}; }

// Checks the counters of a ring of messages against each other.
void check_counters(const char *name, uint64_t head, uint64_t tail, uint64_t capacity) {
  if (head - tail > capacity || (head & 7) != 0 || (tail & 7) != 0)
    broken(name, ": head ", head, " and tail ", tail, " do not fit a capacity of ", capacity, " bytes");
}

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

} // namespace

Ring::Ring(char *memory, const Layout &layout, std::string_view kinds, ParseSignature parse)
    : memory_(memory), layout_(layout), parse_(std::move(parse)) {
  for (const char kind : kinds)
    is_kind_[static_cast<unsigned char>(kind)] = true;
  const RingHeader &h = header();
  tail_ = h.tail.load();
  defs_tail_ = h.defs_tail.load();
  inbox_head_ = h.inbox_head.load();
  check_counters("definitions", h.defs_head.load(), defs_tail_, layout_.defs_capacity);
  check_counters("inbox", inbox_head_, h.inbox_tail.load(), layout_.inbox_capacity);
  (void)head();
  check_ids_ = defs_tail_ == 0;
  known_.assign(4096, 0);
  known_[0] = 1;
}

RingHeader &Ring::header() const {
  if (memory_ == nullptr)
    broken("it is closed");
  return *reinterpret_cast<RingHeader *>(memory_);
}

std::string pack(const std::vector<const Batch *> &batches) {
  std::string message;
  if (batches.size() == 1) {
    wire::put_bytes(message, 3, batches.front()->bytes);
    return message;
  }
  std::string body;
  for (const Batch *batch : batches)
    wire::put_bytes(body, 1, batch->bytes);
  wire::put_bytes(message, 6, body);
  return message;
}

// ---- what the shim wrote --------------------------------------------------------------------------------------------

uint64_t Ring::head() const {
  const uint64_t head = header().head.load(std::memory_order_acquire);
  if (head - tail_ > layout_.record_capacity)
    broken("records: head ", head, " and tail ", tail_, " do not fit a capacity of ", layout_.record_capacity);
  return head;
}

bool Ring::has_news() const {
  const RingHeader &h = header();
  return h.head.load(std::memory_order_acquire) != tail_ ||
         (h.defs_head.load(std::memory_order_acquire) != defs_tail_ && h.space_wanted.load() != 0);
}

Ring::Definition Ring::definition(uint64_t position, uint64_t head) const {
  const uint64_t at = position & (layout_.defs_capacity - 1), room = layout_.defs_capacity - at;
  const char *begin = memory_ + layout_.defs_offset + at;
  MessageHead message;
  memcpy(&message, begin, sizeof message);
  if (message.type == static_cast<uint16_t>(MessageType::kPad)) {
    if (room > head - position)
      broken("definitions: a pad at ", position, " reaches beyond the head ", head);
    return {message.type, begin, 0, position + room};
  }
  const uint64_t total = aligned(sizeof message + message.bytes);
  if (total > room)
    broken("definitions: a message of ", message.bytes, " bytes at ", position, " reaches beyond the ring");
  if (total > head - position)
    broken("definitions: a message of ", message.bytes, " bytes at ", position, " reaches beyond the head ", head);
  return {message.type, begin + sizeof message, message.bytes, position + total};
}

// Lowers `count`, the records from the tail on that go with them, where they do not all fit. (Differences of positions
// are compared, never positions: these run freely, and a file may say that they are about to overflow.)
Ring::Definitions Ring::definitions(int64_t room, int64_t &count) const {
  Definitions found{defs_tail_, {}, {}};
  const RingHeader &h = header();
  const uint64_t head = h.defs_head.load(std::memory_order_acquire);
  check_counters("definitions", head, defs_tail_, layout_.defs_capacity);
  const bool take_all = h.space_wanted.load() != 0;
  while (found.end != head) {
    const Definition next = definition(found.end, head);
    const auto bytes = static_cast<int64_t>(next.bytes);
    const bool full = room < bytes && !found.wire.empty();
    if (next.type == static_cast<uint16_t>(MessageType::kPayload)) {
      uint64_t seq;
      if (next.bytes < sizeof seq)
        broken("a payload of ", next.bytes, " bytes");
      memcpy(&seq, next.body, sizeof seq);
      const auto record = static_cast<int64_t>(seq - tail_);
      if (!take_all && record >= count)
        break;
      if (full) { // records before the one that sends it do not need it, nor what was defined after it
        count = std::max<int64_t>(0, std::min(count, record));
        break;
      }
      std::string payload;
      wire::put_number(payload, 1, seq);
      wire::put_bytes(payload, 2, {next.body + sizeof seq, next.bytes - sizeof seq});
      wire::put_number(payload, 3, next.end);
      wire::put_bytes(found.wire, 6, payload);
    } else if (next.type == static_cast<uint16_t>(MessageType::kSignature)) {
      if (full) { // which records need it is not known
        count = 0;
        break;
      }
      const std::string body(next.body, next.bytes);
      wire::put_bytes(found.wire, 5, parse_(body));
      memcpy(&found.ids.emplace_back(), body.data(), sizeof(uint32_t));
    } else if (next.type != static_cast<uint16_t>(MessageType::kPad)) {
      broken("a definition of type ", next.type);
    }
    room -= bytes;
    found.end = next.end;
  }
  return found;
}

std::optional<Batch> Ring::batch(uint64_t limit_bytes, uint32_t session) {
  // The head of the records is read first and the definitions after it: all that the records name is there.
  const uint64_t most = std::max<uint64_t>(1, limit_bytes / 2 / sizeof(EventRecord));
  auto fitting = static_cast<int64_t>(std::min(head() - tail_, most));
  const Definitions found = definitions(static_cast<int64_t>(limit_bytes / 2), fitting);
  const auto count = static_cast<uint64_t>(fitting);
  if (count == 0 && found.wire.empty()) {
    note(tail_, found.end); // a pad may be all there is, and its room be waited for
    return std::nullopt;
  }
  const uint64_t first = tail_ & (layout_.record_capacity - 1);
  std::string body;
  body.reserve(64 + found.wire.size() + count * sizeof(EventRecord));
  wire::put_number(body, 1, session);
  wire::put_number(body, 2, tail_);
  wire::put_number(body, 3, count);
  wire::put_number(body, 7, header().delivered.load());
  body += found.wire;
  learn(found.ids);
  uint64_t asks = 0;
  if (count != 0) {
    wire::put_length(body, 4, count * sizeof(EventRecord));
    const size_t records = body.size();
    const uint64_t before_wrap = std::min(count, layout_.record_capacity - first);
    const char *begin = memory_ + layout_.records_offset;
    body.append(begin + first * sizeof(EventRecord), before_wrap * sizeof(EventRecord));
    body.append(begin, (count - before_wrap) * sizeof(EventRecord));
    asks = check_records(body.data() + records, count);
  }
  return Batch{tail_, count, asks, found.end, std::move(body)};
}

void Ring::learn(const std::vector<uint32_t> &ids) {
  for (const uint32_t id : ids) {
    if (id >= known_.size())
      known_.resize(std::max<size_t>(id + size_t{1}, 2 * known_.size()), 0);
    known_[id] = 1;
  }
}

uint64_t Ring::check_records(const char *records, uint64_t count) const {
  uint64_t asks = 0;
  for (uint64_t i = 0; i < count; ++i) {
    EventRecord record;
    memcpy(&record, records + i * sizeof record, sizeof record);
    if (record.seq != static_cast<uint32_t>(tail_ + i))
      broken("record ", tail_ + i, " has sequence number ", record.seq);
    if (!is_kind_[record.kind])
      broken("a record of kind ", static_cast<int>(record.kind));
    if ((record.flags & kBlocking) != 0 && record.thread >= kReplySlots)
      broken("a record waits in reply slot ", record.thread, " of ", kReplySlots);
    if (check_ids_)
      for (const uint32_t id : {record.sig, uint32_t{record.call}})
        if (!known(id))
          broken("a record names signature ", id, ", which was never defined");
    asks += (record.flags & kBlocking) != 0 ? 1 : 0;
  }
  return asks;
}

void Ring::sent(const Batch *batch) {
  ++sent_;
  if (batch == nullptr) {
    note(tail_, defs_tail_);
    return;
  }
  asked_ += batch->asks;
  note(batch->first_seq + batch->count, batch->definitions_end);
}

void Ring::taken(uint64_t messages) {
  if (messages > sent_)
    broken("the core has taken ", messages, " messages, of which ", sent_, " were sent");
  taken_ = messages;
  free_taken();
}

void Ring::note(uint64_t tail, uint64_t definitions_end) {
  if (tail == tail_ && definitions_end == defs_tail_)
    return;
  tail_ = tail;
  defs_tail_ = definitions_end;
  in_flight_.push_back({sent_, tail, definitions_end});
  free_taken();
}

void Ring::free_taken() {
  std::optional<Freed> freed;
  for (; !in_flight_.empty() && in_flight_.front().messages <= taken_; in_flight_.pop_front())
    freed = in_flight_.front();
  if (!freed)
    return;
  RingHeader &h = header();
  h.tail.store(freed->tail, std::memory_order_release);
  h.defs_tail.store(freed->definitions_end, std::memory_order_release);
  if (h.space_wanted.load() != 0)
    ring_bell(h.space_bell);
}

// ---- what the agent writes ------------------------------------------------------------------------------------------

ReplySlot &Ring::slot(int64_t thread) const {
  (void)header();
  if (thread < 0 || thread >= static_cast<int64_t>(kReplySlots))
    broken("an answer for reply slot ", thread, " of ", kReplySlots);
  return reinterpret_cast<ReplySlot *>(memory_ + sizeof(RingHeader))[thread];
}

void Ring::reply(int64_t thread, uint64_t seq, int64_t clock_ns, int64_t value, int32_t status) {
  ReplySlot &waiting = slot(thread);
  waiting.clock_ns = clock_ns;
  waiting.value = value;
  waiting.status = status;
  asked_ -= asked_ != 0 ? 1 : 0;
  waiting.reply_seq.store(static_cast<uint32_t>(seq + 1), std::memory_order_release);
  futex_wake(waiting.reply_seq);
  publish_clock(clock_ns);
}

void Ring::nudge(int64_t thread) { futex_wake(slot(thread).reply_seq); }

void Ring::publish_clock(int64_t clock_ns) {
  RingHeader &h = header();
  if (clock_ns > h.clock_ns.load(std::memory_order_relaxed))
    h.clock_ns.store(clock_ns, std::memory_order_release);
}

void Ring::overdue(uint64_t seq, int64_t waited_ns) {
  RingHeader &h = header();
  h.overdue_ns.store(waited_ns, std::memory_order_release);
  h.overdue_seq.store(waited_ns > 0 ? seq + 1 : 0, std::memory_order_release);
}

bool Ring::deliver(uint64_t seq, std::string_view data, uint64_t number) {
  RingHeader &h = header();
  const uint64_t capacity = layout_.inbox_capacity, bytes = sizeof seq + data.size();
  const uint64_t total = aligned(sizeof(MessageHead) + bytes);
  if (total > capacity)
    broken("inbox: a message of ", bytes, " bytes does not fit ", capacity, " bytes");
  const uint64_t tail = h.inbox_tail.load(std::memory_order_acquire);
  check_counters("inbox", inbox_head_, tail, capacity);
  uint64_t free = capacity - (inbox_head_ - tail);
  const uint64_t room = capacity - (inbox_head_ & (capacity - 1));
  if (total > room) {
    // The pad is published at once: a message may need the room that the pad's consumption makes.
    if (room > free)
      return false;
    put_message(MessageType::kPad, room - sizeof(MessageHead), {}, {});
    free -= room;
  }
  if (total > free)
    return false;
  put_message(MessageType::kPayload, bytes, {reinterpret_cast<const char *>(&seq), sizeof seq}, data);
  h.delivered.store(number);
  ring_bell(h.inbox_bell);
  return true;
}

// Writes and publishes a message whose body is these parts, or of `bytes` that nobody reads.
void Ring::put_message(MessageType type, uint64_t bytes, std::string_view first, std::string_view second) {
  char *at = memory_ + layout_.inbox_offset + (inbox_head_ & (layout_.inbox_capacity - 1));
  const MessageHead head{static_cast<uint32_t>(bytes), static_cast<uint16_t>(type), 0};
  memcpy(at, &head, sizeof head);
  at += sizeof head;
  for (const std::string_view part : {first, second})
    at = std::copy(part.begin(), part.end(), at);
  inbox_head_ += aligned(sizeof head + bytes);
  header().inbox_head.store(inbox_head_, std::memory_order_release);
}

// ---- waiting --------------------------------------------------------------------------------------------------------

uint32_t wait_for_news(ServerPage &page, const std::vector<const Ring *> &rings, uint32_t seen, int64_t poll_ns,
                       int64_t limit_ns) {
  const int64_t end_ns = monotonic_ns() + limit_ns;
  // A shim publishes, bumps the bell, and only then looks whether anybody listens; the kernel compares the bell again
  // before it sleeps. So no bell is missed.
  page.listening.store(1);
  int64_t look_ns = monotonic_ns() + poll_ns;
  while (page.bell.load() == seen) {
    const int64_t now_ns = monotonic_ns();
    if (now_ns >= end_ns)
      break;
    if (now_ns >= look_ns) {
      if (std::any_of(rings.begin(), rings.end(), [](auto *ring) { return ring->has_news(); }))
        break;
      look_ns = now_ns + poll_ns;
    }
    const int64_t left_ns = std::min(look_ns, end_ns) - now_ns;
    const timespec limit{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    syscall(SYS_futex, &page.bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  page.listening.store(0);
  return page.bell.load();
}

} // namespace eidolon::agent
