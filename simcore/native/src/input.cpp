// Engine: what goes in. Ranks, lanes, links, rates and patterns are declared; then come collectives and operations.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace eidolon {

namespace {
constexpr std::uint32_t kMaxRank = 1U << 24;
constexpr Time kMaxDuration = Time{1} << 53;
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
  if (resume_time() > 0) { // the rank joins a run that is under way
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
  patterns_.push_back(pattern_of(flows));
  return static_cast<std::uint32_t>(patterns_.size() - 1);
}

Engine::Pattern Engine::pattern_of(const std::vector<FlowSpec> &flows) {
  std::vector<FlowKey> keys;
  keys.reserve(flows.size());
  for (const FlowSpec &flow : flows) {
    keys.push_back(key_of(flow));
  }
  Pattern pattern;
  if (std::any_of(flows.begin(), flows.end(), [](const FlowSpec &flow) { return !flow.counts.empty(); })) {
    pattern.classes = true;
    pattern.flows = flows.size();
    pattern.batches.emplace_back();
    for (const FlowKey &key : keys) {
      if (key.offset != 0 || key.bytes == 0) {
        throw std::invalid_argument("flows with counts have bytes, and links without latency");
      }
      add_equal_flows(pattern.batches.back(), key, 1);
    }
    return pattern;
  }
  std::sort(keys.begin(), keys.end());
  for (std::size_t i = 0; i < keys.size();) {
    std::size_t end = i + 1;
    while (end < keys.size() && keys[end] == keys[i]) {
      ++end;
    }
    if (pattern.batches.empty() || pattern.batches.back().offset != keys[i].offset) {
      pattern.batches.emplace_back();
      pattern.batches.back().offset = keys[i].offset;
    }
    ++pattern.flows;
    add_equal_flows(pattern.batches.back(), keys[i], end - i);
    i = end;
  }
  if (pattern.batches.empty()) {
    pattern.batches.emplace_back();
  }
  pattern.silent = std::all_of(pattern.batches.begin(), pattern.batches.end(),
                               [](const Batch &batch) { return batch.routes.empty(); });
  return pattern;
}

Engine::FlowKey Engine::key_of(const FlowSpec &flow) {
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
  if (!flow.counts.empty() && (flow.counts.size() != flow.route.size() ||
                               std::any_of(flow.counts.begin(), flow.counts.end(),
                                           [](std::uint32_t count) { return count == 0 || count > (1U << 20); }))) {
    throw std::invalid_argument("a flow has one count for each link of its route, from 1 to 2^20");
  }
  Time offset = 0;
  for (const std::uint32_t link : flow.route) {
    offset += link_latency_[link];
  }
  if (flow.route.empty() || flow.bytes == 0) {
    return {offset, ~std::uint32_t{0}, 0, flow.weight};
  }
  return {offset, network_.add_route(flow.route, flow.counts), flow.bytes, flow.weight};
}

void Engine::add_equal_flows(Batch &batch, const FlowKey &key, std::size_t count) {
  if (key.bytes == 0) {
    ++batch.instant;
    return;
  }
  if (count * key.weight > (1U << 26)) {
    throw std::invalid_argument("equal flows with a weight over 2^26 together");
  }
  batch.routes.push_back(key.route);
  batch.weights.push_back(key.weight);
  batch.counts.push_back(static_cast<std::uint32_t>(count));
  batch.bytes.push_back(key.bytes);
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
  // Nothing is free, so a collective in which nothing takes time still takes a nanosecond.
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

// The rank's host lane goes on at the time that the operation gives, or else at the time where the other ranks stand.
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
    if (rank.idle && acts(operation)) { // it goes on without a resumption, and no earlier than with one
      resume(index, {.seq = operation.seq, .op = Op::kResume});
    }
    ranks_[index].idle |= operation.op == Op::kIdle;
    ranks_[index].ingest(operation);
  }
  unswept_ += operations.size();
  mark_dirty(index);
}

} // namespace eidolon
