// Flows over links, in time. It knows which flows are under way, at which rate, and which ends next.
//
// Progress is kept per route. `served` is what one unit of weight has got since the run began. It is linear in time
// between two changes of the route's rate, and a flow ends when `served` reaches the flow's goal. A change re-rates
// only the routes whose level really changed (shares.h).
//
// Every change goes into a journal, the newest last. `cut(t)` takes back all changes after t, which leaves exactly the
// state at the end of t. Nothing is computed backwards, since the journal holds the values before each change.
// `forget(t)` drops the journal up to t.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "arithmetic.h"
#include "containers.h"
#include "shares.h"

namespace eidolon {

class Network {
public:
  struct Ended {
    std::uint64_t tag;
    Time end;
  };
  struct Undone {
    std::vector<std::uint64_t> started; // tags of flows that have not started any more
    std::vector<std::uint64_t> ended;   // tags of flows that have not ended any more (they may not have started either)
  };
  struct Counters {
    std::uint64_t flows = 0;
    std::uint64_t active = 0;
    std::uint64_t rerated = 0;
    std::uint64_t undone = 0;
  };

  // Without a journal, `cut` must never be called.
  explicit Network(bool journal) : keep_journal_(journal) {}

  // What takes the place of a flow under way: the same bytes over another route, with the weight of all its flows.
  struct Part {
    std::uint32_t route;
    std::uint32_t weight;
    std::uint64_t tag;
  };

  std::uint32_t add_link(std::uint64_t bytes_per_s) { return add_link_of(level_of(bytes_per_s)); }
  std::uint32_t add_link_of(Level capacity) { return shares_.add_link(capacity); }
  // The capacity with which the link was added, in levels. `set_capacity` sets what the link has from now on, which is
  // at most that.
  [[nodiscard]] Level capacity(std::uint32_t link) const { return shares_.capacity(link); }
  void set_capacity(std::uint32_t link, Level capacity);
  // Returns the number of this route, which is the same for the same links and counts (shares.h; all 1 if empty).
  std::uint32_t add_route(std::span<const std::uint32_t> links, std::span<const std::uint32_t> counts = {});

  [[nodiscard]] Time now() const { return now_; }
  // When the next flow ends. Settles what happened at `now` first.
  Time next();
  // Moves time on to `time`, which is at most `next()`.
  void move(Time time);
  // Starts `count` equal flows now, as one flow, over a route of at least one link. Each has `bytes` > 0 and gets
  // `weight` times the fair level.
  void start(std::uint32_t route, std::uint32_t weight, std::uint32_t count, std::uint64_t bytes, std::uint64_t tag);
  // Puts parts in the place of the flow over this route that has this tag. Each part has left what the flow had.
  // Returns whether there is such a flow. Without a journal only.
  bool divide(std::uint32_t route, std::uint64_t tag, std::span<const Part> parts);
  // Ends the flows that end now.
  void complete(std::vector<Ended> &ended);
  void cut(Time time, Undone &undone);
  void forget(Time time);

  [[nodiscard]] const Counters &counters() const { return counters_; }
  [[nodiscard]] std::uint64_t links_solved() const { return shares_.links_solved(); }
  [[nodiscard]] std::size_t links() const { return shares_.links(); }
  [[nodiscard]] std::size_t routes() const { return shares_.routes(); }
  [[nodiscard]] std::size_t live_bytes() const;
  // Whether the shares equal the full solution and all invariants hold. Slow: for tests and debug builds.
  [[nodiscard]] bool consistent();

  template <typename Archive> void archive(Archive &ar) {
    ar(now_, keep_journal_, shares_, numbers_, progress_, flows_, free_flows_, heap_, journal_, counters_);
  }

private:
  struct Flow {
    Volume goal = 0;
    std::uint64_t tag = 0;
    std::uint32_t route = 0;
    std::uint32_t weight = 0; // of all
  };
  struct Goal {
    Volume goal = 0;
    std::uint64_t flow = 0;
    std::uint64_t pad = 0;
  };
  struct Progress {
    Volume served = 0;
    Time since = 0;
    Level rate = 0;
    std::vector<Goal> goals; // heap, least first

    template <typename Archive> void archive(Archive &ar) { ar(served, since, rate, goals); }
  };
  enum class Change : std::uint32_t { kRate, kLevel, kStart, kEnd, kCapacity };
  struct Entry {
    Volume served = 0;
    Time time = 0;
    Time since = 0;
    Level rate = 0;
    Change change = Change::kRate;
    std::uint32_t number = 0; // route, link or flow
  };

  void settle();
  void predict(std::uint32_t route);
  void begin(std::uint32_t number);
  [[nodiscard]] std::uint32_t free_flow();
  [[nodiscard]] Volume served(const Progress &progress) const {
    return progress.served + static_cast<Volume>(progress.rate) * static_cast<Volume>(now_ - progress.since);
  }

  Time now_ = 0;
  bool keep_journal_;
  Shares shares_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> numbers_;
  std::vector<Progress> progress_; // by route
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> free_flows_;
  IndexedHeap heap_; // routes by their next end
  Ring<Entry> journal_;
  Counters counters_;
  std::vector<std::uint32_t> restored_links_;
};

} // namespace eidolon
