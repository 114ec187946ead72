#include "intake.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace eidolon {

namespace {

constexpr std::uint64_t kLongestSleepNs = std::uint64_t{1} << 62U;
constexpr std::uint32_t kWaits = 1; // in `pad` of an operation: a wait of the host comes behind it

bool hostless(const Operation &operation) { return (operation.flags & (kNoHost | kBackground)) != 0; }

// Whether it costs host time and nothing else.
bool only_host(const Operation &operation) { return operation.op == Op::kHost && (operation.flags & kAsk) == 0; }

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
  calls_[0].known = true;
}

// ---- Definitions ----

void Intake::define_call(std::uint32_t number, std::int64_t ns, std::uint32_t label) {
  calls_.at(number) = {true, label, ns};
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
  records_.assign(records.begin(), records.end());
  check(seq);
  operations_.clear();
  operations_.reserve(records_.size());
  waits_ = 0;
  new_lanes_.clear();
  new_calls_.clear();
  asks_.clear();
  at_mark_ = acted_ = idle_ = false;
  for (const EventRecord &record : records_) {
    if (on_stream(record.kind) && lanes_.insert(record.stream).second) {
      new_lanes_.push_back({record.stream, record.device});
    }
    if (record.kind == Kind::kCollective && signatures_[record.sig].alone_ns == 0 &&
        std::none_of(new_calls_.begin(), new_calls_.end(),
                     [&](const Call &call) { return call.signature == record.sig; })) {
      new_calls_.push_back({record.sig, record.device});
    }
    if (acts(record)) {
      acted_ = true;
      idle_ = record.kind == Kind::kIdle;
    }
  }
  std::sort(new_lanes_.begin(), new_lanes_.end(), [](const Lane &a, const Lane &b) { return a.stream < b.stream; });
  std::sort(new_calls_.begin(), new_calls_.end(),
            [](const Call &a, const Call &b) { return a.signature < b.signature; });
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
  while (operations_.size() < records_.size()) {
    const EventRecord &record = records_[operations_.size()];
    if (record.kind == Kind::kMark && !at_mark_) {
      at_mark_ = true;
      prices_.begin();
      return true;
    }
    at_mark_ = false;
    append(record, first_seq_ + operations_.size());
  }
  return false;
}

Intake::Mark Intake::mark() const { return {first_seq_ + operations_.size(), records_.at(operations_.size()).sig}; }

void Intake::append(const EventRecord &record, std::uint64_t seq) {
  Operation operation{.seq = seq, .op = operation_of(record.kind), .flags = flags_of(record), .lane = record.stream};
  operation.value = record.value;
  operation.host_ns = host_ns(record, hostless(operation));
  if (works(record.kind)) {
    const std::int64_t gap_ns = lanes_.size() >= settings_.crowded_lanes ? settings_.crowded_ns : 0;
    operation.work_ns = prices_.take(record.sig, record.value, gap_ns);
    operation.label = prices_.price(record.sig).label;
    operation.work_class = prices_.price(record.sig).work_class;
    meter_.take(record.sig, record.value);
  } else if (record.kind == Kind::kCollective) {
    operation.label = signatures_[record.sig].label;
  } else if (operation.op >= Op::kSyncLane || record.kind == Kind::kCommInit) {
    operation.label = calls_[record.call].label;
  }
  outline_.take(operation, record.kind == Kind::kCollective ? signatures_[record.sig].alone_ns : 0);
  if (record.kind == Kind::kSyncDevice) {
    operation.value = record.device;
  } else if (record.kind == Kind::kMark) {
    operation.op = signatures_[record.sig].step ? Op::kMark : Op::kHost;
    operation.value = 0;
  }
  if ((operation.flags & kAsk) != 0) {
    const bool foreground = record.has(RecordFlag::kForeground) && record.kind != Kind::kCallback;
    asks_.push_back({seq, record.thread, record.kind, foreground});
  }
  if (reaches_beyond(record)) {
    noted_.push_back({record.kind, operations_.size(), seq, record.flags, record.device, record.sig, record.value});
  }
  launches_ += is_autograd_launch(record) ? 1 : 0;
  operations_.push_back(operation);
}

// What the record's call costs, and what its thread did before it.
std::int64_t Intake::host_ns(const EventRecord &record, bool hostless) {
  const std::int64_t stated = record.host_ns + (settings_.measured ? 0 : calls_[record.call].ns);
  auto host = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(stated) * settings_.factor));
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
  return hostless || moves(record.kind) ? 0 : host;
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

// Drops records that cost only host time: the next operation on the host lane takes over their cost. The last one of
// the batch stays, and so does one with which the operation behind it is issued together.
std::vector<Operation> Intake::close() {
  std::vector<Operation> out;
  out.reserve(operations_.size() + waits_);
  const std::size_t count = operations_.size();
  const auto needed = [&](std::size_t row) { return row + 1 == count || !only_host(operations_[row]); };
  std::int64_t host_ns = 0;
  for (std::size_t row = 0; row < count; ++row) {
    Operation operation = operations_[row];
    host_ns += operation.host_ns;
    if (!needed(row) && !(hostless(operations_[row + 1]) && needed(row + 1))) {
      continue;
    }
    operation.host_ns = std::exchange(host_ns, 0);
    if (only_host(operation)) {
      operation.flags = 0; // it carries the host time of others
    }
    const bool waits = std::exchange(operation.pad, 0) == kWaits;
    out.push_back(operation);
    if (waits) {
      operation.op = Op::kSyncLane;
      operation.flags = kAsk;
      operation.host_ns = 0;
      out.push_back(operation);
    }
  }
  return out;
}

} // namespace eidolon
