// The minimum value layer: which device bytes are known, and work that waits for a payload.
//
// Known bytes lie in the device's address range itself (pages are committed only there); a set of intervals says which
// they are, and whether they are true or follow from a stated default (core.h, Origin). Everything else reads as zero.
// Work is applied when it is issued, which is stream order for one stream; where it touches bytes that a payload still
// has to bring, it is kept in a list and applied once it depends on nothing earlier in the list. The issuing thread
// never waits for that: work runs on the thread that takes the payload from the inbox.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "internal.h"
#include "shared_values.h"

namespace eidolon {
namespace {

thread_local int64_t expected = -1;
thread_local bool in_order = false; // this thread runs work whose turn has come: nothing that is deferred is before it

Span span_of(const void *pointer, size_t bytes) {
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  return {at, at + bytes};
}

using Spans = std::vector<Span>; // disjoint, ascending, none of them empty

Spans spans_of(std::span<const ByteRange> ranges) {
  Spans all;
  for (const ByteRange &range : ranges)
    if (range.bytes != 0)
      all.push_back(span_of(range.pointer, range.bytes));
  std::sort(all.begin(), all.end(), [](const Span &a, const Span &b) { return a.begin < b.begin; });
  size_t n = 0;
  for (const Span &next : all) // joins those that overlap
    if (n != 0 && next.begin < all[n - 1].end)
      all[n - 1].end = std::max(all[n - 1].end, next.end);
    else
      all[n++] = next;
  all.resize(n);
  return all;
}

struct Deferred {
  enum { kReceive, kWrite, kForget, kCopy, kRead, kSend, kWork } what;
  Span to, from;                     // device bytes (kRead: `to` is host memory); not kWork
  std::vector<char> data;            // kWrite, and kReceive once it arrived
  uint64_t seq = 0;                  // kReceive, kSend
  bool arrived = true;               // kReceive: the payload is here
  Origin origin = Origin::kNothing;  // kWrite
  uint32_t op = 0;                   // kRead: the operator that reads
  std::unique_ptr<ValueWork> work{}; // kWork
  Spans reads{}, writes{};           // kWork; `writes` also of kForget, beside `to`
};

// A read whose bytes came after it was issued, and were unknown or followed from a default.
struct Uncounted {
  uint32_t op;
  size_t bytes;
  Origin origin;
};

struct Values {
  std::recursive_mutex mutex;
  Intervals known;
  SharedValues shared;
  std::list<Deferred> deferred;
  Intervals written, touched; // by what is deferred: all bytes, whatever their origin
  std::vector<Uncounted> uncounted;
};
Values *values() {
  static Values *all = new Values;
  return all;
}

// While it lives, nobody else reads or changes values, and those of memory that other processes share are up to date.
class Access {
public:
  explicit Access(Values *v) : hold_(v->mutex), shared_(v->shared), known_(v->known), taken_(!v->shared.empty()) {
    if (taken_)
      shared_.begin(known_);
  }
  ~Access() {
    if (taken_)
      shared_.end(known_);
  }
  Access(const Access &) = delete;
  Access &operator=(const Access &) = delete;

private:
  std::lock_guard<std::recursive_mutex> hold_;
  SharedValues &shared_;
  Intervals &known_;
  bool taken_;
};

void forget_now(Values *v, Span s) {
  mark_unknown(v->known, s.begin, s.end);
  v->shared.changed(s.begin, s.end);
}

// Length of what is known from the begin of a span on.
size_t known_from(const Intervals &known, Span s) {
  auto next = known.upper_bound(s.begin);
  if (next == known.begin())
    return 0;
  --next;
  uintptr_t end = s.begin;
  while (next != known.end() && next->first <= end && next->second.end > end && end < s.end)
    end = (next++)->second.end;
  return std::min(end, s.end) - s.begin;
}

bool all_known(const Intervals &known, Span s) { return known_from(known, s) == s.end - s.begin; }

Origin origin_of(const Intervals &known, Span s) {
  Origin origin = Origin::kNothing;
  pieces(known, s, [&](uintptr_t, uintptr_t, const Piece *piece) {
    if (piece != nullptr)
      origin = std::max(origin, piece->origin);
  });
  return origin;
}

size_t read_now(Values *v, Span from, char *out) {
  size_t unknown = 0;
  pieces(v->known, from, [&](uintptr_t begin, uintptr_t end, const Piece *piece) {
    if (piece != nullptr) {
      memcpy(out + (begin - from.begin), reinterpret_cast<const void *>(begin), end - begin);
    } else {
      memset(out + (begin - from.begin), 0, end - begin);
      unknown += end - begin;
    }
  });
  return unknown;
}

void write_now(Values *v, Span to, const void *data, Origin origin) {
  if (to.begin == to.end)
    return;
  memcpy(reinterpret_cast<void *>(to.begin), data, to.end - to.begin);
  mark_known(v->known, to.begin, to.end, origin);
  v->shared.changed(to.begin, to.end);
}

void copy_now(Values *v, Span to, Span from) {
  struct Known {
    Span at; // from the begin of the copy
    Origin origin;
  };
  std::vector<Known> known;
  pieces(v->known, from, [&](uintptr_t begin, uintptr_t end, const Piece *piece) {
    if (piece != nullptr)
      known.push_back({{begin - from.begin, end - from.begin}, piece->origin});
  });
  std::vector<char> bytes; // through a buffer: the ranges may overlap
  for (const auto &[at, origin] : known)
    bytes.insert(bytes.end(), reinterpret_cast<char *>(from.begin + at.begin),
                 reinterpret_cast<char *>(from.begin + at.end));
  forget_now(v, to);
  size_t done = 0;
  for (const auto &[at, origin] : known) {
    write_now(v, {to.begin + at.begin, to.begin + at.end}, bytes.data() + done, origin);
    done += at.end - at.begin;
  }
}

// The form of a payload: abi.h, MessageType::kPayload.
void send_now(Values *v, uint64_t seq, Span from) {
  const size_t bytes = from.end - from.begin;
  if (bytes != 0 && all_known(v->known, from)) {
    ring_payload(seq, reinterpret_cast<const void *>(from.begin), bytes);
    return;
  }
  std::vector<char> out(bytes + (bytes + 7) / 8);
  size_t found = 0;
  pieces(v->known, from, [&](uintptr_t begin, uintptr_t end, const Piece *piece) {
    if (piece == nullptr)
      return;
    memcpy(out.data() + (begin - from.begin), reinterpret_cast<const void *>(begin), end - begin);
    for (size_t i = begin - from.begin; i < end - from.begin; ++i)
      out[bytes + i / 8] = static_cast<char>(out[bytes + i / 8] | (1 << (i % 8)));
    found += end - begin;
  });
  ring_payload(seq, out.data(), found == 0 ? 0 : out.size());
}

void receive_now(Values *v, Span to, const std::vector<char> &data) {
  const size_t bytes = to.end - to.begin;
  if (data.size() == bytes) {
    write_now(v, to, data.data(), Origin::kNothing);
    return;
  }
  forget_now(v, to);
  if (data.size() != bytes + (bytes + 7) / 8)
    return; // none is known
  auto is_known = [&](size_t i) { return (data[bytes + i / 8] >> (i % 8) & 1) != 0; };
  for (size_t begin = 0, end; begin < bytes; begin = end) {
    for (end = begin + 1; end < bytes && is_known(end) == is_known(begin);)
      ++end;
    if (is_known(begin))
      write_now(v, {to.begin + begin, to.begin + end}, data.data() + begin, Origin::kNothing);
  }
}

// What a read of the range found, if that is to be counted: unknown bytes, or a default.
std::optional<Uncounted> finding(const Values *v, uint32_t op, Span from, size_t unknown) {
  const Origin origin = unknown != 0 ? Origin::kNothing : origin_of(v->known, from);
  if (unknown == 0 && origin == Origin::kNothing)
    return std::nullopt;
  return Uncounted{op, unknown != 0 ? unknown : from.end - from.begin, origin};
}

void apply(Values *v, Deferred &d) {
  switch (d.what) {
  case Deferred::kReceive:
    receive_now(v, d.to, d.data);
    break;
  case Deferred::kWrite:
    write_now(v, d.to, d.data.data(), d.origin);
    break;
  case Deferred::kForget:
    forget_now(v, d.to);
    for (const Span &s : d.writes)
      forget_now(v, s);
    break;
  case Deferred::kCopy:
    copy_now(v, d.to, d.from);
    break;
  case Deferred::kRead: {
    const size_t unknown = read_now(v, d.from, reinterpret_cast<char *>(d.to.begin));
    if (const auto found = finding(v, d.op, d.from, unknown))
      v->uncounted.push_back(*found);
    break;
  }
  case Deferred::kSend:
    send_now(v, d.seq, d.from);
    break;
  case Deferred::kWork: {
    const bool before = std::exchange(in_order, true);
    d.work->run();
    in_order = before;
    break;
  }
  }
}

bool meets(const Intervals &all, Span s) {
  const auto next = all.lower_bound(s.end); // the first that begins behind it
  return s.begin < s.end && next != all.begin() && std::prev(next)->second.end > s.begin;
}

bool meet(const Intervals &all, const Spans &spans) {
  return std::any_of(spans.begin(), spans.end(), [&](const Span &s) { return meets(all, s); });
}

void add(Intervals &all, const Spans &spans, Span s) {
  if (s.begin < s.end)
    mark_known(all, s.begin, s.end, Origin::kNothing);
  for (const Span &one : spans)
    mark_known(all, one.begin, one.end, Origin::kNothing);
}

// Work that is deferred: what comes after it waits where it writes what this touches, or reads what this writes. So the
// bytes of all of it together say who waits, however much is deferred.
void note(Values *v, const Deferred &d) {
  add(v->written, d.writes, d.to);
  add(v->touched, d.writes, d.to);
  add(v->touched, d.reads, d.from);
}

void defer(Values *v, Deferred d) {
  note(v, d);
  v->deferred.push_back(std::move(d));
}

bool waits(const Values *v, const Deferred &d) { // for something that is deferred
  return !in_order && (meets(v->touched, d.to) || meet(v->touched, d.writes) || meets(v->written, d.from) ||
                       meet(v->written, d.reads));
}

// Applies what depends on nothing before it in the list. What is applied depends on earlier entries alone, so one pass
// finds all.
void settle_list(Values *v) {
  v->written.clear();
  v->touched.clear();
  for (auto d = v->deferred.begin(); d != v->deferred.end();) {
    if (d->arrived && !waits(v, *d)) { // for what was before it and stays
      apply(v, *d);
      d = v->deferred.erase(d);
    } else {
      note(v, *d);
      ++d;
    }
  }
}

// Applies at once if nothing deferred conflicts, else keeps for later.
void submit(Values *v, Deferred d) {
  if (d.arrived && !waits(v, d))
    apply(v, d);
  else
    defer(v, std::move(d));
}

// Whether bytes of the range still depend on a payload. Not so inside work: its turn has come.
bool coming(const Values *v, Span s) { return !in_order && meets(v->written, s); }

} // namespace

void value_unknown(void *pointer, size_t bytes) {
  if (!in_order)
    capture_effect(pointer, bytes, nullptr);
  Values *v = values();
  const Access access(v);
  if (bytes == 0 || (v->known.empty() && v->deferred.empty()))
    return;
  submit(v, {.what = Deferred::kForget, .to = span_of(pointer, bytes), .from = {}, .data = {}});
}

size_t value_known(const void *pointer, size_t bytes) {
  Values *v = values();
  Span s = span_of(pointer, bytes);
  const Access access(v);
  return coming(v, s) ? 0 : known_from(v->known, s);
}

Knowledge value_knowledge(const void *pointer, size_t bytes) {
  Values *v = values();
  Span s = span_of(pointer, bytes);
  const Access access(v);
  if (coming(v, s))
    return Knowledge::kComing;
  return all_known(v->known, s) ? Knowledge::kKnown : Knowledge::kUnknown;
}

Origin value_origin(const void *pointer, size_t bytes) {
  Values *v = values();
  const Access access(v);
  return origin_of(v->known, span_of(pointer, bytes));
}

void value_expect(int64_t value) { expected = value; }

size_t value_read(const void *pointer, size_t bytes, void *out) {
  value_settle(pointer, bytes);
  Values *v = values();
  const Access access(v);
  return read_now(v, span_of(pointer, bytes), static_cast<char *>(out));
}

static void write_in_order(void *pointer, size_t bytes, const void *data, Origin origin) {
  Values *v = values();
  const Access access(v);
  Span to = span_of(pointer, bytes);
  Deferred d{.what = Deferred::kWrite, .to = to, .from = {}, .data = {}, .origin = origin};
  if (!waits(v, d)) {
    write_now(v, to, data, origin);
    return;
  }
  const char *bytes_in = static_cast<const char *>(data);
  d.data.assign(bytes_in, bytes_in + bytes);
  defer(v, std::move(d));
}

void value_write(void *pointer, size_t bytes, const void *data) {
  write_in_order(pointer, bytes, data, Origin::kNothing);
}

void value_computed(void *pointer, size_t bytes, const void *data, Origin origin) {
  if (!in_order)
    capture_effect(pointer, bytes, data);
  write_in_order(pointer, bytes, data, origin);
}

void fill_bytes(void *to, size_t bytes, unsigned value, size_t element_bytes) {
  if (element_bytes == 1) {
    memset(to, static_cast<int>(value & 0xff), bytes);
    return;
  }
  char *out = static_cast<char *>(to);
  size_t done = std::min(bytes, element_bytes);
  memcpy(out, &value, done); // little-endian
  for (; done < bytes; done += std::min(done, bytes - done))
    memcpy(out + done, out, std::min(done, bytes - done));
}

void value_fill(void *pointer, size_t bytes, unsigned value, size_t element_bytes) {
  const std::unique_ptr<char[]> data(new char[bytes]);
  fill_bytes(data.get(), bytes, value, element_bytes);
  value_write(pointer, bytes, data.get());
}

void value_copy(void *to, const void *from, size_t bytes) {
  Values *v = values();
  const Access access(v);
  if (bytes == 0 || (v->known.empty() && v->deferred.empty()))
    return;
  submit(v, {.what = Deferred::kCopy, .to = span_of(to, bytes), .from = span_of(from, bytes), .data = {}});
}

// A read that an operator's value_expect foretold: delivered, not unknown.
static bool foretold(void *out, size_t bytes) {
  if (expected < 0 || (bytes != 1 && bytes != 4 && bytes != 8))
    return false;
  memcpy(out, &expected, bytes); // little-endian
  expected = -1;
  return true;
}

static void count_read(const Uncounted &read) {
  const signatures::Read fields = {.op = read.op, .default_ = static_cast<int64_t>(read.origin)};
  emit({.kind = Kind::kUnknownRead, .sig = signature("device-to-host copy", fields), .value = read.bytes});
}

void value_read_ordered(const void *pointer, size_t bytes, void *out) {
  std::optional<Uncounted> found;
  {
    Values *v = values();
    const Access access(v);
    Deferred d{.what = Deferred::kRead,
               .to = span_of(out, bytes),
               .from = span_of(pointer, bytes),
               .data = {},
               .op = current_operator()};
    if (waits(v, d)) {
      defer(v, std::move(d));
      return;
    }
    found = finding(v, d.op, d.from, read_now(v, d.from, static_cast<char *>(out)));
  }
  if (found && !foretold(out, bytes))
    count_read(*found);
}

void value_count_reads() {
  Values *v = values();
  std::vector<Uncounted> reads;
  {
    const Access access(v);
    reads.swap(v->uncounted);
  }
  for (const Uncounted &read : reads)
    count_read(read);
}

void value_work(ValueWork *work, std::span<const ByteRange> reads, std::span<const ByteRange> writes) {
  Deferred d{.what = Deferred::kWork,
             .to = {},
             .from = {},
             .data = {},
             .work = std::unique_ptr<ValueWork>(work),
             .reads = spans_of(reads),
             .writes = spans_of(writes)};
  Values *v = values();
  const Access access(v);
  submit(v, std::move(d));
}

void value_receive(uint64_t seq, void *to, size_t bytes) {
  Values *v = values();
  const Access access(v);
  defer(v,
        {.what = Deferred::kReceive, .to = span_of(to, bytes), .from = {}, .data = {}, .seq = seq, .arrived = false});
}

void value_send(uint64_t seq, const void *from, size_t bytes) {
  Values *v = values();
  const Access access(v);
  submit(v, {.what = Deferred::kSend, .to = {}, .from = span_of(from, bytes), .data = {}, .seq = seq});
}

void value_arrived(uint64_t seq, const void *data, size_t bytes) {
  Values *v = values();
  const Access access(v);
  for (Deferred &d : v->deferred)
    if (d.what == Deferred::kReceive && d.seq == seq && !d.arrived) {
      const char *in = static_cast<const char *>(data);
      d.data.assign(in, in + bytes);
      d.arrived = true;
      break;
    }
  settle_list(v);
}

bool value_pending(const void *pointer, size_t bytes) {
  Values *v = values();
  const Access access(v);
  return coming(v, span_of(pointer, bytes));
}

bool value_nothing_known(const void *pointer, size_t bytes) {
  Values *v = values();
  const Span s = span_of(pointer, bytes);
  const Access access(v);
  bool any = bytes == 0 || coming(v, s);
  pieces(v->known, s, [&](uintptr_t, uintptr_t, const Piece *piece) { any = any || piece != nullptr; });
  return !any;
}

void value_settle(const void *pointer, size_t bytes) {
  if (in_order)
    return;
  ring_drain_inbox();
  while (value_pending(pointer, bytes))
    ring_wait_inbox(20); // ends the process if the run failed or the agent is gone
}

void value_forget(uintptr_t begin, uintptr_t end) {
  Values *v = values();
  {
    const Access access(v);
    v->shared.leave(begin, end);
    const Span freed{begin, end};
    const auto inside = [&](const Span &s) { return s.begin >= begin && s.end <= end; };
    // Other work may still read what is to come for the memory. Then it is freed in its turn, and keeps its pages.
    const bool read = std::any_of(v->deferred.begin(), v->deferred.end(), [&](const Deferred &d) {
      const bool leads_out = d.what == Deferred::kWork ? !std::all_of(d.writes.begin(), d.writes.end(), inside)
                                                       : d.from.meets(freed) && !inside(d.to);
      const auto meets_it = [&](const Span &s) { return s.meets(freed); };
      return leads_out && (d.from.meets(freed) || std::any_of(d.reads.begin(), d.reads.end(), meets_it));
    });
    if (read) {
      submit(v, {.what = Deferred::kForget, .to = freed, .from = {}, .data = {}});
      return;
    }
    // Otherwise what was to come for it has nowhere to go. What else such work would have written is unknown.
    v->deferred.remove_if(
        [&](const Deferred &d) { return d.what != Deferred::kRead && d.to.meets(freed) && inside(d.to); });
    for (Deferred &d : v->deferred)
      if (std::erase_if(d.writes, inside) != 0) {
        d.what = Deferred::kForget;
        d.work.reset();
        d.reads.clear();
      }
    forget_now(v, freed);
    settle_list(v);
  }
  uintptr_t first = (begin + 4095) & ~uintptr_t{4095}, last = end & ~uintptr_t{4095};
  if (first < last)
    madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
}

void value_share(const char *name, void *pointer, size_t bytes) {
  Values *v = values();
  const Access access(v);
  v->shared.share(v->known, name, reinterpret_cast<uintptr_t>(pointer), bytes);
}

void value_join(const char *name, void *pointer, size_t bytes) {
  Values *v = values();
  const Access access(v);
  v->shared.join(name, reinterpret_cast<uintptr_t>(pointer), bytes);
}

void value_leave_all() {
  Values *v = values();
  const Access access(v);
  v->shared.leave(0, UINTPTR_MAX);
}

} // namespace eidolon
