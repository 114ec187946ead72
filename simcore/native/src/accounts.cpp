#include "accounts.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace eidolon {

namespace {
constexpr Time kFar = std::numeric_limits<Time>::max();
} // namespace

Accounts::RankState &Accounts::state(std::uint32_t rank) {
  if (rank >= ranks_.size()) {
    ranks_.resize(rank + 1);
  }
  RankState &state = ranks_[rank];
  if (state.segments.empty()) {
    state.segments.emplace_back();
  }
  return state;
}

void Accounts::add_lane(std::uint32_t rank, std::uint32_t lane, std::uint32_t device) {
  RankState &to = state(rank);
  std::uint32_t index = kNoDevice;
  if (device != kNoDevice) {
    const auto known = std::find_if(to.devices.begin(), to.devices.end(),
                                    [device](const Device &each) { return each.number == device; });
    index = static_cast<std::uint32_t>(known - to.devices.begin());
    if (known == to.devices.end()) {
      to.devices.push_back({.number = device, .log = {}, .settled = {}, .begin = 0});
    }
  }
  to.lanes.push_back({lane, index});
}

void Accounts::set_label(std::uint32_t label, Activity activity) {
  if (label >= labels_.size()) {
    labels_.resize(label + 1, kCompute);
  }
  labels_[label] = activity;
}

void Accounts::add_collective(std::uint32_t kind, std::uint32_t pattern, std::int64_t bytes, std::int64_t bus_bytes,
                              std::span<const std::int64_t> ranks, std::span<const std::int64_t> seqs) {
  if (ranks.size() != seqs.size() || ranks.empty()) {
    throw std::invalid_argument("a collective has as many calls as members");
  }
  std::uint32_t number = 0;
  if (free_.empty()) {
    number = static_cast<std::uint32_t>(collectives_.size());
    collectives_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Collective &made = collectives_[number];
  made.kind = kind;
  made.pattern = pattern;
  made.bytes = bytes;
  made.bus_bytes = bus_bytes;
  made.members.clear();
  made.left = ranks.size();
  made.last_start = made.end = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    state(static_cast<std::uint32_t>(ranks[i])).calls[static_cast<std::uint64_t>(seqs[i])] = number;
  }
}

void Accounts::mark(std::uint32_t rank, std::uint64_t seq, const Work &work) {
  RankState &to = state(rank);
  to.segments.back().mark = seq;
  to.segments.back().work = work;
  to.segments.emplace_back();
}

Accounts::Segment &Accounts::segment_of(RankState &state, std::uint64_t seq) {
  for (Segment &segment : state.segments) {
    if (seq <= segment.mark) {
      return segment;
    }
  }
  return state.segments.back();
}

std::uint32_t Accounts::device_of(const RankState &state, std::uint32_t lane) {
  const auto found =
      std::find_if(state.lanes.begin(), state.lanes.end(), [lane](const Lane &each) { return each.number == lane; });
  return found == state.lanes.end() ? kNoDevice : found->device;
}

void Accounts::take(std::uint32_t rank, std::span<const Span> spans) {
  RankState &from = state(rank);
  const std::span<const std::uint8_t> labels = labels_;
  Segment *segment = nullptr;
  std::uint64_t last = 0;   // of the segment
  Interval *open = nullptr; // the interval that the span before is part of; the next span mostly goes on with it ...
  std::uint32_t lane = 0;   // ... on its lane,
  std::uint8_t doing = kNothing; // and does the same
  for (const Span &span : spans) {
    std::uint8_t activity = kCommunicate;
    if (span.op == Op::kWork) {
      activity = span.label < labels.size() ? labels[span.label] : std::uint8_t{kCompute};
    } else if (span.op == Op::kCollective) {
      arrive(from, rank, span);
    } else {
      waited(span);
      continue;
    }
    if (open != nullptr && span.lane == lane && activity == doing && span.seq <= last && joins(*open, span)) {
      continue;
    }
    const std::uint32_t device = device_of(from, span.lane);
    if (device == kNoDevice || span.end == span.start || activity == kNothing) {
      continue;
    }
    if (segment == nullptr || span.seq > last) {
      segment = &segment_of(from, span.seq);
      last = segment->mark;
    }
    open = append(from, *segment, device, activity, span);
    lane = span.lane;
    doing = activity;
  }
}

void Accounts::waited(const Span &span) {
  if (!is_sync(span.op) && span.op != Op::kResume) {
    return;
  }
  const std::uint32_t label = span.op == Op::kResume ? resume_label_ : span.label;
  if (label >= waits_.size()) {
    waits_.resize(label + 1);
  }
  ++waits_[label].count;
  waits_[label].time += span.end - span.start;
}

bool Accounts::joins(Interval &interval, const Span &span) {
  const bool touches = span.start >= interval.start && span.start <= interval.end;
  interval.end = touches ? std::max(interval.end, span.end) : interval.end;
  return touches;
}

Accounts::Interval *Accounts::append(RankState &state, Segment &segment, std::uint32_t device, std::size_t activity,
                                     const Span &span) {
  if (segment.logs.size() <= device) {
    segment.logs.resize(state.devices.size());
  }
  Log &log = segment.logs[device];
  std::vector<Interval> &intervals = log[activity];
  if (intervals.size() > kMaxIntervals && &segment == &state.segments.front()) {
    unite(intervals);
    settle(state.devices[device], log, intervals[intervals.size() / 2].start);
  }
  if (intervals.empty() || !joins(intervals.back(), span)) {
    intervals.push_back({span.start, span.end, span.issue});
  }
  return &intervals.back();
}

void Accounts::arrive(RankState &state, std::uint32_t rank, const Span &span) {
  const auto call = state.calls.find(span.seq);
  if (call == state.calls.end()) {
    return; // a call that makes a communicator, which is no collective
  }
  const std::uint32_t number = call->second;
  state.calls.erase(call);
  Collective &collective = collectives_[number];
  collective.members.push_back({rank, span.seq, span.start});
  collective.last_start = std::max(collective.last_start, span.start);
  collective.end = std::max(collective.end, span.end);
  if (--collective.left > 0) {
    return;
  }
  for (const Member &member : collective.members) {
    segment_of(ranks_[member.rank], member.seq).wait += collective.last_start - member.start;
  }
  // It counts in the step of its least rank, whatever the order in which spans came.
  const auto least = std::min_element(collective.members.begin(), collective.members.end(),
                                      [](const Member &a, const Member &b) { return a.rank < b.rank; });
  done_.emplace_back(*least, number);
}

void Accounts::unite(std::vector<Interval> &intervals) {
  const auto before = [](const Interval &a, const Interval &b) {
    return a.start != b.start ? a.start < b.start : a.issue < b.issue;
  };
  if (!std::is_sorted(intervals.begin(), intervals.end(), before)) {
    std::sort(intervals.begin(), intervals.end(), before);
  }
  std::size_t kept = 0;
  for (const Interval &each : intervals) {
    if (kept > 0 && each.start <= intervals[kept - 1].end) {
      intervals[kept - 1].end = std::max(intervals[kept - 1].end, each.end);
    } else {
      intervals[kept++] = each;
    }
  }
  intervals.resize(kept);
}

void Accounts::settle(Device &device, Log &log, Time until) {
  std::array<std::size_t, kActivities> at{};
  for (std::vector<Interval> &intervals : log) {
    unite(intervals);
  }
  Row &row = device.settled;
  Time now = device.begin;
  while (now < until) {
    std::array<bool, kActivities> on{};
    Time next = until; // where something begins or ends
    Time issue = kFar; // of what begins next
    for (std::size_t a = 0; a < kActivities; ++a) {
      const std::vector<Interval> &intervals = log[a];
      while (at[a] < intervals.size() && intervals[at[a]].end <= now) {
        ++at[a];
      }
      if (at[a] == intervals.size()) {
        continue;
      }
      const Interval &each = intervals[at[a]];
      if (each.start <= now) {
        on[a] = true;
        next = std::min(next, each.end);
      } else if (each.start < next || (each.start == next && each.issue < issue)) {
        next = each.start;
        issue = each.issue;
      }
    }
    const Time length = next - now;
    if (on[kCompute]) {
      row.compute += length;
      row.overlap += on[kCommunicate] ? length : 0;
    } else if (on[kCommunicate]) {
      row.communication += length;
    } else if (on[kCopy]) {
      row.copy += length;
    } else {
      const Time late = issue == kFar ? 0 : std::clamp<Time>(issue - now, 0, length);
      row.host += late;
      row.idle += length - late;
    }
    now = next;
  }
  row.window += std::max<Time>(0, until - device.begin);
  device.begin = std::max(device.begin, until);
  for (std::size_t a = 0; a < kActivities; ++a) {
    std::erase_if(log[a], [until](const Interval &each) { return each.end <= until; });
  }
}

void Accounts::divide(std::span<Row> rows, const Work &work) {
  Time busy = 0;
  for (const Row &row : rows) {
    busy += row.compute;
  }
  for (Row &row : rows) {
    // where nothing is computed, all work belongs to the first device
    const double nothing = &row == rows.data() ? 1 : 0;
    const double share = busy > 0 ? static_cast<double>(row.compute) / static_cast<double>(busy) : nothing;
    for (std::size_t field = 0; field < work.size(); ++field) {
      row.work[field] = rows.size() == 1 ? work[field] : work[field] * share;
    }
  }
}

Accounts::Cut Accounts::cut(std::span<const std::int64_t> ranks, std::span<const std::int64_t> seqs,
                            std::span<const std::int64_t> ends) {
  if (ranks.size() != seqs.size() || ranks.size() != ends.size()) {
    throw std::invalid_argument("columns are of one length");
  }
  Cut result;
  std::unordered_map<std::uint32_t, std::uint64_t> upto;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<std::uint32_t>(ranks[i]);
    const auto seq = static_cast<std::uint64_t>(seqs[i]);
    upto[rank] = seq;
    RankState &from = state(rank);
    Segment step = take_segments(from, seq);
    for (std::size_t d = 0; d < from.devices.size(); ++d) {
      Device &device = from.devices[d];
      settle(device, step.logs[d], ends[i]);
      Row row = std::exchange(device.settled, {});
      row.rank = ranks[i];
      row.device = device.number;
      row.wait = d == 0 ? step.wait : 0;
      result.rows.push_back(row);
    }
    divide(std::span(result.rows).last(from.devices.size()), step.work);
  }
  std::erase_if(done_, [&upto, &result, this](const auto &entry) {
    const auto at = upto.find(entry.first.rank);
    if (at == upto.end() || entry.first.seq > at->second) {
      return false;
    }
    count(collectives_[entry.second], result);
    free_.push_back(entry.second);
    return true;
  });
  return result;
}

// Takes the segments up to a mark as one, with a log for each device.
Accounts::Segment Accounts::take_segments(RankState &from, std::uint64_t seq) {
  Segment all;
  all.logs.resize(from.devices.size());
  while (from.segments.front().mark <= seq) {
    const Segment &segment = from.segments.front();
    all.wait += segment.wait;
    for (std::size_t field = 0; field < all.work.size(); ++field) {
      all.work[field] += segment.work[field];
    }
    for (std::size_t d = 0; d < segment.logs.size(); ++d) {
      for (std::size_t a = 0; a < kActivities; ++a) {
        all.logs[d][a].insert(all.logs[d][a].end(), segment.logs[d][a].begin(), segment.logs[d][a].end());
      }
    }
    from.segments.pop_front();
    if (from.segments.empty()) {
      from.segments.emplace_back();
      break;
    }
  }
  return all;
}

void Accounts::count(const Collective &collective, Cut &cut) {
  if (cut.kinds.size() <= collective.kind) {
    cut.kinds.resize(collective.kind + 1);
  }
  if (cut.patterns.size() <= collective.pattern) {
    cut.patterns.resize(collective.pattern + 1);
  }
  Done &kind = cut.kinds[collective.kind];
  kind.kind = collective.kind;
  ++kind.count;
  kind.bytes += collective.bytes;
  kind.bus_bytes += collective.bus_bytes;
  kind.time += collective.end - collective.last_start;
  ++cut.patterns[collective.pattern];
}

std::vector<Accounts::Wait> Accounts::waits() const {
  std::vector<Wait> result;
  for (std::size_t label = 0; label < waits_.size(); ++label) {
    if (waits_[label].count > 0) {
      result.push_back({static_cast<std::int64_t>(label), waits_[label].count, waits_[label].time});
    }
  }
  return result;
}

std::size_t Accounts::live_intervals() const {
  std::size_t sum = 0;
  for (const RankState &rank : ranks_) {
    for (const Segment &segment : rank.segments) {
      for (const Log &log : segment.logs) {
        for (const std::vector<Interval> &intervals : log) {
          sum += intervals.size();
        }
      }
    }
  }
  return sum;
}

} // namespace eidolon
