// The engine: ranks and the network in one virtual time.
//
// Ranks are evaluated ahead of the simulation's present where nothing can disturb them (rank.h). What ties them
// together is simulated in order of time: the agenda holds what begins (collectives and their flows), the network holds
// what ends, and coupled ranks hold their next event. Everything that happens at one instant is taken to its fixed
// point before time goes on and before shares are solved. So the order among simultaneous events does not matter, and
// the outcome is a function of the ranks' operations alone.
//
// The answer mode says how far the engine goes. A *conservative* engine goes up to the least time at which a running
// rank may still act, so it never undoes anything. An *optimistic* engine goes as far as an answer needs. It collects
// what arrives in the simulated past, and when a time is next asked for, one `cut` takes the whole engine back to the
// earliest arrival. A cut to t leaves the state at the end of t: the network goes back by its journal, and ranks that
// took part in something undone go back by their own history; other ranks keep their state. Then time goes on as
// before, which re-times all that depends on the arrivals, through streams, events, collectives, device rates, host
// lanes and other ranks.
//
// The horizon is the least time at which any rank may still act, or at which something is still to happen. What ended
// up to it is final. In a conservative engine an idle rank may act too, because it may sleep in real time until another
// rank does something. It is left behind only if all others wait for answers and one of these lies beyond it. So it
// matters little at which moment it slept.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arithmetic.h"
#include "containers.h"
#include "network.h"
#include "rank.h"
#include "rates.h"
#include "records.h"

namespace eidolon {

struct EngineSettings {
  bool optimistic = false;
  bool keep_all = false; // for tests: the horizon stays at 0 until every rank has ended, so nothing is dropped
  std::uint32_t expected_ranks = 0;  // the horizon stays 0 until so many are known
  std::uint32_t launch_depth = 1024; // 0: unlimited
};

struct FlowSpec {
  std::vector<std::uint32_t> route;
  std::uint64_t bytes = 0;
  std::uint32_t weight = 1;
  std::vector<std::uint32_t> counts{}; // by hop: flows such as this one on each link of its class; empty if no classes
};

class Engine {
public:
  explicit Engine(EngineSettings settings);
  Engine(const Engine &) = delete;
  Engine &operator=(const Engine &) = delete;
  Engine(Engine &&) = default;
  Engine &operator=(Engine &&) = default;

  void add_rank(std::uint32_t rank);
  void add_lane(std::uint32_t rank, std::uint32_t lane, std::uint32_t device);
  void end_rank(std::uint32_t rank);
  std::uint32_t add_link(std::uint64_t bytes_per_s, Time latency);
  std::uint16_t add_rates(RateTable table);
  void set_rates(std::uint32_t rank, std::uint16_t table);
  // Names the links at which a rank's device is. Flows over them get only the capacity that the device's work leaves.
  void set_ports(std::uint32_t rank, std::uint32_t device, const std::vector<std::uint32_t> &links);
  std::uint32_t add_pattern(const std::vector<FlowSpec> &flows);
  // A link as this one, at the same ports. Both stand for links that were one class (shares.h).
  std::uint32_t twin(std::uint32_t link);
  // Divides the flows of a pattern whose flows have counts. `origin` says which of the flows before each stems from.
  // What is under way goes on in parts from here. Not for an optimistic engine.
  void refine(std::uint32_t pattern, const std::vector<FlowSpec> &flows, const std::vector<std::uint32_t> &origin);
  // Makes a collective. `define` names its participants, at the latest before the last of them sends its operation.
  std::uint64_t reserve();
  void define(std::uint64_t handle, std::vector<std::uint32_t> participants, Time latency, std::uint32_t pattern);
  void ingest(std::uint32_t rank, std::span<const Operation> operations);

  std::vector<Answer> answers();
  Time clock(std::uint32_t rank);
  Time horizon();
  // When a collective ends, as far as that is known now: kNever if it has no end yet, 0 if the end is so long ago that
  // it is forgotten.
  Time end_of(std::uint64_t handle);
  std::vector<Span> spans(std::uint32_t rank);
  // Final spans of all ranks since the last call of this function or of `spans`, in order of time.
  std::vector<std::pair<std::uint32_t, Span>> timeline();
  std::vector<Mark> marks();
  std::vector<Jump> jumps();
  std::vector<Blocked> blocked();
  std::vector<OpenCall> open_calls(std::uint32_t rank);
  // Whether every rank that has not ended waits for a collective that nobody can complete.
  bool deadlocked();
  std::unordered_map<std::string, std::uint64_t> counters();

  std::string snapshot();
  void restore(std::string_view bytes);

private:
  struct Join {
    std::uint64_t group = 0;
    std::uint32_t rank = 0; // index
    std::uint32_t member = 0;
    Time reach = 0;
  };
  struct Collective {
    std::vector<std::uint32_t> participants; // sorted rank numbers
    std::vector<std::uint8_t> announced;     // by participant: whether an operation of it joins
    std::vector<std::uint32_t> early;        // joined before it was defined
    std::vector<Join> joins;
    Time latency = 0;
    Time start = kNever; // the last participant's reach
    Time end = kNever;
    std::uint64_t left = 0; // flows without an end
    std::uint32_t pattern = 0;
    std::uint32_t batches = 0; // started
    std::uint32_t version = 0; // version of its entries in the agenda
    std::uint32_t generation = 0;
    bool begun = false;
    bool live = false;
    bool defined = false;

    template <typename Archive> void archive(Archive &ar) {
      ar(participants, announced, early, joins, latency, start, end, left, pattern, batches, version, generation, begun,
         live, defined);
    }
  };
  // Flows that start together, at `offset` after the collective's latency has passed.
  struct Batch {
    Time offset = 0;
    std::vector<std::uint32_t> routes;
    std::vector<std::uint32_t> weights;
    std::vector<std::uint32_t> counts; // of equal flows
    std::vector<std::uint64_t> bytes;
    std::uint64_t instant = 0; // flows that end when they start

    template <typename Archive> void archive(Archive &ar) { ar(offset, routes, weights, counts, bytes, instant); }
  };
  struct Pattern {
    std::vector<Batch> batches;
    std::uint64_t flows = 0;
    bool silent = false;  // nothing goes over a link
    bool classes = false; // its flows have counts, and are kept in their order

    template <typename Archive> void archive(Archive &ar) { ar(batches, flows, silent, classes); }
  };
  // Flows of a pattern that agree in this are equal. They become one flow with the sum of their weights.
  struct FlowKey {
    Time offset = 0;         // latency of the route
    std::uint32_t route = 0; // all ones for a flow that ends when it starts
    std::uint64_t bytes = 0; // 0 for such a flow
    std::uint32_t weight = 0;
    auto operator<=>(const FlowKey &) const = default;
  };
  static constexpr std::uint32_t kBegin = ~std::uint32_t{0};
  static constexpr std::uint32_t kEnd = kBegin - 1;
  struct Due {
    Time time = 0;
    std::uint64_t slot = 0;
    std::uint32_t version = 0;
    std::uint32_t batch = 0; // or kBegin
  };
  struct Happened {
    Time time = 0;
    std::uint64_t slot = 0;
    std::uint32_t generation = 0;
    std::uint32_t what = 0; // batch, kBegin or kEnd
  };

  struct Device {
    std::uint32_t rank = 0; // index
    std::uint32_t number = 0;
    auto operator<=>(const Device &) const = default;
  };
  // A link at which a device is. A device that several ranks see has an owner for each rank.
  struct Port {
    std::uint32_t link = 0;
    Level capacity = 0;
    std::vector<Device> owners;

    template <typename Archive> void archive(Archive &ar) { ar(link, capacity, owners); }
  };

  [[nodiscard]] std::uint32_t index_of(std::uint32_t rank) const;
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t handle) const;
  [[nodiscard]] std::uint64_t handle_of(std::uint64_t slot) const {
    return slot | static_cast<std::uint64_t>(collectives_[slot].generation) << 32;
  }
  // The tag of a flow in the network, and what is in it.
  static std::uint64_t tag_of(std::uint64_t slot, std::size_t item) { return slot | item << 32; }
  static std::uint64_t slot_of_tag(std::uint64_t tag) { return tag & 0xffffffffU; }
  [[nodiscard]] Pattern pattern_of(const std::vector<FlowSpec> &flows);
  // Checks a flow and adds its route to the network.
  [[nodiscard]] FlowKey key_of(const FlowSpec &flow);
  static void add_equal_flows(Batch &batch, const FlowKey &key, std::size_t count);
  void validate(std::uint32_t index, const Operation &operation) const;
  void resume(std::uint32_t index, Operation operation);
  void announce(std::uint32_t rank, std::uint64_t handle);
  void announce_to(Collective &collective, std::uint32_t rank);
  void mark_dirty(std::uint32_t index);
  void settle();
  void settle_rank(std::uint32_t index);
  void drain(std::uint32_t index);
  void press(const Device &device);
  void refresh(std::uint32_t index);
  void schedule(std::uint64_t slot);
  void push_due(Time time, std::uint64_t slot, std::uint32_t what);
  [[nodiscard]] Time agenda_time();
  [[nodiscard]] Time next_time();
  void process(Time time);
  void begin(std::uint64_t slot);
  void start_batch(std::uint64_t slot, std::uint32_t batch);
  void flow_ended(std::uint64_t slot);
  void end_collective(std::uint64_t slot, Time end);
  void log(std::uint64_t slot, std::uint32_t what);
  [[nodiscard]] bool couples(const Collective &collective) const;
  void cut(Time time);
  void cut_rank(std::uint32_t index, Time time);
  [[nodiscard]] bool involved_since(std::uint32_t index, Time time) const;
  void rollback();
  void advance();
  [[nodiscard]] Time wanted_time() const;
  [[nodiscard]] Time resume_time() const { return settings_.optimistic ? horizon_ : std::max(horizon_, now_); }
  bool run_ahead();
  // The time up to which nothing can arrive any more.
  [[nodiscard]] Time safe_time() const;
  // The least time at which a rank may act by itself; kNever if no rank acts before something else happens.
  [[nodiscard]] Time least_bound() const;
  [[nodiscard]] Time last_time() const;
  [[nodiscard]] bool all_ended() const { return ended_ranks_ == ranks_.size() && !ranks_.empty(); }
  void answer(std::vector<Answer> &result);
  // The first time at which something may still happen that the engine has not seen.
  [[nodiscard]] Time first_unseen();
  // Whether a foreground thread that waits can be answered.
  [[nodiscard]] bool somebody_goes_on();
  // Whether nobody acts any more unless time goes on without the idle ranks, and somebody acts if it does.
  [[nodiscard]] bool waits_for_idle() const;
  [[nodiscard]] bool answerable(const Rank &rank, const Rank::Ask &ask, Time seen, Answer &answer) const;
  void update_horizon();
  void sweep();
  template <typename Archive> void archive(Archive &ar);

  EngineSettings settings_;
  Network network_;
  std::vector<Time> link_latency_;
  std::vector<RateTable> tables_;
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> index_of_; // rank number to index
  std::vector<Port> ports_;
  std::map<Device, std::vector<std::uint32_t>> ports_of_;
  std::vector<Pattern> patterns_;
  std::vector<Collective> collectives_;
  std::vector<std::uint64_t> free_collectives_;
  std::vector<Due> agenda_; // heap
  Ring<Happened> journal_;
  IndexedHeap coupled_; // coupled ranks by their next event
  IndexedHeap bounds_;  // ranks by the time at which they may act
  IndexedHeap resting_; // idle ranks by the time at which they stand
  std::vector<std::uint32_t> dirty_;
  std::vector<std::uint8_t> is_dirty_;
  std::vector<Network::Ended> ended_;
  std::vector<Jump> jumps_;
  Time now_ = 0;
  Time horizon_ = 0;
  Time late_ = kNever; // the earliest begin in the simulated past
  std::vector<std::uint32_t> late_ranks_;
  std::vector<Device> late_presses_; // whose ports changed in the simulated past
  // How far an answer makes the optimistic mode go, by rank; kNever for a wait whose end is not known.
  std::vector<Time> wanted_;
  std::size_t wanted_unbounded_ = 0;
  std::vector<std::uint8_t> is_busy_; // by rank: has operations that are not issued or completed
  std::size_t busy_ranks_ = 0;
  std::vector<std::uint8_t> is_acting_; // by rank: it neither rests nor waits for us
  std::size_t acting_ranks_ = 0;
  bool without_idle_ = false; // time goes on without the ranks that are idle
  std::size_t ended_ranks_ = 0;
  std::vector<std::uint32_t> asking_;
  std::vector<std::uint8_t> is_asking_;
  std::uint64_t unswept_ = 0; // operations since history was last dropped everywhere
  std::uint64_t collectives_made_ = 0;
  std::uint64_t rollbacks_ = 0;
  std::uint64_t rollback_depth_ns_ = 0; // sum
  std::uint64_t rollback_depth_max_ns_ = 0;
};

} // namespace eidolon
