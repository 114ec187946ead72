// The Python side of the engine: module `_engine`, wrapped by engine/native.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "accounts.h"
#include "engine.h"
#include "intake.h"
#include "meter.h"
#include "outline.h"
#include "prices.h"
#include "schedule.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace eidolon {
namespace {

template <typename T> using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = Column<std::uint8_t>;
using Times = Column<std::int64_t>;

template <typename T> nb::object as_array(std::vector<T> values) {
  auto *owner = new std::vector<T>(std::move(values));
  nb::capsule capsule(owner, [](void *pointer) noexcept { delete static_cast<std::vector<T> *>(pointer); });
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(owner->data(), {owner->size()}, capsule));
  } else {
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(reinterpret_cast<std::uint8_t *>(owner->data()),
                                                                      {owner->size() * sizeof(T)}, capsule));
  }
}

// Rows as they lie in a bytes object, of which Python aligns the contents to 8 bytes.
template <typename Row> std::span<const Row> rows_in(const nb::bytes &bytes, const char *what) {
  if (bytes.size() % sizeof(Row) != 0) {
    throw std::invalid_argument(std::string(what) + " are whole");
  }
  return {static_cast<const Row *>(bytes.data()), bytes.size() / sizeof(Row)};
}

std::span<const Operation> operations_of(const nb::bytes &bytes) { return rows_in<Operation>(bytes, "operations"); }

using Lists = std::vector<std::vector<std::uint32_t>>;

std::vector<FlowSpec> flows_of(const Lists &routes, const std::vector<std::uint64_t> &bytes,
                               const std::vector<std::uint32_t> &weights, const Lists &counts) {
  if (routes.size() != bytes.size() || routes.size() != weights.size() || routes.size() != counts.size()) {
    throw std::invalid_argument("routes, bytes, weights and counts are of one length");
  }
  std::vector<FlowSpec> flows;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    flows.push_back({routes[i], bytes[i], weights[i], counts[i]});
  }
  return flows;
}

void bind_engine_input(nb::class_<Engine> &engine) {
  engine
      .def(
          "__init__",
          [](Engine *self, bool optimistic, bool keep_all, std::uint32_t expected_ranks, std::uint32_t launch_depth) {
            new (self) Engine(EngineSettings{optimistic, keep_all, expected_ranks, launch_depth});
          },
          "optimistic"_a, "keep_all"_a, "expected_ranks"_a, "launch_depth"_a)
      .def("add_rank", &Engine::add_rank)
      .def("add_lane", &Engine::add_lane)
      .def("end_rank", &Engine::end_rank)
      .def("link", &Engine::add_link)
      .def("rates",
           [](Engine &self, const std::vector<std::vector<std::int64_t>> &classes) {
             RateTable table;
             for (const auto &row : classes) {
               if (row.size() != 5) {
                 throw std::invalid_argument("a class has five rates");
               }
               table.classes.push_back({row[0], row[1], row[2], row[3], row[4]});
             }
             return self.add_rates(std::move(table));
           })
      .def("set_rates", &Engine::set_rates)
      .def("set_ports", &Engine::set_ports)
      .def("pattern", [](Engine &self, const Lists &routes, const std::vector<std::uint64_t> &bytes,
                         const std::vector<std::uint32_t> &weights,
                         const Lists &counts) { return self.add_pattern(flows_of(routes, bytes, weights, counts)); })
      .def("twin", &Engine::twin)
      .def("refine",
           [](Engine &self, std::uint32_t number, const Lists &routes, const std::vector<std::uint64_t> &bytes,
              const std::vector<std::uint32_t> &weights, const Lists &counts,
              const std::vector<std::uint32_t> &origin) {
             self.refine(number, flows_of(routes, bytes, weights, counts), origin);
           })
      .def("reserve", &Engine::reserve)
      .def("define", &Engine::define)
      .def("ingest",
           [](Engine &self, std::uint32_t rank, const nb::bytes &bytes) { self.ingest(rank, operations_of(bytes)); });
}

template <typename T, typename Row> nb::list rows_of(const std::vector<T> &values, Row row) {
  nb::list result;
  for (const T &value : values) {
    result.append(row(value));
  }
  return result;
}

void bind_engine_output(nb::class_<Engine> &engine) {
  engine
      .def("answers",
           [](Engine &self) {
             return rows_of(self.answers(),
                            [](const Answer &a) { return nb::make_tuple(a.rank, a.seq, a.clock, a.value); });
           })
      .def("clock", &Engine::clock)
      .def("horizon", &Engine::horizon)
      .def("end_of", &Engine::end_of)
      .def("spans", [](Engine &self, std::uint32_t rank) { return as_array(self.spans(rank)); })
      .def("timeline",
           [](Engine &self) {
             std::vector<std::int64_t> ranks;
             std::vector<Span> spans;
             for (auto &[rank, span] : self.timeline()) {
               ranks.push_back(rank);
               spans.push_back(span);
             }
             return nb::make_tuple(as_array(std::move(ranks)), as_array(std::move(spans)));
           })
      .def("marks",
           [](Engine &self) {
             return rows_of(self.marks(), [](const Mark &m) { return nb::make_tuple(m.rank, m.seq, m.issue, m.end); });
           })
      .def("jumps",
           [](Engine &self) {
             return rows_of(self.jumps(), [](const Jump &j) { return nb::make_tuple(j.rank, j.seq, j.time); });
           })
      .def("blocked",
           [](Engine &self) {
             return rows_of(self.blocked(), [](const Blocked &b) {
               return nb::make_tuple(b.rank, b.seq, b.collective, nb::tuple(nb::cast(b.missing)));
             });
           })
      .def("open_calls",
           [](Engine &self, std::uint32_t rank) {
             return rows_of(self.open_calls(rank),
                            [](const OpenCall &c) { return nb::make_tuple(c.seq, c.issue, c.lane); });
           })
      .def("deadlocked", &Engine::deadlocked)
      .def("counters", &Engine::counters)
      .def("snapshot",
           [](Engine &self) {
             const std::string bytes = self.snapshot();
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("restore", [](Engine &self, const nb::bytes &bytes) { self.restore({bytes.c_str(), bytes.size()}); });
}

void bind_engine(nb::module_ &module) {
  nb::class_<Engine> engine(module, "Engine");
  bind_engine_input(engine);
  bind_engine_output(engine);
}

void bind_network(nb::module_ &module) {
  nb::class_<Schedule>(module, "Network")
      .def(nb::init<bool>(), "journal"_a)
      .def("link", [](Schedule &self, std::uint64_t bytes_per_s) { return self.network().add_link(bytes_per_s); })
      .def("route",
           [](Schedule &self, const std::vector<std::uint32_t> &links) { return self.network().add_route(links); })
      .def("add",
           [](Schedule &self, const Times &starts, const Times &routes, const Times &bytes, const Times &weights) {
             if (starts.size() != routes.size() || starts.size() != bytes.size() || starts.size() != weights.size()) {
               throw std::invalid_argument("columns are of one length");
             }
             for (std::size_t i = 0; i < starts.size(); ++i) {
               self.add(starts.data()[i], static_cast<std::uint32_t>(routes.data()[i]),
                        static_cast<std::uint32_t>(weights.data()[i]), static_cast<std::uint64_t>(bytes.data()[i]));
             }
           })
      .def("advance", [](Schedule &self, Time limit) { self.advance(limit); })
      .def("next", &Schedule::next)
      .def("ended", [](Schedule &self) { return as_array(self.take_ended()); })
      .def("forget", [](Schedule &self, Time time) { self.network().forget(time); })
      .def("ends",
           [](Schedule &self) { return as_array(std::vector<std::int64_t>(self.ends().begin(), self.ends().end())); })
      .def("consistent", [](Schedule &self) { return self.network().consistent(); })
      .def("counters", [](Schedule &self) {
        const Network::Counters &counters = self.network().counters();
        return std::unordered_map<std::string, std::uint64_t>{{"flows", counters.flows},
                                                              {"flows_active", counters.active},
                                                              {"rates_changed", counters.rerated},
                                                              {"changes_undone", counters.undone},
                                                              {"rollbacks", self.rollbacks()},
                                                              {"links_solved", self.network().links_solved()},
                                                              {"live_bytes", self.network().live_bytes()}};
      });
}

template <typename Array> std::span<typename Array::Scalar> column(const Array &array) {
  return {array.data(), array.size()};
}

void bind_meter(nb::module_ &module) {
  nb::class_<Meter>(module, "Meter").def(nb::init<>()).def("define", &Meter::define).def("cut", &Meter::cut);
}

void bind_prices(nb::module_ &module) {
  nb::class_<Prices>(module, "Prices")
      .def(nb::init<>())
      .def("define",
           [](Prices &self, std::uint32_t signature, std::int64_t base_ns,
              const std::vector<std::pair<std::uint64_t, double>> &by_bytes, std::uint32_t label,
              std::uint16_t work_class, std::uint8_t source) {
             Price price{base_ns, {}, label, work_class, source};
             for (const auto &[bytes, ns] : by_bytes) {
               price.by_bytes.push_back({bytes, ns});
             }
             self.define(signature, price);
           })
      .def("set_pace", &Prices::set_pace)
      .def("cut",
           [](Prices &self) {
             const auto times = self.at_full_clock();
             self.cut();
             return times;
           })
      .def_prop_ro("at_full_clock", [](const Prices &self) { return self.at_full_clock(); })
      .def_prop_ro("source_ns", [](const Prices &self) { return self.source_ns(); })
      .def_prop_ro("startup_ns", [](const Prices &self) { return self.startup_ns(); })
      .def("spent", [](const Prices &self) {
        std::vector<std::array<std::int64_t, 3>> rows;
        for (const Prices::Spent &spent : self.spent()) {
          rows.push_back({spent.count, spent.ns, spent.free});
        }
        return rows;
      });
}

void bind_outline(nb::module_ &module) {
  nb::class_<Outline>(module, "Outline")
      .def(nb::init<>())
      .def("take",
           [](Outline &self, const nb::bytes &bytes, const Times &alone_ns) {
             const std::span<const Operation> operations = operations_of(bytes);
             if (alone_ns.size() != operations.size()) {
               throw std::invalid_argument("columns are of one length");
             }
             for (std::size_t i = 0; i < operations.size(); ++i) {
               self.take(operations[i], alone_ns.data()[i]);
             }
           })
      .def("cut", &Outline::cut);
}

// An intake that keeps the records of its batch where they are.
class IntakeOfBytes : public Intake {
public:
  using Intake::Intake;
  void open(std::uint64_t seq, nb::bytes records, std::size_t skip) {
    records_ = std::move(records);
    const std::span all = rows_in<EventRecord>(records_, "records");
    Intake::open(seq, all.subspan(std::min(skip, all.size())));
  }

private:
  nb::bytes records_;
};

void bind_intake_definitions(nb::class_<IntakeOfBytes> &intake) {
  intake
      .def(
          "__init__",
          [](IntakeOfBytes *self, Prices &prices, Meter &meter, Outline &outline, bool measured, double factor,
             std::int64_t poll_ns, std::int64_t compiled_entry_ns, std::size_t crowded_lanes, std::int64_t crowded_ns) {
            new (self) IntakeOfBytes({measured, factor, poll_ns, compiled_entry_ns, crowded_lanes, crowded_ns}, prices,
                                     meter, outline);
          },
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), "prices"_a, "meter"_a, "outline"_a,
          nb::kw_only(), "measured"_a, "factor"_a, "poll_ns"_a, "compiled_entry_ns"_a, "crowded_lanes"_a,
          "crowded_ns"_a)
      .def("define_call", &Intake::define_call)
      .def("define", &Intake::define, "number"_a, "label"_a, "compiled"_a = false, "step"_a = false)
      .def("set_alone", &Intake::set_alone);
}

void bind_intake_batch(nb::class_<IntakeOfBytes> &intake) {
  intake.def("open", &IntakeOfBytes::open, "seq"_a, "records"_a, "skip"_a = 0)
      .def("new_lanes",
           [](IntakeOfBytes &self) {
             return rows_of(self.new_lanes(),
                            [](const Intake::Lane &lane) { return nb::make_tuple(lane.stream, lane.device); });
           })
      .def("new_calls",
           [](IntakeOfBytes &self) {
             return rows_of(self.new_calls(),
                            [](const Intake::Call &call) { return nb::make_tuple(call.signature, call.device); });
           })
      .def("translate", &Intake::translate)
      .def("mark",
           [](IntakeOfBytes &self) {
             const Intake::Mark mark = self.mark();
             return nb::make_tuple(mark.seq, mark.signature);
           })
      .def("noted",
           [](IntakeOfBytes &self) {
             return rows_of(self.noted(), [](const Intake::Noted &each) {
               return nb::make_tuple(static_cast<int>(each.kind), each.row, each.seq, each.flags, each.device,
                                     each.signature, each.value);
             });
           })
      .def("launches", &Intake::launches)
      .def("join", &Intake::join)
      .def("join_on", &Intake::join_on)
      .def("asks",
           [](IntakeOfBytes &self) {
             return rows_of(self.asks(), [](const Intake::Ask &ask) {
               return nb::make_tuple(ask.seq, ask.thread, static_cast<int>(ask.kind), ask.foreground);
             });
           })
      .def("acted", &Intake::acted)
      .def("idle", &Intake::idle)
      .def("close", [](IntakeOfBytes &self) {
        const std::vector<Operation> &operations = self.close();
        return nb::bytes(operations.data(), operations.size() * sizeof(Operation));
      });
}

void bind_intake(nb::module_ &module) {
  nb::class_<IntakeOfBytes> intake(module, "Intake");
  bind_intake_definitions(intake);
  bind_intake_batch(intake);
}

void bind_accounts(nb::module_ &module) {
  nb::class_<Accounts>(module, "Accounts")
      .def(nb::init<std::uint32_t>(), "resume_label"_a)
      .def("add_lane", &Accounts::add_lane)
      .def("set_label",
           [](Accounts &self, std::uint32_t label, std::uint8_t activity) {
             if (activity > Accounts::kNothing) {
               throw std::invalid_argument("activity is 0 (compute), 1 (communicate), 2 (copy) or 3 (nothing)");
             }
             self.set_label(label, static_cast<Accounts::Activity>(activity));
           })
      .def("add_collective",
           [](Accounts &self, std::uint32_t kind, std::uint32_t pattern, std::int64_t bytes, std::int64_t bus_bytes,
              const std::vector<std::int64_t> &ranks, const std::vector<std::int64_t> &seqs) {
             self.add_collective(kind, pattern, bytes, bus_bytes, ranks, seqs);
           })
      .def("mark", &Accounts::mark)
      .def("take",
           [](Accounts &self, std::uint32_t rank, const Bytes &bytes) {
             if (bytes.size() % sizeof(Span) != 0 || reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0) {
               throw std::invalid_argument("spans are whole, aligned to 8 bytes");
             }
             self.take(rank, {reinterpret_cast<const Span *>(bytes.data()), bytes.size() / sizeof(Span)});
           })
      .def("cut",
           [](Accounts &self, const Times &ranks, const Times &seqs, const Times &ends) {
             Accounts::Cut cut = self.cut(column(ranks), column(seqs), column(ends));
             return nb::make_tuple(as_array(std::move(cut.rows)), as_array(std::move(cut.kinds)),
                                   as_array(std::move(cut.patterns)));
           })
      .def("waits", [](Accounts &self) { return as_array(self.waits()); })
      .def("live_intervals", &Accounts::live_intervals);
}

} // namespace

NB_MODULE(_engine, module) {
  module.doc() = "The engine of the simulation core: lanes of work and flows to virtual times.";
  module.attr("NEVER") = kNever;
  bind_engine(module);
  bind_network(module);
  bind_meter(module);
  bind_prices(module);
  bind_outline(module);
  bind_intake(module);
  bind_accounts(module);
}

} // namespace eidolon
