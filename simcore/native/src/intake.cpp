#include "intake.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace eidolon {

namespace {

constexpr std::uint64_t kLongestSleepNs = std::uint64_t{1} << 62U;
constexpr std::uint32_t kWaits = 1; // in `pad` of an operation: a wait of the host comes behind it

bool hostless(std::uint8_t flags) { return (flags & (kNoHost | kBackground)) != 0; }

// Whether it costs host time and nothing else.
bool only_host(Op op, std::uint8_t flags) { return op == Op::kHost && (flags & kAsk) == 0; }

std::uint8_t flags_of(const EventRecord &record) {
  if (moves(record.kind)) {
    return record.has(RecordFlag::kInGraph) ? kNoHost : 0;
  }
  std::uint8_t flags = record.has(RecordFlag::kForeground) ? 0 : kBackground;
  if (record.has(RecordFlag::kBlocking) || record.kind == Kind::kCallback) {
    flags |= kAsk;
  }
  if (record.has(RecordFlag::kInGraph)) {
    flags |= kNoHost;
  }
  if (record.kind == Kind::kCollective && record.has(RecordFlag::kGroupMore)) {
    flags |= kGroupMore;
  }
  return flags;
}

} // namespace

Intake::Intake(Settings settings, Prices &prices, Meter &meter, Outline &outline)
    : settings_(settings), prices_(prices), meter_(meter), outline_(outline), calls_(kCallIds), signatures_(kCallIds) {
  signatures_[0].known = true;
}

// ---- Definitions ----

void Intake::define_call(std::uint32_t number, std::int64_t ns, std::uint32_t label) {
  calls_.at(number) = {label, ns};
  signatures_[number].known = true;
}

void Intake::define(std::uint32_t number, std::uint32_t label, bool compiled, bool step) {
  if (number >= signatures_.size()) {
    signatures_.resize(std::max<std::size_t>(number + 1, 2 * signatures_.size()));
  }
  Signature &signature = signatures_[number];
  signature.known = true;
  signature.compiled = compiled;
  signature.step = step;
  signature.label = label;
}

// ---- Opening a batch ----

void Intake::open(std::uint64_t seq, std::span<const EventRecord> records) {
  first_seq_ = seq;
  records_ = records;
  check(seq);
  operations_.clear();
  operations_.reserve(records_.size());
  next_ = waits_ = 0;
  new_lanes_.clear();
  new_calls_.clear();
  asks_.clear();
  at_mark_ = acted_ = idle_ = false;
  for (const EventRecord &record : records_) {
    if (on_stream(record.kind) && record.stream != last_lane_) {
      use_lane(record);
    }
    if (record.kind == Kind::kCollective && signatures_[record.sig].alone_ns == 0) {
      use_collective(record);
    }
    if (acts(record)) {
      acted_ = true;
      idle_ = record.kind == Kind::kIdle;
    }
  }
  std::sort(new_lanes_.begin(), new_lanes_.end(), [](const Lane &a, const Lane &b) { return a.stream < b.stream; });
  std::sort(new_calls_.begin(), new_calls_.end(),
            [](const Call &a, const Call &b) { return a.signature < b.signature; });
  gap_ns_ = lanes_.size() >= settings_.crowded_lanes ? settings_.crowded_ns : 0;
}

void Intake::use_lane(const EventRecord &record) {
  last_lane_ = record.stream;
  if (lanes_.insert(record.stream).second) {
    new_lanes_.push_back({record.stream, record.device});
  }
}

void Intake::use_collective(const EventRecord &record) {
  if (std::none_of(new_calls_.begin(), new_calls_.end(),
                   [&](const Call &call) { return call.signature == record.sig; })) {
    new_calls_.push_back({record.sig, record.device});
  }
}

void Intake::check(std::uint64_t seq) const {
  auto expected = static_cast<std::uint32_t>(seq);
  for (const EventRecord &record : records_) {
    if (record.seq != expected++ || record.kind >= Kind::kCount || !defined(record.sig) || record.call >= kCallIds ||
        !defined(record.call)) {
      refuse(seq);
    }
  }
}

// Says what is wrong with the batch.
void Intake::refuse(std::uint64_t seq) const {
  auto expected = static_cast<std::uint32_t>(seq);
  for (const EventRecord &record : records_) {
    if (record.seq != expected++) {
      throw std::invalid_argument("sequence numbers do not follow " + std::to_string(seq));
    }
  }
  for (const EventRecord &record : records_) {
    if (record.kind >= Kind::kCount) {
      throw std::invalid_argument("unknown kind " + std::to_string(static_cast<int>(record.kind)));
    }
  }
  for (const EventRecord &record : records_) {
    if (!defined(record.sig)) {
      throw std::invalid_argument("a record names signature " + std::to_string(record.sig) +
                                  ", which was never defined");
    }
  }
  throw std::invalid_argument("a record names a call that was never defined");
}

// ---- Translating ----

bool Intake::translate() {
  noted_.clear();
  launches_ = 0;
  for (; next_ < records_.size(); ++next_) {
    const EventRecord &record = records_[next_];
    if (record.kind == Kind::kMark && !at_mark_) {
      at_mark_ = true;
      if (signatures_[record.sig].step) {
        prices_.end_step();
      }
      return true;
    }
    at_mark_ = false;
    append(record);
  }
  return false;
}

Intake::Mark Intake::mark() const {
  if (next_ == records_.size()) {
    throw std::out_of_range("the batch is done: it stands at no mark");
  }
  return {first_seq_ + next_, records_[next_].sig};
}

void Intake::append(const EventRecord &record) {
  const std::uint64_t seq = first_seq_ + next_;
  const Signature &signature = signatures_[record.sig];
  const Op op = record.kind == Kind::kMark && signature.step ? Op::kMark : operation_of(record.kind);
  const std::uint8_t flags = flags_of(record);
  const std::int64_t folded_ns = fold(op, flags);
  Operation &operation = operations_.emplace_back(); // filled in its place: to copy it would cost as much as the rest
  operation.seq = seq;
  operation.op = op;
  operation.flags = flags;
  operation.lane = record.stream;
  const std::int64_t own_ns = host_ns(record);
  operation.host_ns = hostless(flags) ? 0 : own_ns;
  operation.value = record.kind == Kind::kSyncDevice ? record.device : record.kind == Kind::kMark ? 0 : record.value;
  std::int64_t alone_ns = 0;
  if (works(record.kind)) {
    const Prices::Priced priced = prices_.take(record.sig, record.value, gap_ns_);
    operation.work_ns = priced.ns;
    operation.label = priced.label;
    operation.work_class = priced.work_class;
    meter_.take(record.sig, record.value);
  } else if (record.kind == Kind::kCollective) {
    operation.label = signature.label;
    alone_ns = signature.alone_ns;
    prices_.join(record.sig);
  } else if ((op >= Op::kSyncLane && op != Op::kMark) || record.kind == Kind::kCommInit) {
    operation.label = calls_[record.call].label;
  }
  outline_.take(operation, alone_ns);
  operation.host_ns += folded_ns;
  if ((flags & kAsk) != 0) {
    const bool foreground = record.has(RecordFlag::kForeground) && record.kind != Kind::kCallback;
    asks_.push_back({seq, record.thread, record.kind, foreground});
  }
  if (reaches_beyond(record)) {
    noted_.push_back({record.kind, operations_.size() - 1, seq, record.flags, record.device, record.sig, record.value});
  }
  launches_ += is_autograd_launch(record) ? 1 : 0;
}

// Drops the last operation if it costs only host time, and returns what it costs: the next one, of which this is the
// kind and the flags, takes that over. It stays if the next one has no host time of its own and is needed itself.
std::int64_t Intake::fold(Op op, std::uint8_t flags) {
  if (operations_.empty() || !only_host(operations_.back().op, operations_.back().flags)) {
    return 0;
  }
  const bool needed = next_ + 1 == records_.size() || !only_host(op, flags);
  if (needed && hostless(flags)) {
    operations_.back().flags = 0; // it carries the host time of others
    return 0;
  }
  const std::int64_t host_ns = operations_.back().host_ns;
  operations_.pop_back();
  return host_ns;
}

// What the record's call costs, and what its thread did before it.
std::int64_t Intake::host_ns(const EventRecord &record) {
  const std::int64_t stated = record.host_ns + (settings_.measured ? 0 : calls_[record.call].ns);
  std::int64_t host = std::llrint(static_cast<double>(stated) * settings_.factor);
  if (record.kind == Kind::kMark) {
    entered_ = false;
  } else if (!settings_.measured && !entered_ && signatures_[record.sig].compiled) {
    entered_ = true; // the first compiled kernel of a step pays for what torch.compile does before it
    host += settings_.compiled_entry_ns;
  }
  if (polls(record.kind)) {
    host = std::max(host, settings_.poll_ns);
  } else if (record.kind == Kind::kSleep) {
    host += static_cast<std::int64_t>(std::min(record.value, kLongestSleepNs));
  }
  return moves(record.kind) ? 0 : host;
}

void Intake::join_on(std::size_t row, std::uint64_t handle, std::uint32_t lane) {
  Operation &operation = operations_.at(row);
  operation.value = handle;
  operation.lane = lane;
  if ((operation.flags & kAsk) != 0) {
    operation.flags &= static_cast<std::uint8_t>(~kAsk);
    operation.pad = kWaits;
    ++waits_;
  }
}

// ---- Closing ----

const std::vector<Operation> &Intake::close() {
  if (!operations_.empty() && only_host(operations_.back().op, operations_.back().flags)) {
    operations_.back().flags = 0; // as above
  }
  if (waits_ != 0) {
    add_waits();
  }
  return operations_;
}

void Intake::add_waits() {
  std::vector<Operation> out;
  out.reserve(operations_.size() + waits_);
  for (Operation operation : operations_) {
    const bool waits = std::exchange(operation.pad, 0) == kWaits;
    out.push_back(operation);
    if (waits) {
      operation.op = Op::kSyncLane;
      operation.flags = kAsk;
      operation.host_ns = 0;
      out.push_back(operation);
    }
  }
  operations_ = std::move(out);
  waits_ = 0;
}

} // namespace eidolon
