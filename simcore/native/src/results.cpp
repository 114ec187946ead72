// Engine: what it hands out for the ledger and the reports: spans, marks, jumps, blocked ranks, counters.
#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "engine.h"

namespace eidolon {

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

std::vector<OpenCall> Engine::open_calls(std::uint32_t number) {
  advance();
  return ranks_[index_of(number)].open_calls();
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

} // namespace eidolon
