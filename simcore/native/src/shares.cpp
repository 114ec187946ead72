#include "shares.h"

#include <algorithm>
#include <bit>

#include "check.h"

namespace eidolon {

namespace {
constexpr int kDemandBits = 36;
constexpr auto kHigherLevel = [](const auto &a, const auto &b) { return a.level > b.level; };
} // namespace

std::uint32_t Shares::add_link(Level capacity) {
  Link link;
  link.capacity = capacity;
  const int bits = std::bit_width(static_cast<std::uint64_t>(capacity));
  link.shift = static_cast<std::uint32_t>(std::max(bits - kDemandBits, 0));
  links_.push_back(std::move(link));
  levels_.push_back(kUnlimited);
  return static_cast<std::uint32_t>(links_.size() - 1);
}

std::uint32_t Shares::add_route(std::span<const std::uint32_t> links, std::span<const std::uint32_t> counts) {
  Route route;
  route.first_hop = static_cast<std::uint32_t>(hops_.size());
  route.hops = static_cast<std::uint32_t>(links.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    hops_.push_back({links[i], 0, counts.empty() ? 1 : counts[i]});
  }
  routes_.push_back(route);
  return static_cast<std::uint32_t>(routes_.size() - 1);
}

void Shares::enqueue(std::uint32_t link) {
  if (!links_[link].queued) {
    links_[link].queued = true;
    queue_.push_back({levels_[link], link});
    std::push_heap(queue_.begin(), queue_.end(), kHigherLevel);
  }
}

void Shares::set_capacity(std::uint32_t number, Level capacity) {
  Link &link = links_[number];
  if (capacity == link.capacity) {
    return;
  }
  link.capacity = capacity;
  link.demand = 0; // no bound counts beyond the capacity
  for (const Entry &entry : link.entries) {
    link.demand += link.demand_of(entry.bound, entry.weight);
  }
  enqueue(number);
}

void Shares::touch(std::uint32_t route) {
  if (!routes_[route].touched) {
    routes_[route].touched = true;
    touched_.push_back(route);
  }
}

void Shares::clear_touched() {
  for (const std::uint32_t route : touched_) {
    routes_[route].touched = 0;
  }
  touched_.clear();
}

void Shares::clear_level_changes() {
  level_changes_.clear();
  ++epoch_;
}

Shares::Bounds Shares::bounds(const Route &route) const {
  Bounds result;
  for (std::uint32_t i = 0; i < route.hops; ++i) {
    const Level level = levels_[hops_[route.first_hop + i].link];
    if (level < result.least) {
      result.second = result.least;
      result.least = level;
      result.least_hop = i;
    } else if (level < result.second) {
      result.second = level;
    }
  }
  return result;
}

void Shares::add_weight(std::uint32_t number, std::int64_t delta) {
  Route &route = routes_[number];
  const bool was_active = route.weight != 0;
  route.weight += delta;
  EIDOLON_CHECK(route.weight >= 0, "weights are positive");
  for (std::uint32_t i = 0; i < route.hops; ++i) {
    const Hop hop = hops_[route.first_hop + i];
    Link &link = links_[hop.link];
    link.weight += delta * hop.count;
    enqueue(hop.link);
    if (was_active && route.weight != 0) {
      Entry &entry = link.entries[hop.position];
      entry.weight = route.weight * hop.count;
      link.demand += link.demand_of(entry.bound, delta * hop.count); // wraps where negative, so it subtracts
    }
  }
  if (!was_active) {
    attach(number);
  } else if (route.weight == 0) {
    detach(number);
  }
  touch(number);
}

void Shares::attach(std::uint32_t number) {
  Route &route = routes_[number];
  const Bounds least = bounds(route);
  route.level = least.least;
  route.second = least.second;
  route.least_hop = least.least_hop;
  for (std::uint32_t i = 0; i < route.hops; ++i) {
    Hop &hop = hops_[route.first_hop + i];
    Link &link = links_[hop.link];
    const Level bound = i == least.least_hop ? least.second : least.least;
    hop.position = static_cast<std::uint32_t>(link.entries.size());
    link.entries.push_back({bound, route.weight * hop.count, number, i});
    link.demand += link.demand_of(bound, route.weight * hop.count);
  }
}

void Shares::detach(std::uint32_t number) {
  const Route &route = routes_[number];
  for (std::uint32_t i = 0; i < route.hops; ++i) {
    const Hop hop = hops_[route.first_hop + i];
    Link &link = links_[hop.link];
    std::vector<Entry> &entries = link.entries;
    link.demand -= link.demand_of(entries[hop.position].bound, entries[hop.position].weight);
    entries[hop.position] = entries.back();
    entries.pop_back();
    if (hop.position < entries.size()) {
      const Entry &moved = entries[hop.position];
      hops_[routes_[moved.route].first_hop + moved.hop].position = hop.position;
    }
  }
}

Level Shares::fair_level(const Link &link) const {
  if (link.relaxed() || link.weight == 0) {
    return kUnlimited;
  }
  if (link.entries.size() == 1) {
    const Entry &only = link.entries.front();
    const Level level = only.weight == 1 ? link.capacity : std::max<Level>(link.capacity / only.weight, 1);
    return only.bound < level ? kUnlimited : level;
  }
  Level level = std::max<Level>(link.capacity / link.weight, 1);
  std::int64_t taken_before = 0;
  for (;;) {
    std::int64_t taken_weight = 0;
    Level taken = 0;
    for (const Entry &entry : link.entries) {
      const bool below = entry.bound < level;
      taken_weight += below ? entry.weight : 0;
      taken += below ? entry.weight * entry.bound : 0;
    }
    if (taken_weight == taken_before) {
      return level;
    }
    if (taken_weight == link.weight) {
      return kUnlimited;
    }
    taken_before = taken_weight;
    level = std::max<Level>((link.capacity - taken) / (link.weight - taken_weight), 1);
  }
}

void Shares::rebound(const Hop &hop, Level bound, bool follow) {
  Link &link = links_[hop.link];
  Entry &entry = link.entries[hop.position];
  if (bound == entry.bound) {
    return;
  }
  // A link's level depends only on bounds below it.
  const Level level = levels_[hop.link];
  const bool noticed = std::min(bound, entry.bound) < level;
  link.demand += link.demand_of(bound, entry.weight) - link.demand_of(entry.bound, entry.weight);
  entry.bound = bound;
  if (noticed && follow && (level != kUnlimited || !link.relaxed())) {
    enqueue(hop.link);
  }
}

void Shares::relax(std::uint32_t number, bool follow) {
  Route &route = routes_[number];
  const Bounds least = bounds(route);
  route.second = least.second;
  if (least.least == route.level && least.least_hop == route.least_hop) {
    // Every other hop is bound by the least level, which is what it was.
    rebound(hops_[route.first_hop + least.least_hop], least.second, follow);
    return;
  }
  if (least.least != route.level) {
    route.level = least.least;
    touch(number);
  }
  route.least_hop = least.least_hop;
  for (std::uint32_t i = 0; i < route.hops; ++i) {
    rebound(hops_[route.first_hop + i], i == least.least_hop ? least.second : least.least, follow);
  }
}

// One link of the route went from `before` to `level`, and all others are as of the last look. Mostly that link alone
// decides.
void Shares::relax(const Entry &entry, Level before, Level level) {
  Route &route = routes_[entry.route];
  if (entry.hop == route.least_hop ? level > route.second : before == route.second && level > before) {
    relax(entry.route, true); // the least link has to be found again
    return;
  }
  if (entry.hop != route.least_hop && level >= route.level) {
    if (level < route.second) {
      route.second = level;
      rebound(hops_[route.first_hop + route.least_hop], level, true);
    }
    return;
  }
  if (entry.hop != route.least_hop) {
    route.second = route.level;
    route.least_hop = entry.hop;
  }
  route.level = level;
  touch(entry.route);
  for (std::uint32_t i = 0; i < route.hops; ++i) {
    if (i != entry.hop) {
      rebound(hops_[route.first_hop + i], level, true);
    }
  }
}

void Shares::solve() {
  while (!queue_.empty()) {
    const auto number = static_cast<std::uint32_t>(queue_.front().link);
    std::pop_heap(queue_.begin(), queue_.end(), kHigherLevel);
    queue_.pop_back();
    Link &link = links_[number];
    link.queued = false;
    ++links_solved_;
    const Level level = fair_level(link);
    if (level == levels_[number]) {
      continue;
    }
    if (link.logged_in != epoch_) {
      link.logged_in = epoch_;
      level_changes_.push_back({number, levels_[number]});
    }
    const Level before = levels_[number];
    levels_[number] = level;
    for (const Entry &entry : link.entries) {
      relax(entry, before, level);
    }
  }
}

void Shares::refresh(std::uint32_t link) {
  for (std::size_t k = 0; k < links_[link].entries.size(); ++k) {
    relax(links_[link].entries[k].route, false);
  }
}

std::vector<Level> Shares::full_solution() const {
  std::vector<Level> result(routes_.size(), kUnlimited);
  std::vector<bool> fixed(routes_.size(), false);
  std::vector<Level> left(links_.size());
  std::vector<std::int64_t> weight(links_.size());
  for (std::size_t i = 0; i < links_.size(); ++i) {
    left[i] = links_[i].capacity;
    weight[i] = links_[i].weight;
  }
  for (;;) {
    Level least = kUnlimited;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (weight[i] > 0) {
        least = std::min(least, std::max<Level>(left[i] / weight[i], 1));
      }
    }
    if (least == kUnlimited) {
      return result;
    }
    // All links that attain the least level are saturated together, before any of their flows leaves another link.
    std::vector<std::uint32_t> saturated;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (weight[i] > 0 && std::max<Level>(left[i] / weight[i], 1) == least) {
        for (const Entry &entry : links_[i].entries) {
          if (!fixed[entry.route]) {
            fixed[entry.route] = true;
            saturated.push_back(entry.route);
          }
        }
      }
    }
    for (const std::uint32_t number : saturated) {
      const Route &route = routes_[number];
      result[number] = least;
      for (std::uint32_t i = 0; i < route.hops; ++i) {
        const Hop hop = hops_[route.first_hop + i];
        left[hop.link] -= least * route.weight * hop.count;
        weight[hop.link] -= route.weight * hop.count;
      }
    }
  }
}

bool Shares::consistent() const {
  const std::vector<Level> full = full_solution();
  for (std::size_t i = 0; i < routes_.size(); ++i) {
    const Route &route = routes_[i];
    if (route.weight == 0) {
      continue;
    }
    bool held_back = false;
    for (std::uint32_t k = 0; k < route.hops; ++k) {
      held_back = held_back || levels_[hops_[route.first_hop + k].link] == route.level;
    }
    if (route.level != full[i] || !held_back) {
      return false;
    }
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const Link &link = links_[i];
    Volume load = 0;
    for (const Entry &entry : link.entries) {
      load += static_cast<Volume>(entry.weight) * static_cast<Volume>(routes_[entry.route].level);
    }
    const bool crowded = link.weight > link.capacity; // every flow gets at least one unit, even over the capacity
    if (load > static_cast<Volume>(link.capacity) && !crowded) {
      return false;
    }
    // A link that holds flows back is full but for what it cannot divide among them.
    if (link.weight > 0 && levels_[i] != kUnlimited &&
        load + static_cast<Volume>(link.weight) <= static_cast<Volume>(link.capacity)) {
      return false;
    }
  }
  return true;
}

} // namespace eidolon
