// Where the time of a step goes, for every rank and device, from final spans.
//
// Spans of a rank come in pieces, ordered by their sequence numbers within a piece; marks divide them into segments.
// Intervals are kept for each device and kind of activity (computing, communicating, copying) until their step is cut.
// Intervals that touch are joined. A cut unites each kind and sweeps over the three kinds in time. So a step costs
// memory by its gaps, not by its kernels. Where a device has more than kMaxIntervals, its oldest half is settled early.
//
// The part of a gap before the next interval's work was issued counts to the host. The rest of the gap is idle, because
// the work waited for something. A collective's span begins when its member comes to it. The time until the last member
// comes is its *wait*; from there to the end is the collective's own time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "arithmetic.h"
#include "meter.h"
#include "records.h"

namespace eidolon {

class Accounts {
public:
  using Work = Meter::Work;
  enum Activity : std::uint8_t { kCompute, kCommunicate, kCopy, kActivities, kNothing = kActivities };
  static constexpr std::size_t kMaxIntervals = 1U << 16U;
  static constexpr std::uint32_t kNoDevice = 0xffff;

  // One row of a cut. compute + communication + copy + host + idle = window.
  struct Row {
    std::int64_t rank = 0;
    std::int64_t device = 0;
    Time window = 0;
    Time compute = 0;
    Time communication = 0; // while nothing is computed: the exposed part
    Time copy = 0;          // while nothing is computed or communicated
    Time host = 0;
    Time idle = 0;
    Time overlap = 0; // computing and communicating at once
    Time wait = 0;    // of the rank, for others in collectives
    Work work{};      // of the rank; several devices share it in proportion to their computing time
  };
  struct Done {
    std::int64_t kind = 0;
    std::int64_t count = 0;
    std::int64_t bytes = 0;
    std::int64_t bus_bytes = 0;
    Time time = 0;
  };
  struct Wait {
    std::int64_t label = 0;
    std::int64_t count = 0;
    Time time = 0;
  };
  struct Cut {
    std::vector<Row> rows;
    std::vector<Done> kinds;            // by kind
    std::vector<std::int64_t> patterns; // by pattern: collectives of it
  };

  // Resumptions have no label of their own; they count as waits of this label.
  explicit Accounts(std::uint32_t resume_label) : resume_label_(resume_label) {}

  void add_lane(std::uint32_t rank, std::uint32_t lane, std::uint32_t device);
  // Says what work of this label is. Work of other labels counts as computing.
  void set_label(std::uint32_t label, Activity activity);
  // Adds a collective, whose members are the calls `seqs` of `ranks`. It comes before their spans.
  void add_collective(std::uint32_t kind, std::uint32_t pattern, std::int64_t bytes, std::int64_t bus_bytes,
                      std::span<const std::int64_t> ranks, std::span<const std::int64_t> seqs);
  // Adds a step mark, as it was written, with the rank's work since the mark before it.
  void mark(std::uint32_t rank, std::uint64_t seq, const Work &work);
  void take(std::uint32_t rank, std::span<const Span> spans);
  // Accounts for each rank's time from its last cut to its mark. The marks are `seqs` of `ranks`, and ended at `ends`.
  Cut cut(std::span<const std::int64_t> ranks, std::span<const std::int64_t> seqs, std::span<const std::int64_t> ends);
  // The host waits since the beginning.
  [[nodiscard]] std::vector<Wait> waits() const;
  [[nodiscard]] std::size_t live_intervals() const;

private:
  struct Interval {
    Time start = 0;
    Time end = 0;
    Time issue = 0; // when the work that begins it was issued
  };
  using Log = std::array<std::vector<Interval>, kActivities>;
  struct Device {
    std::uint32_t number = 0;
    Log log;
    Row settled;
    Time begin = 0; // settled up to here
  };
  struct Segment {
    std::uint64_t mark = ~std::uint64_t{0};
    std::vector<Log> logs; // by the rank's devices
    Time wait = 0;
    Work work{};
  };
  struct Lane {
    std::uint32_t number = 0;
    std::uint32_t device = 0; // index, or kNoDevice
  };
  struct RankState {
    std::vector<Lane> lanes;
    std::vector<Device> devices;
    std::deque<Segment> segments; // the last is open
    std::unordered_map<std::uint64_t, std::uint32_t> calls;
  };
  struct Member {
    std::uint32_t rank = 0;
    std::uint64_t seq = 0;
    Time start = 0;
  };
  struct Collective {
    std::uint32_t kind = 0;
    std::uint32_t pattern = 0;
    std::int64_t bytes = 0;
    std::int64_t bus_bytes = 0;
    std::vector<Member> members; // seen so far
    std::size_t left = 0;
    Time last_start = 0;
    Time end = 0;
  };

  RankState &state(std::uint32_t rank);
  static Segment &segment_of(RankState &state, std::uint64_t seq);
  static std::uint32_t device_of(const RankState &state, std::uint32_t lane); // index, or kNoDevice
  void waited(const Span &span);
  void arrive(RankState &state, std::uint32_t rank, const Span &span);
  static bool joins(Interval &interval, const Span &span); // joins spans that touch
  static Interval *append(RankState &state, Segment &segment, std::uint32_t device, std::size_t activity,
                          const Span &span);
  static Segment take_segments(RankState &from, std::uint64_t seq);
  static void count(const Collective &collective, Cut &cut); // counts a collective that has ended
  static void divide(std::span<Row> rows, const Work &work); // divides a rank's work among its devices
  static void unite(std::vector<Interval> &intervals);
  // Settles the device's time up to `until`, by the intervals in `log`.
  static void settle(Device &device, Log &log, Time until);

  std::uint32_t resume_label_;
  std::vector<RankState> ranks_;
  std::vector<std::uint8_t> labels_;
  std::vector<Collective> collectives_;
  std::vector<std::uint32_t> free_;
  std::vector<std::pair<Member, std::uint32_t>> done_; // those that ended and are not yet cut: least member, collective
  std::vector<Wait> waits_;                            // by label
};

} // namespace eidolon
