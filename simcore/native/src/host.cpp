// Rank: its host lane. Operations are issued in program order, and un-issued in the opposite order.
#include <algorithm>

#include "check.h"
#include "rank.h"

namespace eidolon {

void Rank::ingest(const Operation &operation) {
  Pending pending;
  pending.op = operation;
  ops_.push_back(pending);
  ++counters.operations;
  owed += (operation.flags & kAsk) != 0 ? 1 : 0;
}

Time Rank::bound() const {
  if (ended || idle || waiting_ || stalled_ || next_ < ops_.end()) {
    return kNever;
  }
  return clock_;
}

bool Rank::acting() const {
  return !ended && !idle && !host_blocked() && !owes_unissued() &&
         std::all_of(asks.begin(), asks.end(),
                     [](const Ask &ask) { return ask.background || ask.kind == Op::kCallback; });
}

Time Rank::late_time() const {
  return next_ < ops_.end() && !waiting_ && is_late(ops_[next_].op, issue_at_) ? issue_at_ : kNever;
}

// When the operation is issued. While the launch queue is full it is kNever, and `stalled_` is set.
Time Rank::issue_time(const Operation &op) {
  Time time = clock_;
  if (op.op == Op::kResume) {
    time = std::max(time, static_cast<Time>(op.value));
  }
  time += is_hostless(op) ? 0 : op.host_ns;
  stalled_ = false;
  const bool in_group = op.op == Op::kCollective && !groups_.empty() && !groups_.back().closed;
  if (settings_.launch_depth > 0 && is_launch(op) && !in_group) {
    const Ring<Ref> &launches = device_of(lane_index(op.lane)).launches;
    if (launches.end() >= settings_.launch_depth) {
      const std::uint64_t at = launches.end() - settings_.launch_depth;
      const Time end = at < launches.first() ? 0 : end_of(launches[at]);
      if (end == kNever) {
        stalled_ = true;
        stall_ = launches[at];
        return kNever;
      }
      time = std::max(time, end);
    }
  }
  return time;
}

bool Rank::issue_next(Time until, const std::vector<RateTable> &tables) {
  if (next_ == ops_.end()) {
    return false;
  }
  if (waiting_) {
    return finish_wait();
  }
  Pending &pending = ops_[next_];
  const Time time = issue_time(pending.op);
  issue_at_ = time;
  if (time == kNever || time > until || is_late(pending.op, time)) {
    return false;
  }
  pending.before = clock_;
  pending.issue = time;
  pending.table_before = table_;
  apply(pending, tables);
  if (holds_host(pending.op)) {
    waiting_ = true;
    finish_wait();
    return true;
  }
  clock_ = time;
  ++next_;
  if (!settings_.journal) {
    ops_.pop_front();
  }
  return true;
}

std::vector<Ref> Rank::targets(const Operation &op) const {
  std::vector<Ref> refs;
  const auto last_of = [&](std::uint32_t lane) {
    if (!lanes_[lane].nodes.empty()) {
      refs.push_back({lanes_[lane].nodes.end() - 1, lane, 0});
    }
  };
  switch (op.op) {
  case Op::kSyncLane:
  case Op::kQueryLane:
    last_of(lanes_by_number_.at(op.lane));
    break;
  case Op::kSyncKey:
  case Op::kQueryKey:
  case Op::kKeyTime:
    if (const auto at = keys_.find(op.value); at != keys_.end()) {
      refs.push_back(at->second);
    }
    break;
  case Op::kSyncDevice:
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      if (devices_[lanes_[i].device].number == op.value) {
        last_of(i);
      }
    }
    break;
  case Op::kMark:
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      last_of(i);
    }
    break;
  default:
    break;
  }
  return refs;
}

bool Rank::finish_wait() {
  const Pending &pending = ops_[next_];
  Time time = pending.issue;
  for (const Ref &ref : wait_refs_) {
    const Time end = end_of(ref);
    if (end == kNever) {
      return false;
    }
    time = std::max(time, end);
  }
  const Operation &op = pending.op;
  waits_.push_back({next_, time,
                    Span{.seq = op.seq,
                         .lane = op.lane,
                         .label = op.label,
                         .op = op.op,
                         .start = pending.issue,
                         .end = time,
                         .issue = pending.issue}});
  if (!asks.empty() && asks.back().op == next_) {
    asks.back().done = time;
  }
  waiting_ = false;
  clock_ = time;
  ++next_;
  if (!settings_.journal) {
    ops_.pop_front();
  }
  return true;
}

void Rank::add_ask(const Operation &op, Time issue, std::vector<Ref> refs) {
  if ((op.flags & kAsk) == 0) {
    return;
  }
  Ask ask;
  ask.op = next_;
  ask.seq = op.seq;
  ask.issue = issue;
  ask.refs = std::move(refs);
  ask.kind = op.op;
  ask.blocks = holds_host(op);
  ask.done = ask.blocks ? kNever : issue;
  ask.background = (op.flags & kBackground) != 0;
  if (op.op == Op::kKeyTime) {
    ask.key_time = gone_key_time(op);
  }
  asks.push_back(std::move(ask));
}

Time Rank::end_of(const Ask &ask) const {
  if (ask.kind == Op::kKeyTime && ask.refs.empty()) {
    return ask.key_time;
  }
  Time end = 0;
  for (const Ref &ref : ask.refs) {
    end = std::max(end, end_of(ref));
  }
  return end;
}

// Reads of background threads do not wait for a host that stands still. They are answered once, with what is known.
void Rank::overtake(std::vector<Answer> &answers) {
  if (!host_blocked() || !owes_unissued()) {
    return;
  }
  for (std::uint64_t i = next_ + 1; i < ops_.end(); ++i) {
    Operation &op = ops_[i].op;
    if ((op.flags & kAsk) == 0 || (op.flags & kBackground) == 0 || !is_read(op.op)) {
      continue;
    }
    Ask ask;
    ask.kind = op.op;
    ask.refs = targets(op);
    ask.key_time = gone_key_time(op);
    const Time end = end_of(ask);
    std::int64_t value = 0;
    if (op.op == Op::kKeyTime) {
      if (end == kNever) {
        continue; // an event's time is worth waiting for
      }
      value = end;
    } else if (op.op != Op::kClock) {
      value = end <= clock() ? 1 : 0;
    }
    answers.push_back({number_, op.seq, clock(), value});
    op.flags &= static_cast<std::uint8_t>(~kAsk);
    --owed;
  }
}

Time Rank::jumped(const Ask &ask) const {
  for (std::uint64_t i = waits_.end(); i > waits_.first(); --i) {
    if (waits_[i - 1].op == ask.op) {
      return waits_[i - 1].span.end - waits_[i - 1].span.start;
    }
  }
  return 0;
}

Time Rank::gone_key_time(const Operation &op) const { return keys_.contains(op.value) ? kNever : gone_.find(op.value); }

void Rank::answered(const Ask &ask) {
  --owed;
  if (ask.op >= ops_.first() && ask.op < ops_.end()) {
    ops_[ask.op].op.flags &= static_cast<std::uint8_t>(~kAsk);
  }
}

void Rank::apply(Pending &pending, const std::vector<RateTable> &tables) {
  const Operation &op = pending.op;
  switch (op.op) {
  case Op::kWork:
  case Op::kCallback:
  case Op::kRecord:
    append_work(pending, tables);
    break;
  case Op::kWait:
    append_wait(pending);
    break;
  case Op::kCollective:
    append_member(pending);
    break;
  case Op::kMark: {
    PendingMark mark{op.seq, pending.issue, 0, targets(op)};
    for (const Lane &lane : lanes_) {
      mark.end = std::max(mark.end, lane.floor);
    }
    marks_.push_back(std::move(mark));
    if (op.value != 0) {
      table_ = static_cast<std::uint16_t>(op.value);
    }
    add_ask(op, pending.issue, {});
    break;
  }
  case Op::kResume: {
    const Time jumped = std::max(clock_, static_cast<Time>(op.value));
    waits_.push_back({next_, pending.issue,
                      Span{.seq = op.seq,
                           .lane = op.lane,
                           .label = op.label,
                           .op = op.op,
                           .start = clock_,
                           .end = jumped,
                           .issue = clock_}});
    add_ask(op, pending.issue, {});
    break;
  }
  case Op::kSyncLane:
  case Op::kSyncKey:
  case Op::kSyncDevice: {
    std::vector<Ref> refs = targets(op);
    if (holds_host(op)) {
      wait_refs_ = refs;
    }
    add_ask(op, pending.issue, std::move(refs));
    break;
  }
  default:
    add_ask(op, pending.issue, targets(op));
    break;
  }
}

void Rank::append_work(Pending &pending, const std::vector<RateTable> &tables) {
  const Operation &op = pending.op;
  const std::uint32_t index = lane_index(op.lane);
  Lane &lane = lanes_[index];
  Node node;
  node.issue = pending.issue;
  node.seq = op.seq;
  node.op = op.op;
  node.label = op.label;
  node.work_class = op.work_class;
  node.table = table_;
  if (op.op == Op::kWork) {
    node.work = coupled || table_ == 0
                    ? op.work_ns
                    : RateTable::scaled(op.work_ns, tables[table_].rates(op.work_class)[RateTable::kAlone]);
  }
  node.key = op.op == Op::kRecord ? op.value : 0;
  lane.append_work(node);
  ++counters.nodes;
  pending.appended = true;
  const Ref ref{lane.nodes.end() - 1, index, 0};
  if (op.op == Op::kRecord) {
    log_key(op.value);
    keys_[op.value] = ref;
  } else if (settings_.launch_depth > 0 && is_launch(op)) {
    Ring<Ref> &launches = devices_[lane.device].launches;
    launches.push_back(ref);
    pending.launched = true;
    if (!settings_.journal && launches.size() > settings_.launch_depth) {
      launches.pop_front();
    }
  }
  if ((op.flags & kAsk) != 0) {
    add_ask(op, pending.issue, {ref});
  }
}

void Rank::log_key(std::uint64_t key) {
  if (settings_.journal) {
    const auto at = keys_.find(key);
    key_undo_.push_back({key, next_, at == keys_.end() ? Ref{} : at->second});
  }
}

void Rank::append_wait(Pending &pending) {
  const Operation &op = pending.op;
  const std::uint32_t index = lane_index(op.lane);
  const auto at = keys_.find(op.value);
  // There is nothing to wait for: the key was never recorded, has ended before all that may still happen, or is of
  // this very lane.
  if (at != keys_.end() && at->second.lane != index) {
    Lane &lane = lanes_[index];
    Node node;
    node.issue = pending.issue;
    node.seq = op.seq;
    node.op = op.op;
    lane.append_point(Segment::Kind::kWait, node).target = at->second;
    ++counters.nodes;
    pending.appended = true;
  }
  add_ask(op, pending.issue, {});
}

void Rank::append_member(Pending &pending) {
  const Operation &op = pending.op;
  const std::uint32_t index = lane_index(op.lane);
  const bool fresh = groups_.empty() || groups_.back().closed;
  if (fresh) {
    groups_.push_back({});
    ++open_groups_;
  }
  const std::uint64_t number = groups_.end() - 1;
  Group &group = groups_.back();
  group.members.push_back({op.value, op.seq, pending.issue, kNever, op.label, index});
  group.issue = pending.issue;
  const auto same = [&](const Join &join) { return join.lane == index; };
  if (std::none_of(group.joins.begin(), group.joins.end(), same)) {
    Lane &lane = lanes_[index];
    Node node;
    node.issue = pending.issue;
    node.seq = op.seq;
    node.op = op.op;
    lane.append_point(Segment::Kind::kJoin, node).group = number;
    ++counters.nodes;
    group.joins.push_back({lane.segments.end() - 1, index, 0});
    pending.appended = true;
  }
  if (fresh && settings_.launch_depth > 0 && is_launch(op)) {
    Ring<Ref> &launches = devices_[lanes_[index].device].launches;
    launches.push_back({lanes_[index].nodes.end() - 1, index, 0});
    pending.launched = true;
    if (!settings_.journal && launches.size() > settings_.launch_depth) {
      launches.pop_front();
    }
  }
  if ((op.flags & kGroupMore) == 0) {
    group.closed = true;
    try_reach(number);
  }
  if ((op.flags & kAsk) != 0) {
    add_ask(op, pending.issue, {});
  }
}

void Rank::unissue(Pending &pending) {
  const Operation &op = pending.op;
  if (pending.launched) {
    device_of(lane_index(op.lane)).launches.pop_back();
  }
  if (pending.appended) {
    lanes_[lane_index(op.lane)].pop_node();
  }
  if (op.op == Op::kRecord) {
    const KeyUndo &undo = key_undo_.back();
    EIDOLON_CHECK(undo.key == op.value, "keys are undone in the opposite order");
    if (undo.before.lane != Ref::kNone) {
      keys_[undo.key] = undo.before;
    } else {
      keys_.erase(undo.key);
    }
    key_undo_.pop_back();
  } else if (op.op == Op::kMark) {
    marks_.pop_back();
  } else if (op.op == Op::kCollective) {
    Group &group = groups_.back();
    EIDOLON_CHECK(group.reach == kNever && group.end == kNever, "a group is undone before its members");
    group.members.pop_back();
    if (pending.appended) {
      group.joins.pop_back();
    }
    group.closed = false;
    if (group.members.empty()) {
      groups_.pop_back();
      --open_groups_;
    } else {
      group.issue = group.members.back().issue;
    }
  }
  table_ = pending.table_before;
  clock_ = pending.before;
  pending.issue = kNever;
  pending.appended = pending.launched = false;
}

void Rank::cut_host(Time time) {
  stalled_ = false;
  issue_at_ = kNever;
  if (waiting_ && ops_[next_].issue > time) {
    waiting_ = false;
    unissue(ops_[next_]);
  }
  while (!waiting_ && next_ > ops_.first()) {
    Pending &last = ops_[next_ - 1];
    const bool waited = !waits_.empty() && waits_.back().op == next_ - 1;
    if ((waited ? waits_.back().over : last.issue) <= time) {
      break;
    }
    --next_;
    if (waited) {
      waits_.pop_back();
      if (last.issue <= time) { // the host has reached the synchronisation, but not left it
        waiting_ = true;
        clock_ = last.before;
        wait_refs_ = targets(last.op);
        break;
      }
    }
    unissue(last);
  }
  const std::uint64_t kept = next_ + (waiting_ ? 1 : 0);
  while (!asks.empty() && asks.back().op >= kept) {
    asks.pop_back();
  }
  if (waiting_ && !asks.empty() && asks.back().op == next_) {
    asks.back().done = kNever;
  }
  // This is the time of the next operation for `next_time`, if nothing new happens before it.
  if (coupled && !waiting_ && next_ < ops_.end()) {
    issue_at_ = issue_time(ops_[next_].op);
  }
}

} // namespace eidolon
