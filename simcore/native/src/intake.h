// One rank's way from event records to operations of the engine.
//
// A batch goes through in stages, because Python has a say between them (run/session.py):
//
//   open       checks the records: what passes can be used as an index without a further look. It finds the streams
//              that are used first, and the collectives whose time alone is not known yet.
//   translate  gives each record its operation, with its times, up to the next mark or to the end of the batch. What
//              costs nothing but host time is folded into the next operation, so that the engine sees a fraction of the
//              records. At a mark Python sets the pace of the work that follows. Records that reach beyond the rank are
//              noted, and Python says which collective they join.
//   close      hands over the operations.
//
// Most of what a run costs this process is this way, record by record. So records are read where they lie, an operation
// is written once, and what a record looks up lies close together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "event_record.h"
#include "meter.h"
#include "outline.h"
#include "prices.h"
#include "records.h"

namespace eidolon {

class Intake {
public:
  struct Settings {
    bool measured = false;              // records hold CPU time that was measured, calls included
    double factor = 1;                  // on all host times
    std::int64_t poll_ns = 0;           // the least host time of a poll
    std::int64_t compiled_entry_ns = 0; // host time of the first compiled kernel of a step, on top
    std::size_t crowded_lanes = 0;      // with so many lanes a device is crowded: work starts crowded_ns later
    std::int64_t crowded_ns = 0;
  };
  struct Lane {
    std::uint32_t stream = 0;
    std::uint32_t device = 0;
  };
  struct Call { // of a collective
    std::uint32_t signature = 0;
    std::uint32_t device = 0;
  };
  struct Noted {
    Kind kind = Kind::kHost;
    std::size_t row = 0; // of its operation in the batch, for `join`
    std::uint64_t seq = 0;
    std::uint8_t flags = 0;
    std::uint32_t device = 0;
    std::uint32_t signature = 0;
    std::uint64_t value = 0;
  };
  struct Ask { // a thread waits for the answer to a record
    std::uint64_t seq = 0;
    std::uint32_t thread = 0;
    Kind kind = Kind::kHost;
    bool foreground = false;
  };
  struct Mark {
    std::uint64_t seq = 0;
    std::uint32_t signature = 0;
  };

  Intake(Settings settings, Prices &prices, Meter &meter, Outline &outline);

  // ---- definitions ----

  // An API call: its host time and the label of waits in it. Call 0 stands for none.
  void define_call(std::uint32_t number, std::int64_t ns, std::uint32_t label);
  // Any other signature: the label of its spans, whether it is a kernel of torch.compile, and whether it marks a step.
  void define(std::uint32_t number, std::uint32_t label, bool compiled, bool step);
  // The time that a collective takes if nobody waits and nothing runs beside it.
  void set_alone(std::uint32_t signature, std::int64_t ns) { signatures_.at(signature).alone_ns = ns; }

  // ---- a batch ----

  // Throws std::invalid_argument unless the records are numbered from `seq` on and name only what is defined. The
  // records have to stay where they are until the batch is closed.
  void open(std::uint64_t seq, std::span<const EventRecord> records);
  // Streams that the batch uses first, in ascending order, and the device of each.
  [[nodiscard]] const std::vector<Lane> &new_lanes() const { return new_lanes_; }
  // Collectives whose time alone is not known, by signature in ascending order, each with the device of its first call.
  [[nodiscard]] const std::vector<Call> &new_calls() const { return new_calls_; }
  // Goes on to the next mark. False if there is none: the batch is done.
  bool translate();
  // The mark at which `translate` stands.
  [[nodiscard]] Mark mark() const;
  // Since `translate` was called: records that reach beyond the rank, and launches of autograd threads.
  [[nodiscard]] const std::vector<Noted> &noted() const { return noted_; }
  [[nodiscard]] std::int64_t launches() const { return launches_; }
  // The operation of a row joins this collective of the engine.
  void join(std::size_t row, std::uint64_t handle) { operations_.at(row).value = handle; }
  // The same, on a lane of its own. If its thread waits, it waits for the lane behind it.
  void join_on(std::size_t row, std::uint64_t handle, std::uint32_t lane);
  // Answers that threads wait for.
  [[nodiscard]] const std::vector<Ask> &asks() const { return asks_; }
  // Whether the rank itself does something in the batch, and not only threads that watch.
  [[nodiscard]] bool acted() const { return acted_; }
  // Whether the last that it does is to go to sleep.
  [[nodiscard]] bool idle() const { return idle_; }
  // The operations for the engine, until the next batch is opened.
  [[nodiscard]] const std::vector<Operation> &close();

private:
  struct ApiCall {
    std::uint32_t label = 0;
    std::int64_t ns = 0;
  };
  struct Signature {
    bool known = false; // as a call or as anything else
    bool compiled = false;
    bool step = false;
    std::uint32_t label = 0;
    std::int64_t alone_ns = 0;
  };

  void check(std::uint64_t seq) const;
  [[noreturn]] void refuse(std::uint64_t seq) const;
  [[nodiscard]] bool defined(std::uint32_t signature) const {
    return signature < signatures_.size() && signatures_[signature].known;
  }
  void use_lane(const EventRecord &record);
  void use_collective(const EventRecord &record);
  void append(const EventRecord &record);
  void add_waits();
  [[nodiscard]] std::int64_t fold(Op op, std::uint8_t flags);
  [[nodiscard]] std::int64_t host_ns(const EventRecord &record);

  Settings settings_;
  Prices &prices_;
  Meter &meter_;
  Outline &outline_;
  std::vector<ApiCall> calls_;
  std::vector<Signature> signatures_;
  std::unordered_set<std::uint32_t> lanes_;
  std::optional<std::uint32_t> last_lane_; // that was used
  bool entered_ = false;                   // a compiled kernel was launched since the last mark

  std::uint64_t first_seq_ = 0;
  std::span<const EventRecord> records_;
  std::size_t next_ = 0;              // of them: which comes next
  std::int64_t gap_ns_ = 0;           // work starts so much later
  std::vector<Operation> operations_; // of the records so far
  std::size_t waits_ = 0;             // of them: how many get a wait behind them
  std::vector<Lane> new_lanes_;
  std::vector<Call> new_calls_;
  bool at_mark_ = false;
  std::vector<Noted> noted_;
  std::int64_t launches_ = 0;
  std::vector<Ask> asks_;
  bool acted_ = false, idle_ = false;
};

} // namespace eidolon
