// Max-min fair shares of links, kept up to date change by change.
//
// Every link has a *level*: what it gives to each unit of weight of the flows it holds back. A flow's rate per unit of
// weight is the least level along its route. With d = the least level of a flow's *other* links, a link's level is the
// least solution v of
//
//     v = floor((capacity - sum of weight * d over flows with d < v) / (weight of the flows with d >= v))
//
// (unlimited if no flow has d >= v). These equations have exactly one solution in integers. Proof: No level is below
// L1 = min over links of floor(capacity / weight), since the iteration for v starts there and only rises. So a link
// that attains L1 has level L1. That fixes the rates of its flows. Without these flows, which are strictly below every
// other level, a smaller system of the same form is left, with a larger least level. Hence the levels depend neither on
// the order in which links are looked at nor on the levels before, and a solution that is reached by following a change
// from link to link is the full solution, to the bit. (To break ties by taking one saturated link after another would
// not do, because rounding down gives the remainder to the link that comes last.)
//
// `solve` follows changes. A link whose flows changed is recomputed. If its level moved, the links that its flows also
// use are looked at, but only those whose level is above the change, because the others cannot notice it. It ends for
// the same reason that the solution is unique: the lowest links are right once they were looked at, and then the next.
//
// Flows over the same route always have the same rate, so the unit here is the route, with the weight of all its flows.
//
// A link may stand for many equal links, and a route for many equal flows. Then each hop has a *count*: how many flows
// such as this one are on each of those links. They weigh as many times on the link. If all links of a class have as
// many flows of each class, and all flows of a class cross as many links of each class, then levels that are equal
// within each class solve the equations of the whole network exactly if they solve those of the classes. As there is
// one solution, the classes have it, to the bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arithmetic.h"

namespace eidolon {

class Shares {
public:
  struct LevelChange {
    std::uint32_t link;
    Level before;
  };

  std::uint32_t add_link(Level capacity);
  // `counts` are those of the hops; 1 each if it is empty.
  std::uint32_t add_route(std::span<const std::uint32_t> links, std::span<const std::uint32_t> counts);

  [[nodiscard]] Level capacity(std::uint32_t link) const { return links_[link].capacity; }
  // Sets the capacity from now on, at most what the link was added with.
  void set_capacity(std::uint32_t link, Level capacity);

  void add_weight(std::uint32_t route, std::int64_t delta);
  // Adds the route to the list of `touched` routes.
  void touch(std::uint32_t route);
  void solve();

  // Whether nothing changed since the last solution.
  [[nodiscard]] bool solved() const { return touched_.empty() && queue_.empty(); }
  [[nodiscard]] Level level(std::uint32_t route) const { return routes_[route].level; }
  [[nodiscard]] std::int64_t weight(std::uint32_t route) const { return routes_[route].weight; }
  [[nodiscard]] std::size_t links() const { return links_.size(); }
  [[nodiscard]] std::size_t routes() const { return routes_.size(); }

  // Routes whose level may have changed, and links whose level did, since the lists were last cleared.
  [[nodiscard]] const std::vector<std::uint32_t> &touched() const { return touched_; }
  [[nodiscard]] const std::vector<LevelChange> &level_changes() const { return level_changes_; }
  void clear_touched();
  void clear_level_changes();

  // For undoing: puts levels back as they were. After all of them, `refresh` has to be called for each link.
  void restore_level(std::uint32_t link, Level level) { levels_[link] = level; }
  void refresh(std::uint32_t link);

  // The solution by water filling over all links at once, one level after another. `solve` must equal it.
  [[nodiscard]] std::vector<Level> full_solution() const;
  // Whether the levels equal the full solution, no link is over its capacity, and a saturated link holds back every
  // flow. Slow.
  [[nodiscard]] bool consistent() const;
  [[nodiscard]] std::uint64_t links_solved() const { return links_solved_; }

  template <typename Archive> void archive(Archive &ar) {
    ar(links_, levels_, routes_, hops_, queue_, touched_, level_changes_, links_solved_, epoch_);
  }

private:
  // A route on a link: `bound` is the least level of the route's other links.
  struct Entry {
    Level bound = 0;
    std::int64_t weight = 0;
    std::uint32_t route = 0;
    std::uint32_t hop = 0;
  };
  struct Link {
    Level capacity = 0;
    std::int64_t weight = 0;
    // Sum of weight * bound, each bound counted as the capacity at most. While it leaves `weight` units of the capacity
    // over, the link holds nobody back: were v its level and n the weight of the flows it holds back, the capacity
    // would be less than (sum over the others) + (v + 1) * n, so less than demand + weight. Most links are of this kind
    // and are dismissed by this one comparison. It is kept in coarser units, bounds rounded up, so that it stays within
    // 64 bits for a weight up to 2^26; coarser only means that fewer links are dismissed.
    std::uint64_t demand = 0;
    std::vector<Entry> entries;
    std::uint64_t logged_in = 0;
    std::uint32_t shift = 0;
    bool queued = false;

    [[nodiscard]] bool relaxed() const {
      return demand + static_cast<std::uint64_t>(weight) <= static_cast<std::uint64_t>(capacity >> shift);
    }
    [[nodiscard]] std::uint64_t demand_of(Level bound, std::int64_t of_weight) const {
      const Level counted = ((bound < capacity ? bound : capacity) >> shift) + 1;
      return static_cast<std::uint64_t>(counted) * static_cast<std::uint64_t>(of_weight);
    }
    template <typename Archive> void archive(Archive &ar) {
      ar(capacity, weight, demand, entries, logged_in, shift, queued);
    }
  };
  struct Queued {
    Level level; // of the link when it was queued: low levels first, for they do not depend on higher ones
    std::uint64_t link;
  };
  struct Hop {
    std::uint32_t link = 0;
    std::uint32_t position = 0; // of its entry on the link, while the route has weight
    std::uint32_t count = 1;    // flows such as this one on the link
  };
  struct Route {
    std::uint32_t first_hop = 0;
    std::uint32_t hops = 0;
    std::int64_t weight = 0;
    Level level = kUnlimited;    // the least of its links, as of the last look
    Level second = kUnlimited;   // the least of the others
    std::uint32_t least_hop = 0; // where the least is
    std::uint32_t touched = 0;
  };

  struct Bounds {
    Level least = kUnlimited;
    Level second = kUnlimited;
    std::uint32_t least_hop = 0;
  };

  [[nodiscard]] Bounds bounds(const Route &route) const;
  [[nodiscard]] Level fair_level(const Link &link) const;
  void attach(std::uint32_t route);
  void detach(std::uint32_t route);
  void relax(std::uint32_t route, bool follow);
  void relax(const Entry &entry, Level before, Level level);
  void rebound(const Hop &hop, Level bound, bool follow);
  void enqueue(std::uint32_t link);

  std::vector<Link> links_;
  std::vector<Level> levels_; // of the links, apart and close together: nearly all reads are of these
  std::vector<Route> routes_;
  std::vector<Hop> hops_;
  std::vector<Queued> queue_; // heap
  std::vector<std::uint32_t> touched_;
  std::vector<LevelChange> level_changes_;
  std::uint64_t links_solved_ = 0;
  std::uint64_t epoch_ = 1;
};

} // namespace eidolon
