// Engine: what ranks are told. These are answers to operations that ask for one, and clocks.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine.h"

namespace eidolon {

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
  case Op::kKeyTime: // the key has not ended if it has no end although everything up to the asker's time is known
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
        if (without_idle_ && rank.end_of(ask) == kNever) { // the answer is no, and must stay no
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

} // namespace eidolon
