// Rank: evaluation of lanes, groups, undo and forgetting. The host lane is in host.cpp.
#include "rank.h"

#include <algorithm>

#include "check.h"

namespace eidolon {

void Rank::add_lane(std::uint32_t number, std::uint32_t device) {
  auto at = std::find_if(devices_.begin(), devices_.end(), [&](const Device &d) { return d.number == device; });
  if (at == devices_.end()) {
    Device fresh;
    fresh.number = device;
    devices_.push_back(std::move(fresh));
    at = devices_.end() - 1;
  }
  Lane lane;
  lane.number = number;
  lane.device = static_cast<std::uint32_t>(at - devices_.begin());
  lane.coupled = coupled;
  lanes_by_number_[number] = static_cast<std::uint32_t>(lanes_.size());
  lanes_.push_back(std::move(lane));
  predicted_.push_back(kNever);
}

void Rank::set_coupled() {
  coupled = true;
  for (Lane &lane : lanes_) {
    lane.coupled = true;
  }
}

std::uint32_t Rank::lane_index(std::uint32_t lane) {
  if (lane != last_lane_) {
    last_lane_index_ = lanes_by_number_.at(lane);
    last_lane_ = lane;
  }
  return last_lane_index_;
}

Time Rank::last_time() const {
  Time last = clock();
  for (const Lane &lane : lanes_) {
    last = std::max(last, lane.base());
  }
  return last;
}

void Rank::run(const std::vector<RateTable> &tables) {
  bool moved = true;
  while (moved) {
    moved = false;
    while (issue_next(kNever, tables)) {
      moved = true;
    }
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      while (lanes_[i].blocked() && advance_lane(i, kNever)) {
        moved = true;
      }
    }
  }
}

bool Rank::advance_lane(std::uint32_t number, Time) {
  Lane &lane = lanes_[number];
  Segment &segment = lane.segments[lane.known];
  if (segment.kind == Segment::Kind::kPlain) {
    lane.evaluate_plain();
    return true;
  }
  return advance_point(lane, segment, std::max(lane.base(), lane.nodes[segment.first].issue));
}

// Goes on with a join or a wait at which the lane has stood since `arrival`.
bool Rank::advance_point(Lane &lane, Segment &segment, Time arrival) {
  if (segment.kind == Segment::Kind::kJoin) {
    if (!segment.begun) {
      segment.begun = true;
      segment.base = arrival;
      ++groups_[segment.group].arrived;
      try_reach(segment.group);
    }
    if (groups_[segment.group].end == kNever) {
      return false;
    }
    segment.end = groups_[segment.group].end;
    ++lane.known;
    return true;
  }
  const Time end = end_of(segment.target);
  if (end == kNever) {
    return false;
  }
  segment.end = std::max(lane.base(), end);
  ++lane.known;
  return true;
}

void Rank::try_reach(std::uint64_t number) {
  Group &group = groups_[number];
  if (!group.closed || group.arrived != group.joins.size() || group.reach != kNever) {
    return;
  }
  group.reach = group.issue;
  for (const Join &join : group.joins) {
    group.reach = std::max(group.reach, lanes_[join.lane].segments[join.segment].base);
  }
  for (std::uint32_t i = 0; i < group.members.size(); ++i) {
    events.push_back({group.members[i].collective, number, i, 0, group.reach});
  }
}

void Rank::member_ended(std::uint64_t number, std::uint32_t member, Time end) {
  Group &group = groups_[number];
  group.members[member].end = end;
  Time latest = 0;
  for (const Member &each : group.members) {
    if (each.end == kNever) {
      return;
    }
    latest = std::max(latest, each.end);
  }
  group.end = latest;
  --open_groups_;
}

// ---- Coupled ranks ----

void Rank::member_under_way(std::uint64_t group, std::uint32_t member, int change, Time time) {
  Activity &activity = devices_[lanes_[groups_[group].members[member].lane].device].activity;
  const Activity::Piece &present = activity.present();
  EIDOLON_CHECK(time >= present.time, "a device's clock is monotone");
  activity.set(time, present.collectives + change, present.busy, present.left);
}

bool Rank::communicated_since(Time time) const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [&](const Device &device) { return device.activity.communicated_since(time); });
}

std::int64_t Rank::left_of(std::uint32_t number) const {
  const auto at = std::find_if(devices_.begin(), devices_.end(), [&](const Device &d) { return d.number == number; });
  return at == devices_.end() ? kReferenceRate : at->activity.present().left;
}

Time Rank::next_time() const {
  Time next = next_ < ops_.end() && !waiting_ && !stalled_ ? issue_at_ : kNever;
  for (const Time time : predicted_) {
    next = std::min(next, time);
  }
  return next;
}

void Rank::predict(std::uint32_t number, const std::vector<RateTable> &tables) {
  const Lane &lane = lanes_[number];
  predicted_[number] = kNever;
  if (!lane.blocked()) {
    return;
  }
  const Segment &segment = lane.segments[lane.known];
  if (segment.kind == Segment::Kind::kPlain && segment.begun) {
    const Node &node = lane.nodes[segment.first];
    predicted_[number] =
        devices_[lane.device].activity.finish(segment.base, node.work, tables[node.table].rates(node.work_class));
  }
}

void Rank::step(Time time, const std::vector<RateTable> &tables) {
  EIDOLON_CHECK(time >= now, "a rank's clock is monotone");
  now = time;
  bool moved = true;
  while (moved) {
    moved = false;
    while (issue_next(time, tables)) {
      moved = true;
    }
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      while (lanes_[i].blocked() && advance_coupled(i, time)) {
        moved = true;
      }
    }
  }
  for (std::uint32_t d = 0; d < devices_.size(); ++d) {
    weigh(d, time, tables);
  }
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    predict(i, tables);
  }
}

// Notes what the device does from now on, and what that leaves to its collectives. The most demanding lane decides.
void Rank::weigh(std::uint32_t number, Time time, const std::vector<RateTable> &tables) {
  Device &device = devices_[number];
  const Activity::Piece before = device.activity.present();
  std::int32_t busy = 0;
  std::int64_t left = kReferenceRate;
  for (const Lane &lane : lanes_) {
    if (lane.device != number || !lane.blocked()) {
      continue;
    }
    const Segment &segment = lane.segments[lane.known];
    if (segment.kind != Segment::Kind::kPlain || !segment.begun) {
      continue;
    }
    ++busy;
    if (before.collectives > 0) {
      const Node &node = lane.nodes[segment.first];
      left = std::min(left, tables[node.table].rates(node.work_class)[RateTable::kLeaves]);
    }
  }
  device.activity.set(time, before.collectives, busy, left);
  if (left != before.left) {
    pressed.push_back(device.number);
  }
}

bool Rank::advance_coupled(std::uint32_t number, Time time) {
  Lane &lane = lanes_[number];
  Segment &segment = lane.segments[lane.known];
  if (segment.kind != Segment::Kind::kPlain) {
    return advance_point(lane, segment, time);
  }
  const Node &node = lane.nodes[segment.first];
  if (!segment.begun) {
    segment.begun = true;
    segment.base = std::max(lane.base(), node.issue);
    predicted_[number] = kNever; // stays so until the device's activity is known
    EIDOLON_CHECK(segment.base == time || node.work == 0, "coupled work starts at the present");
    if (node.work == 0) {
      lane.finish_plain(segment.base);
      return true;
    }
    return false;
  }
  if (predicted_[number] > time) {
    return false;
  }
  lane.finish_plain(predicted_[number]);
  predicted_[number] = kNever;
  return true;
}

// ---- Undo ----

void Rank::cut(Time time, const std::vector<RateTable> &tables) {
  for (Lane &lane : lanes_) {
    counters.retimed += lane.cut(time, [&](std::uint64_t group) { --groups_[group].arrived; });
  }
  cut_groups(time);
  cut_host(time);
  if (coupled) {
    now = std::min(now, time);
    for (Device &device : devices_) {
      device.activity.cut(time);
    }
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
      predict(i, tables);
    }
  }
}

void Rank::cut_groups(Time time) {
  for (std::uint64_t number = groups_.first(); number < groups_.end(); ++number) {
    Group &group = groups_[number];
    for (Member &member : group.members) {
      if (member.end != kNever && member.end > time) {
        member.end = kNever;
      }
    }
    if (group.end != kNever && group.end > time) {
      group.end = kNever;
      ++open_groups_;
    }
    if (group.reach != kNever && group.reach > time) {
      group.reach = kNever;
      for (std::uint32_t i = 0; i < group.members.size(); ++i) {
        events.push_back({group.members[i].collective, number, i, 0, kNever});
      }
    }
  }
}

// ---- Forgetting ----

void Rank::emit(const Span &span) {
  spans.push_back(span);
  ++counters.spans;
  if (span.op == Op::kResume && span.end > span.start) {
    ++counters.jumps;
    counters.jump_ns += static_cast<std::uint64_t>(span.end - span.start);
  }
}

void Rank::key_gone(const Node &node, const Ref &ref, Time end) {
  const auto same = [&](const Ref &other) { return other.lane == ref.lane && other.node == ref.node; };
  const auto at = keys_.find(node.key);
  if (at != keys_.end() && same(at->second)) {
    gone_.add(node.key, end);
    keys_.erase(at);
    return;
  }
  // The key was recorded again since then, and that may still be undone.
  for (std::uint64_t i = key_undo_.first(); i < key_undo_.end(); ++i) {
    if (key_undo_[i].key == node.key && same(key_undo_[i].before)) {
      gone_.add(node.key, end);
      key_undo_[i].before = {};
    }
  }
}

void Rank::forget_lane(std::uint32_t number, Time horizon) {
  Lane &lane = lanes_[number];
  lane.forget(horizon, [&](const Node &node, std::uint64_t node_number, Time start, Time end) {
    if (node.op == Op::kRecord) {
      key_gone(node, {node_number, number, 0}, end);
    } else {
      emit({.seq = node.seq,
            .lane = lane.number,
            .label = node.label,
            .op = node.op,
            .start = start,
            .end = end,
            .issue = node.issue});
    }
  });
}

void Rank::forget(Time horizon) {
  for (std::uint64_t i = marks_.first(); i < marks_.end(); ++i) {
    PendingMark &mark = marks_[i];
    std::erase_if(mark.refs, [&](const Ref &ref) {
      const Time end = end_of(ref);
      if (end > horizon) {
        return false;
      }
      mark.end = std::max(mark.end, end);
      return true;
    });
  }
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    forget_lane(i, horizon);
  }
  forget_groups(horizon);
  forget_host(horizon);
  if (coupled) {
    for (std::uint32_t d = 0; d < devices_.size(); ++d) {
      forget_activity(d, horizon);
    }
  }
}

void Rank::forget_groups(Time horizon) {
  for (std::uint64_t i = groups_.first(); i < groups_.end(); ++i) {
    Group &group = groups_[i];
    if (group.emitted || group.end > horizon) {
      continue;
    }
    group.emitted = true;
    for (const Member &member : group.members) {
      emit({.seq = member.seq,
            .lane = lanes_[member.lane].number,
            .label = member.label,
            .op = Op::kCollective,
            .start = group.reach,
            .end = group.end,
            .issue = member.issue});
    }
  }
  while (!groups_.empty() && groups_.front().emitted) {
    groups_.pop_front();
  }
}

// Drops operations and what belongs to them.
void Rank::forget_host(Time horizon) {
  while (!waits_.empty() && waits_.front().over <= horizon) {
    emit(waits_.front().span);
    waits_.pop_front();
  }
  while (ops_.first() < next_) {
    const std::uint64_t second = ops_.first() + 1;
    const bool issued = second < next_ || (second == next_ && waiting_);
    if ((issued ? ops_[second].before : clock_) > horizon) {
      break;
    }
    ops_.pop_front();
  }
  while (!key_undo_.empty() && key_undo_.front().op < ops_.first()) {
    key_undo_.pop_front();
  }
  for (Device &device : devices_) {
    while (device.launches.size() > settings_.launch_depth + (next_ - ops_.first())) {
      device.launches.pop_front();
    }
  }
}

// Drops the history of a device's activity before the work that may still be evaluated.
void Rank::forget_activity(std::uint32_t device, Time horizon) {
  Time needed = horizon;
  for (const Lane &lane : lanes_) {
    if (lane.device != device) {
      continue;
    }
    if (lane.blocked() && lane.segments[lane.known].begun) {
      needed = std::min(needed, lane.segments[lane.known].base);
    }
    for (std::uint64_t i = lane.segments.first(); i < lane.known; ++i) {
      needed = std::min(needed, lane.segments[i].base);
    }
  }
  devices_[device].activity.forget(needed);
}

void Rank::take_marks(Time horizon, std::vector<Mark> &marks) {
  while (!marks_.empty()) {
    const PendingMark &mark = marks_.front();
    Time end = mark.end;
    for (const Ref &ref : mark.refs) {
      end = std::max(end, end_of(ref));
    }
    if (end > horizon || mark.issue > horizon) {
      return;
    }
    marks.push_back({number_, mark.seq, mark.issue, end});
    marks_.pop_front();
  }
}

std::size_t Rank::live_nodes() const {
  std::size_t count = 0;
  for (const Lane &lane : lanes_) {
    count += lane.nodes.size();
  }
  return count;
}

std::size_t Rank::live_segments() const {
  std::size_t count = 0;
  for (const Lane &lane : lanes_) {
    count += lane.segments.size();
  }
  return count;
}

std::size_t Rank::live_bytes() const {
  std::size_t bytes = groups_.bytes() + ops_.bytes() + waits_.bytes() + key_undo_.bytes() + keys_.size() * 64 +
                      gone_.bytes() + spans.capacity() * sizeof(Span);
  for (const Lane &lane : lanes_) {
    bytes += lane.nodes.bytes() + lane.segments.bytes();
  }
  for (const Device &device : devices_) {
    bytes += device.launches.bytes() + device.activity.bytes();
  }
  return bytes;
}

std::vector<std::uint64_t> Rank::waits_for() const {
  std::vector<std::uint64_t> collectives;
  std::vector<bool> seen(lanes_.size(), false);
  std::vector<std::uint32_t> open;
  const auto look_at = [&](const Ref &ref) {
    if (ref.lane != Ref::kNone && end_of(ref) == kNever && !seen[ref.lane]) {
      seen[ref.lane] = true;
      open.push_back(ref.lane);
    }
  };
  if (waiting_) {
    for (const Ref &ref : wait_refs_) {
      look_at(ref);
    }
  } else if (stalled_) {
    look_at(stall_);
  }
  while (!open.empty()) {
    const Lane &lane = lanes_[open.back()];
    open.pop_back();
    const Segment &segment = lane.segments[lane.known];
    if (segment.kind == Segment::Kind::kWait) {
      look_at(segment.target);
    } else if (segment.kind == Segment::Kind::kJoin) {
      const Group &group = groups_[segment.group];
      if (group.reach == kNever) {
        for (const Join &join : group.joins) {
          look_at({lanes_[join.lane].segments[join.segment].first, join.lane, 0});
        }
        continue;
      }
      for (const Member &member : group.members) {
        if (member.end == kNever) {
          collectives.push_back(member.collective);
        }
      }
    }
  }
  return collectives;
}

std::vector<OpenCall> Rank::open_calls() const {
  std::vector<OpenCall> calls;
  for (std::uint64_t i = groups_.first(); i < groups_.end(); ++i) {
    const Group &group = groups_[i];
    if (group.end != kNever) {
      continue;
    }
    for (const Member &member : group.members) {
      calls.push_back({member.seq, member.issue, lanes_[member.lane].number});
    }
  }
  return calls;
}

} // namespace eidolon
