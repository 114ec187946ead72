#include "network.h"

#include <algorithm>

#include "check.h"

namespace eidolon {

namespace {
// The least goal comes first. Where goals are equal, the least flow does.
constexpr auto kLaterGoal = [](const auto &a, const auto &b) {
  return a.goal != b.goal ? a.goal > b.goal : a.flow > b.flow;
};
} // namespace

std::uint32_t Network::add_route(std::span<const std::uint32_t> links, std::span<const std::uint32_t> counts) {
  std::vector<std::uint32_t> key(links.begin(), links.end());
  if (!counts.empty()) {
    key.push_back(~std::uint32_t{0}); // no link has this number
    key.insert(key.end(), counts.begin(), counts.end());
  }
  const auto [at, fresh] = numbers_.try_emplace(std::move(key), 0);
  if (fresh) {
    at->second = shares_.add_route(links, counts);
    progress_.emplace_back();
  }
  return at->second;
}

void Network::predict(std::uint32_t route) {
  const Progress &progress = progress_[route];
  if (progress.goals.empty() || progress.rate == 0) {
    heap_.erase(route);
    return;
  }
  const Volume goal = progress.goals.front().goal;
  const Time wait = goal <= progress.served ? 0 : time_to_serve(goal - progress.served, progress.rate);
  heap_.set(route, later(progress.since, wait));
}

void Network::settle() {
  shares_.solve();
  if (keep_journal_) {
    for (const auto &[link, before] : shares_.level_changes()) {
      journal_.push_back({.time = now_, .rate = before, .change = Change::kLevel, .number = link});
    }
  }
  shares_.clear_level_changes();
  for (const std::uint32_t route : shares_.touched()) {
    Progress &progress = progress_[route];
    const Level rate = progress.goals.empty() ? 0 : shares_.level(route);
    if (rate != progress.rate) {
      if (keep_journal_) {
        journal_.push_back({progress.served, now_, progress.since, progress.rate, Change::kRate, route});
      }
      progress.served = served(progress);
      progress.since = now_;
      progress.rate = rate;
      ++counters_.rerated;
    }
    predict(route);
  }
  shares_.clear_touched();
#ifdef EIDOLON_CHECKS
  EIDOLON_CHECK(links() > 64 || consistent(), "shares are the full max-min solution");
#endif
}

Time Network::next() {
  if (!shares_.solved()) {
    settle();
  }
  return heap_.top_time();
}

void Network::move(Time time) {
  if (time == now_) {
    return;
  }
  [[maybe_unused]] const Time limit = next();
  EIDOLON_CHECK(time > now_, "the network's clock is monotone");
  EIDOLON_CHECK(time <= limit, "no end is passed over");
  now_ = time;
}

void Network::set_capacity(std::uint32_t link, Level capacity) {
  const Level before = shares_.capacity(link);
  if (capacity == before) {
    return;
  }
  if (keep_journal_) {
    journal_.push_back({.time = now_, .rate = before, .change = Change::kCapacity, .number = link});
  }
  shares_.set_capacity(link, capacity);
}

void Network::begin(std::uint32_t number) {
  const Flow &flow = flows_[number];
  std::vector<Goal> &goals = progress_[flow.route].goals;
  goals.push_back({flow.goal, number, 0});
  std::push_heap(goals.begin(), goals.end(), kLaterGoal);
  shares_.add_weight(flow.route, flow.weight);
  ++counters_.active;
}

std::uint32_t Network::free_flow() {
  if (free_flows_.empty()) {
    flows_.emplace_back();
    return static_cast<std::uint32_t>(flows_.size() - 1);
  }
  const std::uint32_t number = free_flows_.back();
  free_flows_.pop_back();
  return number;
}

void Network::start(std::uint32_t route, std::uint32_t weight, std::uint32_t count, std::uint64_t bytes,
                    std::uint64_t tag) {
  const std::uint32_t number = free_flow();
  const Volume each = weight == 1 ? volume_of(bytes) : (volume_of(bytes) + (weight - 1)) / weight;
  flows_[number] = {served(progress_[route]) + each, tag, route, weight * count};
  begin(number);
  ++counters_.flows;
  if (keep_journal_) {
    journal_.push_back({.time = now_, .change = Change::kStart, .number = number});
  }
}

bool Network::divide(std::uint32_t route, std::uint64_t tag, std::span<const Part> parts) {
  EIDOLON_CHECK(!keep_journal_, "flows are divided where nothing is undone");
  Progress &whole = progress_[route];
  const auto at = std::find_if(whole.goals.begin(), whole.goals.end(),
                               [&](const Goal &goal) { return flows_[goal.flow].tag == tag; });
  if (at == whole.goals.end()) {
    return false;
  }
  const auto number = static_cast<std::uint32_t>(at->flow);
  const Volume left = at->goal - served(whole);
  whole.goals.erase(at);
  std::make_heap(whole.goals.begin(), whole.goals.end(), kLaterGoal);
  shares_.add_weight(route, -static_cast<std::int64_t>(flows_[number].weight));
  --counters_.active;
  free_flows_.push_back(number);
  for (const Part &part : parts) {
    const std::uint32_t fresh = free_flow();
    flows_[fresh] = {served(progress_[part.route]) + left, part.tag, part.route, part.weight};
    begin(fresh);
  }
  counters_.flows += parts.size() - 1;
  return true;
}

void Network::complete(std::vector<Ended> &ended) {
  while (heap_.top_time() <= now_) {
    const std::uint32_t route = heap_.top();
    Progress &progress = progress_[route];
    const Volume reached = served(progress);
    while (!progress.goals.empty() && progress.goals.front().goal <= reached) {
      const auto number = static_cast<std::uint32_t>(progress.goals.front().flow);
      EIDOLON_CHECK(reached - progress.goals.front().goal < static_cast<Volume>(progress.rate) || progress.rate == 0,
                    "a flow has moved its bytes, and less than a nanosecond more");
      std::pop_heap(progress.goals.begin(), progress.goals.end(), kLaterGoal);
      progress.goals.pop_back();
      const Flow &flow = flows_[number];
      ended.push_back({flow.tag, now_});
      shares_.add_weight(route, -static_cast<std::int64_t>(flow.weight));
      --counters_.active;
      if (keep_journal_) {
        journal_.push_back({.time = now_, .change = Change::kEnd, .number = number});
      } else {
        free_flows_.push_back(number);
      }
    }
    predict(route);
  }
}

void Network::cut(Time time, Undone &undone) {
  if (time >= now_) {
    return;
  }
  restored_links_.clear();
  while (!journal_.empty() && journal_.back().time > time) {
    const Entry &entry = journal_.back();
    ++counters_.undone;
    switch (entry.change) {
    case Change::kRate: {
      Progress &progress = progress_[entry.number];
      progress.served = entry.served;
      progress.since = entry.since;
      progress.rate = entry.rate;
      shares_.touch(entry.number);
      break;
    }
    case Change::kLevel:
      shares_.restore_level(entry.number, entry.rate);
      restored_links_.push_back(entry.number);
      break;
    case Change::kStart: {
      const Flow &flow = flows_[entry.number];
      std::vector<Goal> &goals = progress_[flow.route].goals;
      goals.erase(std::find_if(goals.begin(), goals.end(), [&](const Goal &g) { return g.flow == entry.number; }));
      std::make_heap(goals.begin(), goals.end(), kLaterGoal);
      shares_.add_weight(flow.route, -static_cast<std::int64_t>(flow.weight));
      --counters_.active;
      --counters_.flows;
      undone.started.push_back(flow.tag);
      free_flows_.push_back(entry.number);
      break;
    }
    case Change::kCapacity:
      shares_.set_capacity(entry.number, entry.rate);
      break;
    case Change::kEnd:
      begin(entry.number);
      undone.ended.push_back(flows_[entry.number].tag);
      break;
    }
    journal_.pop_back();
  }
  now_ = time;
  std::sort(restored_links_.begin(), restored_links_.end());
  restored_links_.erase(std::unique(restored_links_.begin(), restored_links_.end()), restored_links_.end());
  for (const std::uint32_t link : restored_links_) {
    shares_.refresh(link);
  }
}

void Network::forget(Time time) {
  while (!journal_.empty() && journal_.front().time <= time) {
    if (journal_.front().change == Change::kEnd) {
      free_flows_.push_back(journal_.front().number);
    }
    journal_.pop_front();
  }
}

bool Network::consistent() { return shares_.consistent(); }

std::size_t Network::live_bytes() const {
  return journal_.bytes() + flows_.capacity() * sizeof(Flow) + progress_.capacity() * sizeof(Progress) +
         shares_.routes() * 128 + shares_.links() * 128;
}

} // namespace eidolon
