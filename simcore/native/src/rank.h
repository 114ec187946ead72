// A rank has a host lane, device lanes, and what ties them together.
//
// The host lane issues operations in program order. What it issues is appended to device lanes (lane.h). Both are
// evaluated as far as they can be. The host stops at an operation that waits for something without a time, or at a full
// launch queue. A lane stops at a collective that has not ended. A rank learns everything else through `member_ended`,
// and tells others everything through `events`.
//
// There are two kinds of ranks:
// * In an *uncoupled* rank no time depends on what else the device does. It is evaluated at once, by max and plus,
//   however far ahead of the simulation's present.
// * In a *coupled* rank (rates.h) lanes of a device slow each other down. It is evaluated event by event in order of
//   time, by `step`, and has a present of its own.
//
// `cut(t)` undoes whatever happened after t. Nodes that ended after t have no time any more, and operations that were
// issued after t are pending again. A node that depends on something that ended after t has itself ended after t. So
// this undoes all that could change, whatever the cause. Values before t stay, and evaluation goes on from there.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "gone_keys.h"
#include "lane.h"
#include "rates.h"
#include "records.h"

namespace eidolon {

class Rank {
public:
  // A member of a group of this rank reached its collective. With reach == kNever this is undone.
  struct Event {
    std::uint64_t collective = 0;
    std::uint64_t group = 0;
    std::uint32_t member = 0;
    std::uint32_t pad = 0;
    Time reach = kNever;
  };
  // An answer that is owed.
  struct Ask {
    std::uint64_t op = 0; // number of the operation
    std::uint64_t seq = 0;
    Time issue = 0;
    Time done = kNever; // host time after the operation
    std::vector<Ref> refs;
    Time key_time = kNever; // of a key whose node is gone
    Op kind = Op::kHost;
    bool blocks = false;
    bool background = false;

    template <typename Archive> void archive(Archive &ar) {
      ar(op, seq, issue, done, refs, key_time, kind, blocks, background);
    }
  };
  struct Settings {
    std::uint32_t launch_depth = 0;
    bool journal = false;
  };
  struct Counters {
    std::uint64_t operations = 0;
    std::uint64_t nodes = 0;
    std::uint64_t retimed = 0;
    std::uint64_t spans = 0;
    std::uint64_t jumps = 0; // resumptions that moved the clock
    std::uint64_t jump_ns = 0;
  };

  Rank() = default;
  Rank(std::uint32_t number, Settings settings) : number_(number), settings_(settings) {}

  void add_lane(std::uint32_t lane, std::uint32_t device);
  [[nodiscard]] bool has_lane(std::uint32_t lane) const { return lanes_by_number_.contains(lane); }
  void ingest(const Operation &operation);
  // Sets the table of rates of the operations that are issued from now on.
  void set_table(std::uint16_t table) { table_ = table; }
  // May be called only before the first operation.
  void set_coupled();

  // Evaluates an uncoupled rank as far as possible.
  void run(const std::vector<RateTable> &tables);
  // For a coupled rank: `next_time` says when something happens next, and `step` does what happens at `time`.
  [[nodiscard]] Time next_time() const;
  void step(Time time, const std::vector<RateTable> &tables);
  // When the next operation is issued, if that is before the rank's present. The rank then has to be cut there first.
  [[nodiscard]] Time late_time() const;

  // For a coupled rank: a collective begins (+1) or ceases (-1) to be under way on the member's device.
  void member_under_way(std::uint64_t group, std::uint32_t member, int change, Time time);
  void member_ended(std::uint64_t group, std::uint32_t member, Time end);
  void cut(Time time, const std::vector<RateTable> &tables);
  // Drops what is final at `horizon` and adds its spans to `spans`.
  void forget(Time horizon);

  // The least time at which the rank may act by itself; kNever if something else has to happen first.
  [[nodiscard]] Time bound() const;
  // Whether it is idle and has done all that was sent before.
  [[nodiscard]] bool rests() const { return idle && !ended && !host_blocked() && exhausted(); }
  // Whether one of its foreground threads runs in real time, which means that it is not idle and waits for no answer.
  [[nodiscard]] bool acting() const;
  [[nodiscard]] Time clock() const { return waiting_ ? ops_[next_].issue : clock_; }
  [[nodiscard]] bool exhausted() const { return next_ == ops_.end(); }
  [[nodiscard]] bool host_blocked() const { return waiting_ || stalled_; }
  [[nodiscard]] std::uint64_t blocked_seq() const { return ops_[next_].op.seq; }
  [[nodiscard]] bool owes_unissued() const { return owed > asks.size(); }
  // The later of the time at which its host lane stands and the end of what its devices have done.
  [[nodiscard]] Time last_time() const;
  // Sets the clock of a rank that joins late.
  void start_at(Time time) { clock_ = now = time; }
  [[nodiscard]] bool isolated() const { return open_groups_ == 0; }
  // Whether a collective was under way on one of its devices at some time after `time`.
  [[nodiscard]] bool communicated_since(Time time) const;
  // What the device with this number leaves of its ports to collectives now.
  [[nodiscard]] std::int64_t left_of(std::uint32_t device) const;
  // Collectives that the host waits for and that this rank has reached.
  [[nodiscard]] std::vector<std::uint64_t> waits_for() const;
  // Calls of collectives that were issued and whose collective has no end yet, in order.
  [[nodiscard]] std::vector<OpenCall> open_calls() const;
  [[nodiscard]] Time end_of(const Ref &ref) const {
    return ref.lane == Ref::kNone ? 0 : lanes_[ref.lane].end_of(ref.node);
  }
  // Takes the step marks that are final at `horizon`.
  void take_marks(Time horizon, std::vector<Mark> &marks);
  void answered(const Ask &ask);
  // How far a resumption moved the clock.
  [[nodiscard]] Time jumped(const Ask &ask) const;
  // Answers the operations that do not wait for a host that stands still.
  void overtake(std::vector<Answer> &answers);
  // The value of an answer about `ask.refs`: their latest end, kNever if it is not known.
  [[nodiscard]] Time end_of(const Ask &ask) const;
  [[nodiscard]] std::size_t live_bytes() const;
  [[nodiscard]] std::size_t live_segments() const;
  [[nodiscard]] std::size_t live_nodes() const;

  std::vector<Event> events;
  std::vector<std::uint32_t> pressed; // numbers of devices that leave another share of their ports than before
  std::vector<Ask> asks;
  std::vector<Span> spans;
  std::uint64_t owed = 0; // answers, including those whose operation is not issued yet
  bool coupled = false;
  bool idle = false;
  bool ended = false;
  Time now = 0;  // present of a coupled rank
  Time told = 0; // latest clock given in an answer
  Counters counters;

  [[nodiscard]] std::uint32_t number() const { return number_; }
  [[nodiscard]] bool has_marks() const { return !marks_.empty(); }

  template <typename Archive> void archive(Archive &ar) {
    ar(number_, settings_, lanes_, lanes_by_number_, devices_, groups_, ops_, keys_, gone_, key_undo_, waits_, marks_,
       next_, clock_, waiting_, stalled_, stall_, issue_at_, wait_refs_, predicted_, table_, open_groups_, events,
       pressed, asks, spans, owed, coupled, idle, ended, now, told, counters);
  }

private:
  struct Pending {
    Operation op;
    Time before = 0; // host time before it
    Time issue = kNever;
    std::uint16_t table_before = 0;
    bool appended = false; // a node of its own
    bool launched = false;
    std::uint32_t pad = 0;
  };
  struct Member {
    std::uint64_t collective = 0;
    std::uint64_t seq = 0;
    Time issue = 0;
    Time end = kNever;
    std::uint32_t label = 0;
    std::uint32_t lane = 0;
  };
  struct Join {
    std::uint64_t segment = 0;
    std::uint32_t lane = 0;
    std::uint32_t pad = 0;
  };
  struct Group {
    std::vector<Member> members;
    std::vector<Join> joins;
    Time issue = 0;
    Time reach = kNever;
    Time end = kNever;
    std::uint32_t arrived = 0;
    bool closed = false;
    bool emitted = false;

    template <typename Archive> void archive(Archive &ar) {
      ar(members, joins, issue, reach, end, arrived, closed, emitted);
    }
  };
  struct Device {
    std::uint32_t number = 0;
    Activity activity;
    Ring<Ref> launches;

    template <typename Archive> void archive(Archive &ar) { ar(number, activity, launches); }
  };
  struct KeyUndo {
    std::uint64_t key = 0;
    std::uint64_t op = 0;
    Ref before; // lane kNone if it was not bound to a node, or to one that is gone by now
  };
  struct Wait { // of the host: a synchronisation or a resumption
    std::uint64_t op = 0;
    Time over = 0; // when the host has left the operation
    Span span;
  };
  struct PendingMark {
    std::uint64_t seq = 0;
    Time issue = 0;
    Time end = 0; // of what is final
    std::vector<Ref> refs;

    template <typename Archive> void archive(Archive &ar) { ar(seq, issue, end, refs); }
  };

  bool issue_next(Time until, const std::vector<RateTable> &tables);
  [[nodiscard]] Time issue_time(const Operation &op);
  // Whether a coupled rank's devices went on beyond `time`. Operations of a thread that only watches (see `acts`) may
  // still be issued there, because they change nothing on a device, and because the devices of an idle rank go on
  // without the host.
  [[nodiscard]] bool is_late(const Operation &op, Time time) const { return coupled && time < now && acts(op); }
  void apply(Pending &pending, const std::vector<RateTable> &tables);
  void append_work(Pending &pending, const std::vector<RateTable> &tables);
  void append_wait(Pending &pending);
  void append_member(Pending &pending);
  void add_ask(const Operation &op, Time issue, std::vector<Ref> refs);
  void unissue(Pending &pending);
  void drop_member();
  void cut_host(Time time);
  void cut_groups(Time time);
  bool finish_wait();
  [[nodiscard]] std::vector<Ref> targets(const Operation &op) const;
  [[nodiscard]] Time gone_key_time(const Operation &op) const;
  bool advance_lane(std::uint32_t lane, Time time);
  bool advance_coupled(std::uint32_t lane, Time time);
  bool advance_point(Lane &lane, Segment &segment, Time arrival);
  void try_reach(std::uint64_t number);
  void log_key(std::uint64_t key);
  void key_gone(const Node &node, const Ref &ref, Time end);
  void predict(std::uint32_t lane, const std::vector<RateTable> &tables);
  void weigh(std::uint32_t device, Time time, const std::vector<RateTable> &tables);
  void forget_lane(std::uint32_t lane, Time horizon);
  void forget_groups(Time horizon);
  void forget_host(Time horizon);
  void forget_activity(std::uint32_t device, Time horizon);
  void emit(const Span &span);
  std::uint32_t lane_index(std::uint32_t lane);
  [[nodiscard]] Device &device_of(std::uint32_t lane) { return devices_[lanes_[lane].device]; }

  std::uint32_t number_ = 0;
  Settings settings_;
  std::vector<Lane> lanes_;
  std::unordered_map<std::uint32_t, std::uint32_t> lanes_by_number_;
  std::vector<Device> devices_;
  Ring<Group> groups_;
  Ring<Pending> ops_;
  std::unordered_map<std::uint64_t, Ref> keys_; // recorded by a node that is still there
  GoneKeys gone_;
  Ring<KeyUndo> key_undo_;
  Ring<Wait> waits_;
  Ring<PendingMark> marks_;
  std::uint64_t next_ = 0; // operation to issue, or to complete if `waiting_`
  Time clock_ = 0;
  bool waiting_ = false;
  bool stalled_ = false;
  Ref stall_;
  Time issue_at_ = kNever; // coupled: when the next operation is issued
  std::vector<Ref> wait_refs_;
  std::vector<Time> predicted_; // coupled: end of what is under way, by lane
  std::uint16_t table_ = 0;
  std::uint64_t open_groups_ = 0; // without an end
  std::uint32_t last_lane_ = Ref::kNone;
  std::uint32_t last_lane_index_ = 0;
};

} // namespace eidolon
