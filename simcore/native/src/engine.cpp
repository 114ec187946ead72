// Engine: the agenda, the order of time, and rollback. Calls from outside are in input.cpp, answers.cpp, results.cpp.
#include "engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "check.h"

namespace eidolon {

namespace {
constexpr auto kLaterDue = [](const auto &a, const auto &b) { return a.time > b.time; };
} // namespace

Engine::Engine(EngineSettings settings) : settings_(settings), network_(settings.optimistic) {
  tables_.emplace_back(); // the reference rates
}

// ---- Ranks ----

void Engine::mark_dirty(std::uint32_t index) {
  if (is_dirty_[index] == 0) {
    is_dirty_[index] = 1;
    dirty_.push_back(index);
  }
}

// Evaluates the ranks to which something happened, as far as they go without the others.
void Engine::settle() {
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    is_dirty_[dirty_[i]] = 0;
    settle_rank(dirty_[i]);
  }
  dirty_.clear();
}

void Engine::settle_rank(std::uint32_t index) {
  Rank &rank = ranks_[index];
  if (!rank.coupled) {
    rank.run(tables_);
    drain(index);
    refresh(index);
    return;
  }
  rank.step(rank.now, tables_);
  drain(index);
  // The rank may have stood still while others went on. Nothing reached it in between, and `drain` deals with its
  // ports.
  while (rank.late_time() == kNever && rank.next_time() < now_) {
    rank.step(rank.next_time(), tables_);
    drain(index);
  }
  if (rank.late_time() != kNever) {
    late_ranks_.push_back(index);
  }
  refresh(index);
}

// Passes on what a rank did to collectives and to its ports.
void Engine::drain(std::uint32_t index) {
  Rank &rank = ranks_[index];
  for (const Rank::Event &event : rank.events) {
    const std::uint64_t slot = event.collective & 0xffffffffU;
    Collective &collective = collectives_[slot];
    if (event.reach != kNever) {
      collective.joins.push_back({event.group, index, event.member, event.reach});
      if (collective.defined && collective.joins.size() == collective.participants.size()) {
        schedule(slot);
      }
      continue;
    }
    EIDOLON_CHECK(!collective.begun && collective.batches == 0, "what happened is undone before its cause");
    const auto at = std::find_if(collective.joins.begin(), collective.joins.end(), [&](const Join &join) {
      return join.rank == index && join.group == event.group && join.member == event.member;
    });
    *at = collective.joins.back();
    collective.joins.pop_back();
    collective.start = kNever;
    ++collective.version;
  }
  rank.events.clear();
  for (const std::uint32_t device : rank.pressed) {
    if (settings_.optimistic && rank.now < now_) {
      late_ = std::min(late_, rank.now);
      late_presses_.push_back({index, device});
    } else {
      press({index, device});
    }
  }
  rank.pressed.clear();
}

void Engine::refresh(std::uint32_t index) {
  const Rank &rank = ranks_[index];
  bounds_.set(index, rank.bound());
  resting_.set(index, rank.rests() ? rank.clock() : kNever);
  if (rank.coupled) {
    coupled_.set(index, rank.next_time());
  }
  const std::uint8_t busy = rank.exhausted() ? 0 : 1;
  busy_ranks_ += busy;
  busy_ranks_ -= is_busy_[index];
  is_busy_[index] = busy;
  const std::uint8_t acting = rank.acting() ? 1 : 0;
  acting_ranks_ += acting;
  acting_ranks_ -= is_acting_[index];
  is_acting_[index] = acting;
  Time wanted = 0;
  for (const Rank::Ask &ask : rank.asks) {
    if (ask.blocks ? ask.done == kNever : is_sync(ask.kind) && rank.end_of(ask) == kNever) {
      wanted = kNever;
      break;
    }
    wanted = std::max(wanted, ask.issue);
  }
  if (rank.owes_unissued()) {
    wanted = kNever;
  }
  wanted_unbounded_ += wanted == kNever ? 1 : 0;
  wanted_unbounded_ -= wanted_[index] == kNever ? 1 : 0;
  wanted_[index] = wanted;
}

// ---- The agenda ----

bool Engine::couples(const Collective &collective) const {
  return std::any_of(collective.joins.begin(), collective.joins.end(),
                     [&](const Join &join) { return ranks_[join.rank].coupled; });
}

void Engine::push_due(Time time, std::uint64_t slot, std::uint32_t what) {
  if (time < now_) {
    late_ = std::min(late_, time);
  }
  agenda_.push_back({time, slot, collectives_[slot].version, what});
  std::push_heap(agenda_.begin(), agenda_.end(), kLaterDue);
}

// Enters into the agenda what has not happened yet of a collective that all participants have reached.
void Engine::schedule(std::uint64_t slot) {
  Collective &collective = collectives_[slot];
  ++collective.version;
  collective.start = 0;
  for (const Join &join : collective.joins) {
    collective.start = std::max(collective.start, join.reach);
  }
  const Pattern &pattern = patterns_[collective.pattern];
  const bool coupling = couples(collective);
  if (pattern.silent && !coupling && !settings_.optimistic) {
    // Nothing that others do can move its end, so nobody needs to wait for them.
    collective.batches = static_cast<std::uint32_t>(pattern.batches.size());
    collective.left = 0;
    end_collective(slot, collective.start + collective.latency + pattern.batches.back().offset);
    return;
  }
  if (!collective.begun && coupling) {
    push_due(collective.start, slot, kBegin);
  }
  for (std::uint32_t i = collective.batches; i < pattern.batches.size(); ++i) {
    push_due(collective.start + collective.latency + pattern.batches[i].offset, slot, i);
  }
}

Time Engine::agenda_time() {
  while (!agenda_.empty()) {
    const Due &due = agenda_.front();
    const Collective &collective = collectives_[due.slot];
    const bool done = due.batch == kBegin ? collective.begun : due.batch < collective.batches;
    if (due.version == collective.version && !done) {
      return due.time;
    }
    std::pop_heap(agenda_.begin(), agenda_.end(), kLaterDue);
    agenda_.pop_back();
  }
  return kNever;
}

// Takes one instant to its fixed point. Shares are solved only once nothing is left to happen at the present.
Time Engine::next_time() {
  const Time time = std::min(agenda_time(), coupled_.top_time());
  return time <= now_ ? time : std::min(time, network_.next());
}

void Engine::log(std::uint64_t slot, std::uint32_t what) {
  if (settings_.optimistic || what == kEnd) {
    journal_.push_back({now_, slot, collectives_[slot].generation, what});
  }
}

void Engine::process(Time time) {
  EIDOLON_CHECK(time >= now_, "the present is monotone between cuts");
  now_ = time;
  network_.move(time);
  ended_.clear();
  network_.complete(ended_);
  for (const auto &[tag, end] : ended_) {
    flow_ended(slot_of_tag(tag));
  }
  while (agenda_time() == now_) {
    const Due due = agenda_.front();
    std::pop_heap(agenda_.begin(), agenda_.end(), kLaterDue);
    agenda_.pop_back();
    if (due.batch == kBegin) {
      begin(due.slot);
    } else {
      start_batch(due.slot, due.batch);
    }
  }
  while (coupled_.top_time() <= now_) {
    const std::uint32_t index = coupled_.top();
    ranks_[index].step(now_, tables_);
    drain(index);
    refresh(index);
  }
  settle();
}

void Engine::begin(std::uint64_t slot) {
  Collective &collective = collectives_[slot];
  collective.begun = true;
  log(slot, kBegin);
  for (const Join &join : collective.joins) {
    Rank &rank = ranks_[join.rank];
    if (rank.coupled) {
      rank.member_under_way(join.group, join.member, 1, now_);
      coupled_.set(join.rank, now_);
    }
  }
}

void Engine::start_batch(std::uint64_t slot, std::uint32_t number) {
  Collective &collective = collectives_[slot];
  if (!collective.begun && couples(collective)) {
    begin(slot);
  }
  EIDOLON_CHECK(number == collective.batches, "batches start in order");
  collective.batches = number + 1;
  log(slot, number);
  const Batch &batch = patterns_[collective.pattern].batches[number];
  for (std::size_t i = 0; i < batch.routes.size(); ++i) {
    network_.start(batch.routes[i], batch.weights[i], batch.counts[i], batch.bytes[i], tag_of(slot, i));
  }
  collective.left -= batch.instant;
  if (collective.left == 0 && collective.batches == patterns_[collective.pattern].batches.size()) {
    end_collective(slot, now_);
  }
}

void Engine::flow_ended(std::uint64_t slot) {
  Collective &collective = collectives_[slot];
  --collective.left;
  if (collective.left == 0 && collective.batches == patterns_[collective.pattern].batches.size()) {
    end_collective(slot, now_);
  }
}

void Engine::end_collective(std::uint64_t slot, Time end) {
  Collective &collective = collectives_[slot];
  collective.end = end;
  log(slot, kEnd);
  for (const Join &join : collective.joins) {
    Rank &rank = ranks_[join.rank];
    if (rank.coupled) {
      rank.member_under_way(join.group, join.member, -1, end);
      rank.member_ended(join.group, join.member, end);
      coupled_.set(join.rank, now_);
    } else {
      rank.member_ended(join.group, join.member, end);
      mark_dirty(join.rank);
    }
  }
}

// ---- Rollback ----

void Engine::cut_rank(std::uint32_t index, Time time) {
  ranks_[index].cut(time, tables_);
  drain(index);
  mark_dirty(index);
}

// Takes network, collectives and the ranks that they reached back to the end of `time`.
void Engine::cut(Time time) {
  std::vector<std::uint8_t> affected(ranks_.size(), 0);
  std::vector<std::uint64_t> touched;
  while (!journal_.empty() && journal_.back().time > time) {
    const Happened &happened = journal_.back();
    Collective &collective = collectives_[happened.slot];
    EIDOLON_CHECK(collective.generation == happened.generation, "what can be undone is kept");
    touched.push_back(happened.slot);
    if (happened.what == kEnd) {
      collective.end = kNever;
      for (const Join &join : collective.joins) {
        affected[join.rank] = 1;
      }
    } else if (happened.what == kBegin) {
      collective.begun = false;
    } else {
      collective.batches = happened.what;
      collective.left += patterns_[collective.pattern].batches[happened.what].instant;
    }
    journal_.pop_back();
  }
  Network::Undone undone;
  network_.cut(time, undone);
  for (const std::uint64_t tag : undone.ended) {
    ++collectives_[slot_of_tag(tag)].left;
  }
  now_ = std::min(now_, time);
  for (std::uint32_t i = 0; i < ranks_.size(); ++i) {
    // A coupled rank has to stand where the others do, because what reaches it comes in order of time.
    if (affected[i] != 0 || (ranks_[i].coupled && ranks_[i].now > time)) {
      cut_rank(i, time);
    }
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const std::uint64_t slot : touched) {
    if (collectives_[slot].start != kNever) {
      schedule(slot);
    }
  }
}

bool Engine::involved_since(std::uint32_t index, Time time) const {
  if (ranks_[index].communicated_since(time)) { // flows felt what it did
    return true;
  }
  for (std::uint64_t i = journal_.end(); i > journal_.first() && journal_[i - 1].time > time; --i) {
    for (const Join &join : collectives_[journal_[i - 1].slot].joins) {
      if (join.rank == index) {
        return true;
      }
    }
  }
  return false;
}

// Serves all late arrivals that are known by now with one cut.
void Engine::rollback() {
  settle();
  while (late_ != kNever || !late_ranks_.empty()) {
    Time time = late_;
    for (const std::uint32_t index : late_ranks_) {
      // Other ranks go back too if something of theirs was involved in what it did since.
      if (involved_since(index, ranks_[index].late_time())) {
        time = std::min(time, ranks_[index].late_time());
      }
    }
    std::vector<std::pair<std::uint32_t, Time>> ranks;
    ranks.reserve(late_ranks_.size());
    for (const std::uint32_t index : late_ranks_) {
      ranks.emplace_back(index, ranks_[index].late_time());
    }
    late_ = kNever;
    late_ranks_.clear();
    const std::vector<Device> presses = std::exchange(late_presses_, {});
    if (settings_.optimistic) {
      EIDOLON_CHECK(time >= horizon_, "nothing arrives before the horizon");
      ++rollbacks_;
      const auto depth = static_cast<std::uint64_t>(time < now_ ? now_ - time : 0);
      rollback_depth_ns_ += depth;
      rollback_depth_max_ns_ = std::max(rollback_depth_max_ns_, depth);
    } else {
      throw std::logic_error("an operation arrived before the present of a conservative engine");
    }
    if (time < now_) {
      cut(time);
    }
    for (const auto &[index, own] : ranks) {
      if (own < ranks_[index].now) {
        cut_rank(index, own);
      }
    }
    for (const Device &device : presses) {
      press(device);
    }
    settle();
  }
}

// ---- Going on ----

Time Engine::least_bound() const {
  const bool idle_may_act = !settings_.optimistic && !without_idle_;
  return std::min(bounds_.top_time(), idle_may_act ? resting_.top_time() : kNever);
}

Time Engine::safe_time() const {
  if (ranks_.size() < settings_.expected_ranks) {
    return 0;
  }
  const Time bound = least_bound();
  if (bound != kNever) {
    return bound;
  }
  // Nobody acts by itself. Time goes on if somebody waits for what is under way, or for the end of the run.
  return busy_ranks_ > 0 || all_ended() ? kNever : horizon_;
}

// The latest time that an answer asks about.
Time Engine::wanted_time() const {
  Time wanted = 0;
  for (const std::uint32_t index : asking_) {
    wanted = std::max(wanted, wanted_[index]);
  }
  return wanted;
}

void Engine::advance() {
  rollback();
  for (;;) {
    const Time wanted = settings_.optimistic ? wanted_time() : 0;
    bool moved = false;
    for (;;) {
      if (without_idle_) { // time goes no further than an answer needs
        run_ahead();
        if (somebody_goes_on()) {
          break;
        }
      }
      const Time limit = settings_.optimistic
                             ? std::max(safe_time(), wanted_unbounded_ > 0 ? kNever : (wanted == kNever ? 0 : wanted))
                             : safe_time();
      const Time time = next_time();
      if (time == kNever || time > limit) {
        break;
      }
      process(time);
      moved = true;
      EIDOLON_CHECK(late_ == kNever && late_ranks_.empty(), "causes come before effects");
    }
    if (settings_.optimistic ? !moved : !run_ahead()) {
      break;
    }
  }
  update_horizon();
}

// In a conservative engine, a coupled rank that no collective can reach need not wait for the others.
bool Engine::run_ahead() {
  bool moved = false;
  for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
    Rank &rank = ranks_[index];
    while (rank.coupled && rank.isolated() && !rank.exhausted() && rank.next_time() != kNever) {
      rank.step(rank.next_time(), tables_);
      drain(index);
      refresh(index);
      moved = true;
    }
  }
  return moved;
}

// The latest time that is known of any rank.
Time Engine::last_time() const {
  Time last = now_;
  for (const Rank &rank : ranks_) {
    last = std::max(last, rank.last_time());
  }
  return last;
}

void Engine::update_horizon() {
  if (ranks_.size() < settings_.expected_ranks) {
    return;
  }
  const Time bound = least_bound();
  const Time next = next_time();
  if (without_idle_ && !settings_.keep_all) {
    horizon_ = std::max(horizon_, now_);
  } else if (bound == kNever) {
    if (all_ended() && next == kNever) {
      horizon_ = std::max(horizon_, last_time()); // not the end of time, because a rank may still join
    } else if (!settings_.optimistic && !settings_.keep_all) {
      horizon_ = std::max(horizon_, now_);
    }
  } else if (!settings_.keep_all) {
    horizon_ = std::max(horizon_, std::min(bound, next));
  }
}

// Drops all history that is final.
void Engine::sweep() {
  for (Rank &rank : ranks_) {
    rank.forget(horizon_);
  }
  network_.forget(horizon_);
  while (!journal_.empty() && journal_.front().time <= horizon_) {
    const Happened &happened = journal_.front();
    if (happened.what == kEnd) {
      Collective &collective = collectives_[happened.slot];
      const std::uint32_t generation = collective.generation + 1;
      collective = Collective{};
      collective.generation = generation;
      free_collectives_.push_back(happened.slot);
    }
    journal_.pop_front();
  }
  unswept_ = 0;
}

} // namespace eidolon
