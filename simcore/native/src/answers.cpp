// Engine: what goes in and out.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "archive.h"
#include "check.h"
#include "engine.h"

namespace eidolon {

namespace {
constexpr std::uint32_t kMaxRank = 1U << 24;
constexpr Time kMaxDuration = Time{1} << 53;
constexpr std::uint64_t kFormat = 0x4549444f4c4f4e04; // "EIDOLON", 4
} // namespace

std::uint32_t Engine::index_of(std::uint32_t rank) const {
  if (rank >= index_of_.size() || index_of_[rank] == ~std::uint32_t{0}) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " is not known to the engine");
  }
  return index_of_[rank];
}

std::uint64_t Engine::slot_of(std::uint64_t handle) const {
  const std::uint64_t slot = handle & 0xffffffffU;
  if (slot >= collectives_.size() || !collectives_[slot].live || handle_of(slot) != handle) {
    throw std::invalid_argument("collective " + std::to_string(handle) + " is not known");
  }
  return slot;
}

void Engine::add_rank(std::uint32_t number) {
  if (number >= kMaxRank) {
    throw std::invalid_argument("rank numbers are below " + std::to_string(kMaxRank));
  }
  if (number >= index_of_.size()) {
    index_of_.resize(number + 1, ~std::uint32_t{0});
  }
  if (index_of_[number] != ~std::uint32_t{0}) {
    throw std::invalid_argument("rank " + std::to_string(number) + " was added before");
  }
  advance();
  const auto index = static_cast<std::uint32_t>(ranks_.size());
  index_of_[number] = index;
  ranks_.emplace_back(number, Rank::Settings{settings_.launch_depth, settings_.optimistic});
  is_dirty_.push_back(0);
  wanted_.push_back(0);
  is_busy_.push_back(0);
  is_acting_.push_back(0);
  is_asking_.push_back(0);
  if (resume_time() > 0) { // it joins a run that is under way
    ranks_.back().start_at(resume_time());
    jumps_.push_back({number, 0, resume_time()});
  }
  refresh(index);
}

void Engine::add_lane(std::uint32_t number, std::uint32_t lane, std::uint32_t device) {
  Rank &rank = ranks_[index_of(number)];
  if (rank.has_lane(lane)) {
    throw std::invalid_argument("lane " + std::to_string(lane) + " of rank " + std::to_string(number) +
                                " was added before");
  }
  rank.add_lane(lane, device);
}

void Engine::end_rank(std::uint32_t number) {
  const std::uint32_t index = index_of(number);
  settle();
  if (!ranks_[index].ended) {
    ranks_[index].ended = true;
    ++ended_ranks_;
    refresh(index);
  }
}

std::uint32_t Engine::add_link(std::uint64_t bytes_per_s, Time latency) {
  if (bytes_per_s == 0 || bytes_per_s > kMaxBytesPerS) {
    throw std::invalid_argument("a link's capacity is from 1 to 2^46 bytes/s");
  }
  if (latency < 0 || latency > kMaxDuration) {
    throw std::invalid_argument("a link's latency is from 0 to 2^53 ns");
  }
  link_latency_.push_back(latency);
  return network_.add_link(bytes_per_s);
}

std::uint16_t Engine::add_rates(RateTable table) {
  for (const RateTable::Rates &rates : table.classes) {
    for (const std::int64_t rate : rates) {
      if (rate < 1 || rate > (std::int64_t{1} << 30)) {
        throw std::invalid_argument("a rate is from 1 to 2^30, 2^20 being the reference");
      }
    }
    if (rates[RateTable::kLeaves] > kReferenceRate) {
      throw std::invalid_argument("what work leaves of a device's ports is from 1 to 2^20, which is all");
    }
  }
  if (tables_.size() >= 0xffff) {
    throw std::invalid_argument("too many tables of rates");
  }
  tables_.push_back(std::move(table));
  return static_cast<std::uint16_t>(tables_.size() - 1);
}

void Engine::set_rates(std::uint32_t number, std::uint16_t table) {
  Rank &rank = ranks_[index_of(number)];
  if (table >= tables_.size()) {
    throw std::invalid_argument("no such table of rates");
  }
  if (rank.counters.operations > 0) {
    throw std::invalid_argument("a rank's first table of rates is set before its first operation");
  }
  rank.set_table(table);
  if (tables_[table].couples()) {
    rank.set_coupled();
  }
}

std::uint32_t Engine::add_pattern(const std::vector<FlowSpec> &flows) {
  // Flows with the same start, route and bytes are one flow with their weight together.
  struct Key {
    Time offset;
    std::uint32_t route;
    std::uint64_t bytes;
    std::uint32_t weight;
  };
  std::vector<Key> keys;
  for (const FlowSpec &flow : flows) {
    std::vector<std::uint32_t> sorted = flow.route;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      throw std::invalid_argument("a route uses each link once");
    }
    if (!sorted.empty() && sorted.back() >= link_latency_.size()) {
      throw std::invalid_argument("link " + std::to_string(sorted.back()) + " does not exist");
    }
    if (flow.bytes > kMaxBytes || flow.weight == 0 || flow.weight > (1U << 20)) {
      throw std::invalid_argument("a flow has up to 2^50 bytes and a weight from 1 to 2^20");
    }
    Time offset = 0;
    for (const std::uint32_t link : flow.route) {
      offset += link_latency_[link];
    }
    const bool instant = flow.route.empty() || flow.bytes == 0;
    keys.push_back(
        {offset, instant ? ~std::uint32_t{0} : network_.add_route(flow.route), instant ? 0 : flow.bytes, flow.weight});
  }
  std::sort(keys.begin(), keys.end(), [](const Key &a, const Key &b) {
    return std::tie(a.offset, a.route, a.bytes, a.weight) < std::tie(b.offset, b.route, b.bytes, b.weight);
  });
  Pattern pattern;
  for (std::size_t i = 0; i < keys.size();) {
    const Key &key = keys[i];
    if (pattern.batches.empty() || pattern.batches.back().offset != key.offset) {
      pattern.batches.emplace_back();
      pattern.batches.back().offset = key.offset;
    }
    Batch &batch = pattern.batches.back();
    std::size_t end = i + 1;
    while (end < keys.size() && keys[end].offset == key.offset && keys[end].route == key.route &&
           keys[end].bytes == key.bytes && keys[end].weight == key.weight) {
      ++end;
    }
    ++pattern.flows;
    if (key.bytes == 0) {
      ++batch.instant;
    } else {
      if ((end - i) * key.weight > (1U << 26)) {
        throw std::invalid_argument("equal flows with a weight over 2^26 together");
      }
      batch.routes.push_back(key.route);
      batch.weights.push_back(key.weight);
      batch.counts.push_back(static_cast<std::uint32_t>(end - i));
      batch.bytes.push_back(key.bytes);
    }
    i = end;
  }
  if (pattern.batches.empty()) {
    pattern.batches.emplace_back();
  }
  pattern.silent = std::all_of(pattern.batches.begin(), pattern.batches.end(),
                               [](const Batch &batch) { return batch.routes.empty(); });
  patterns_.push_back(std::move(pattern));
  return static_cast<std::uint32_t>(patterns_.size() - 1);
}

std::uint64_t Engine::reserve() {
  std::uint64_t slot = 0;
  if (free_collectives_.empty()) {
    slot = collectives_.size();
    collectives_.emplace_back();
  } else {
    slot = free_collectives_.back();
    free_collectives_.pop_back();
  }
  collectives_[slot].live = true;
  ++collectives_made_;
  return handle_of(slot);
}

void Engine::define(std::uint64_t handle, std::vector<std::uint32_t> participants, Time latency,
                    std::uint32_t pattern) {
  const std::uint64_t slot = slot_of(handle);
  if (collectives_[slot].defined) {
    throw std::invalid_argument("collective " + std::to_string(handle) + " is defined already");
  }
  if (participants.empty()) {
    throw std::invalid_argument("collective " + std::to_string(handle) + " has no participants");
  }
  if (latency < 0 || latency > kMaxDuration) {
    throw std::invalid_argument("a collective's latency is from 0 to 2^53 ns");
  }
  if (pattern >= patterns_.size()) {
    throw std::invalid_argument("no such pattern of flows");
  }
  for (const std::uint32_t rank : participants) {
    static_cast<void>(index_of(rank));
  }
  std::sort(participants.begin(), participants.end());
  Collective &collective = collectives_[slot];
  collective.announced.assign(participants.size(), 0);
  collective.participants = std::move(participants);
  for (const std::uint32_t rank : std::exchange(collective.early, {})) {
    announce_to(collective, rank);
  }
  // Nothing is free: without anything that takes time it still takes a nanosecond.
  const Batch &last = patterns_[pattern].batches.back();
  collective.latency = latency == 0 && last.offset == 0 && last.routes.empty() ? 1 : latency;
  collective.pattern = pattern;
  collective.left = patterns_[pattern].flows;
  collective.defined = true;
  if (collective.joins.size() == collective.participants.size()) {
    schedule(slot);
  }
}

void Engine::validate(std::uint32_t index, const Operation &op) const {
  const Rank &rank = ranks_[index];
  const auto fail = [&](const std::string &what) {
    throw std::invalid_argument("rank " + std::to_string(rank.number()) + ", record " + std::to_string(op.seq) + ": " +
                                what);
  };
  if (op.op >= Op::kCount) {
    fail("operation " + std::to_string(static_cast<int>(op.op)) + " is not known");
  }
  if (op.host_ns < 0 || op.host_ns > kMaxDuration || op.work_ns < 0 || op.work_ns > kMaxDuration) {
    fail("host and work times are from 0 to 2^53 ns");
  }
  switch (op.op) {
  case Op::kWork:
  case Op::kRecord:
  case Op::kWait:
  case Op::kCollective:
  case Op::kSyncLane:
  case Op::kQueryLane:
  case Op::kCallback:
    if (!rank.has_lane(op.lane)) {
      fail("lane " + std::to_string(op.lane) + " is not known");
    }
    break;
  case Op::kMark:
    if (op.value >= tables_.size()) {
      fail("no table of rates " + std::to_string(op.value));
    }
    if (tables_[op.value].couples() && !rank.coupled) {
      fail("a table that couples lanes needs one that does from the beginning (set_rates)");
    }
    break;
  default:
    break;
  }
}

void Engine::announce(std::uint32_t number, std::uint64_t handle) {
  Collective &collective = collectives_[slot_of(handle)];
  if (collective.defined) {
    announce_to(collective, number);
  } else {
    collective.early.push_back(number);
  }
}

void Engine::announce_to(Collective &collective, std::uint32_t number) {
  const auto [from, to] = std::equal_range(collective.participants.begin(), collective.participants.end(), number);
  for (auto at = from; at != to; ++at) {
    std::uint8_t &announced = collective.announced[static_cast<std::size_t>(at - collective.participants.begin())];
    if (announced == 0) {
      announced = 1;
      return;
    }
  }
  throw std::invalid_argument("rank " + std::to_string(number) + " is not a participant of collective " +
                              std::to_string(handle_of(static_cast<std::uint64_t>(&collective - collectives_.data()))) +
                              ", or joined it twice");
}

// The rank's host lane goes on at the time given, else where the others stand.
void Engine::resume(std::uint32_t index, Operation operation) {
  if (operation.value == 0) {
    mark_dirty(index);
    advance();
    operation.value = static_cast<std::uint64_t>(resume_time());
    jumps_.push_back({ranks_[index].number(), operation.seq, resume_time()});
  }
  ranks_[index].idle = false;
  ranks_[index].ingest(operation);
}

void Engine::ingest(std::uint32_t number, std::span<const Operation> operations) {
  const std::uint32_t index = index_of(number);
  if (ranks_[index].ended) {
    throw std::invalid_argument("rank " + std::to_string(number) + " has ended");
  }
  for (const Operation &operation : operations) {
    validate(index, operation);
  }
  for (const Operation &operation : operations) {
    Rank &rank = ranks_[index];
    if (operation.op == Op::kCollective) {
      announce(number, operation.value);
    }
    if ((operation.flags & kAsk) != 0 && is_asking_[index] == 0) {
      is_asking_[index] = 1;
      asking_.push_back(index);
    }
    if (operation.op == Op::kResume) {
      resume(index, operation);
      continue;
    }
    if (rank.idle && acts(operation)) { // without saying so: it does so no earlier than one that does
      resume(index, {.seq = operation.seq, .op = Op::kResume});
    }
    ranks_[index].idle |= operation.op == Op::kIdle;
    ranks_[index].ingest(operation);
  }
  unswept_ += operations.size();
  mark_dirty(index);
}

// ---- Out ----

bool Engine::answerable(const Rank &rank, const Rank::Ask &ask, Time seen, Answer &answer) const {
  const Time end = rank.end_of(ask);
  answer.value = 0;
  answer.clock = ask.done;
  switch (ask.kind) {
  case Op::kSyncLane:
  case Op::kSyncKey:
  case Op::kSyncDevice:
    if (ask.blocks) {
      return ask.done != kNever;
    }
    answer.clock = std::max(ask.issue, end);
    return end != kNever;
  case Op::kQueryLane:
  case Op::kQueryKey:
    answer.value = end <= ask.issue ? 1 : 0;
    return end != kNever || seen > ask.issue || ask.background;
  case Op::kKeyTime: // unknown even though all up to the asker's time is: it has not ended
    answer.value = end == kNever ? -1 : end;
    return end != kNever || (seen > ask.issue && !ask.background);
  case Op::kCallback:
    answer.clock = end;
    return end <= (settings_.optimistic ? horizon_ : kNever - 1);
  case Op::kResume:
    answer.value = rank.jumped(ask);
    return true;
  default:
    return ask.done != kNever;
  }
}

Time Engine::first_unseen() {
  const Time next = next_time();
  return !settings_.optimistic && safe_time() < next ? safe_time() + 1 : next;
}

bool Engine::somebody_goes_on() {
  const Time seen = first_unseen();
  return std::any_of(asking_.begin(), asking_.end(), [&](std::uint32_t index) {
    const Rank &rank = ranks_[index];
    return std::any_of(rank.asks.begin(), rank.asks.end(), [&](const Rank::Ask &ask) {
      Answer answer;
      return !ask.background && ask.kind != Op::kCallback && answerable(rank, ask, seen, answer);
    });
  });
}

bool Engine::waits_for_idle() const {
  if (settings_.optimistic || acting_ranks_ > 0 || resting_.top_time() == kNever) {
    return false;
  }
  return std::any_of(asking_.begin(), asking_.end(), [&](std::uint32_t index) {
    const Rank &rank = ranks_[index];
    const std::vector<std::uint64_t> awaited = rank.host_blocked() ? rank.waits_for() : std::vector<std::uint64_t>{};
    return !rank.rests() && std::all_of(awaited.begin(), awaited.end(), [&](std::uint64_t handle) {
      return collectives_[handle & 0xffffffffU].start != kNever;
    });
  });
}

std::vector<Answer> Engine::answers() {
  advance();
  std::vector<Answer> result;
  answer(result);
  if (waits_for_idle()) {
    without_idle_ = true;
    advance();
    answer(result);
    without_idle_ = false;
  }
  if (unswept_ > 4096 + 16 * ranks_.size()) {
    sweep();
  }
  return result;
}

void Engine::answer(std::vector<Answer> &result) {
  const Time seen = first_unseen();
  std::size_t kept = 0;
  for (const std::uint32_t index : asking_) {
    Rank &rank = ranks_[index];
    std::size_t asks = 0;
    for (std::size_t i = 0; i < rank.asks.size(); ++i) {
      Rank::Ask &ask = rank.asks[i];
      Answer answer;
      if (answerable(rank, ask, seen, answer)) {
        if (without_idle_ && rank.end_of(ask) == kNever) { // a no, which nothing that still comes may make a yes
          horizon_ = std::max(horizon_, ask.issue);
        }
        answer.rank = rank.number();
        answer.seq = ask.seq;
        if (ask.kind != Op::kCallback) { // the host lane's clock is never seen to go backwards
          rank.told = std::max(rank.told, answer.clock);
          answer.clock = rank.told;
        }
        result.push_back(answer);
        rank.answered(ask);
      } else {
        if (asks != i) {
          rank.asks[asks] = std::move(ask);
        }
        ++asks;
      }
    }
    rank.asks.resize(asks);
    rank.overtake(result);
    refresh(index);
    if (rank.owed > 0) {
      asking_[kept++] = index;
    } else {
      is_asking_[index] = 0;
    }
  }
  asking_.resize(kept);
}

Time Engine::clock(std::uint32_t rank) {
  advance();
  return ranks_[index_of(rank)].clock();
}

Time Engine::horizon() {
  advance();
  return horizon_;
}

Time Engine::end_of(std::uint64_t handle) {
  advance();
  const std::uint64_t slot = handle & 0xffffffffU;
  if (slot >= collectives_.size()) {
    throw std::invalid_argument("collective " + std::to_string(handle) + " is not known");
  }
  return handle_of(slot) == handle ? collectives_[slot].end : 0;
}

std::vector<Span> Engine::spans(std::uint32_t number) {
  advance();
  Rank &rank = ranks_[index_of(number)];
  rank.forget(horizon_);
  std::vector<Span> result = std::move(rank.spans);
  rank.spans.clear();
  const auto before = [](const Span &a, const Span &b) { return a.seq < b.seq; };
  if (!std::is_sorted(result.begin(), result.end(), before)) {
    std::stable_sort(result.begin(), result.end(), before);
  }
  return result;
}

std::vector<std::pair<std::uint32_t, Span>> Engine::timeline() {
  advance();
  sweep();
  std::vector<std::pair<std::uint32_t, Span>> result;
  for (Rank &rank : ranks_) {
    for (const Span &span : rank.spans) {
      result.emplace_back(rank.number(), span);
    }
    rank.spans.clear();
  }
  std::stable_sort(result.begin(), result.end(), [](const auto &a, const auto &b) {
    return std::tie(a.second.end, a.first, a.second.seq) < std::tie(b.second.end, b.first, b.second.seq);
  });
  return result;
}

std::vector<Mark> Engine::marks() {
  advance();
  std::vector<Mark> result;
  for (Rank &rank : ranks_) {
    if (rank.has_marks()) {
      rank.take_marks(horizon_, result);
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Mark &a, const Mark &b) { return std::tie(a.end, a.rank) < std::tie(b.end, b.rank); });
  return result;
}

std::vector<Jump> Engine::jumps() { return std::exchange(jumps_, {}); }

std::vector<Blocked> Engine::blocked() {
  advance();
  std::vector<Blocked> result;
  for (const Rank &rank : ranks_) {
    if (!rank.host_blocked()) {
      continue;
    }
    for (const std::uint64_t handle : rank.waits_for()) {
      const Collective &collective = collectives_[handle & 0xffffffffU];
      std::vector<std::uint32_t> reached;
      reached.reserve(collective.joins.size());
      for (const Join &join : collective.joins) {
        reached.push_back(ranks_[join.rank].number());
      }
      std::sort(reached.begin(), reached.end());
      Blocked blocked{rank.number(), rank.blocked_seq(), handle, {}};
      std::set_difference(collective.participants.begin(), collective.participants.end(), reached.begin(),
                          reached.end(), std::back_inserter(blocked.missing));
      if (!collective.defined || !blocked.missing.empty()) {
        result.push_back(std::move(blocked));
      }
    }
  }
  return result;
}

bool Engine::deadlocked() {
  advance();
  bool any = false;
  for (const Rank &rank : ranks_) {
    if (rank.ended) {
      continue;
    }
    if (rank.idle || !rank.host_blocked()) {
      return false;
    }
    any = true;
  }
  return any && ranks_.size() >= settings_.expected_ranks && next_time() == kNever;
}

std::unordered_map<std::string, std::uint64_t> Engine::counters() {
  advance();
  std::unordered_map<std::string, std::uint64_t> result;
  std::uint64_t live_bytes = network_.live_bytes() + journal_.bytes() + agenda_.capacity() * sizeof(Due);
  for (const Collective &collective : collectives_) {
    live_bytes +=
        sizeof collective + collective.participants.capacity() * 5 + collective.joins.capacity() * sizeof(Join);
  }
  Rank::Counters sum;
  std::uint64_t live_nodes = 0;
  std::uint64_t live_segments = 0;
  Time latest = now_;
  for (const Rank &rank : ranks_) {
    sum.operations += rank.counters.operations;
    sum.nodes += rank.counters.nodes;
    sum.retimed += rank.counters.retimed;
    sum.spans += rank.counters.spans;
    sum.jumps += rank.counters.jumps;
    sum.jump_ns += rank.counters.jump_ns;
    live_bytes += rank.live_bytes();
    live_nodes += rank.live_nodes();
    live_segments += rank.live_segments();
    latest = std::max(latest, rank.clock());
  }
  const Network::Counters &network = network_.counters();
  result["operations"] = sum.operations;
  result["nodes"] = sum.nodes;
  result["spans"] = sum.spans;
  result["idle_jumps"] = sum.jumps;
  result["idle_jump_ns"] = sum.jump_ns;
  result["nodes_live"] = live_nodes;
  result["segments_live"] = live_segments;
  result["retimed_nodes"] = sum.retimed;
  result["collectives"] = collectives_made_;
  result["collectives_live"] = collectives_.size() - free_collectives_.size();
  result["flows"] = network.flows;
  result["flows_active"] = network.active;
  result["rates_changed"] = network.rerated;
  result["rollbacks"] = rollbacks_;
  result["rollback_depth_ns_sum"] = rollback_depth_ns_;
  result["rollback_depth_ns_max"] = rollback_depth_max_ns_;
  result["changes_undone"] = network.undone;
  result["horizon_lag_ns"] = horizon_ >= latest ? 0 : static_cast<std::uint64_t>(latest - horizon_);
  result["live_bytes"] = live_bytes;
  return result;
}

// ---- Snapshot ----

template <typename Archive> void Engine::archive(Archive &ar) {
  std::uint64_t format = kFormat;
  ar(format);
  if (format != kFormat) {
    throw std::invalid_argument("not a snapshot of this version of the engine");
  }
  ar(settings_, network_, link_latency_, tables_, ranks_, index_of_, ports_, ports_of_, patterns_, collectives_,
     free_collectives_, agenda_, journal_, coupled_, bounds_, resting_, dirty_, is_dirty_, jumps_, now_, horizon_,
     late_, late_ranks_, late_presses_, wanted_, wanted_unbounded_, is_busy_, busy_ranks_, is_acting_, acting_ranks_,
     ended_ranks_, asking_, is_asking_, unswept_, collectives_made_, rollbacks_, rollback_depth_ns_,
     rollback_depth_max_ns_);
}

std::string Engine::snapshot() {
  Writer writer;
  archive(writer);
  return writer.take();
}

void Engine::restore(std::string_view bytes) {
  Engine fresh{settings_};
  Reader reader(bytes);
  fresh.archive(reader);
  if (!reader.exhausted()) {
    throw std::invalid_argument("snapshot is damaged: it is longer than the engine");
  }
  *this = std::move(fresh);
}

} // namespace eidolon
