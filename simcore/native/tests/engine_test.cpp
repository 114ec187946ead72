// Native test of the engine, to be run under sanitizers and with invariants asserted: random networks and random
// programs in many orders. What the times should be is the business of tests/simcore/engine; here every order has to
// give the same, and nothing may break on the way.
//
//   eidolon_engine_test [cases] [seed]
#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "engine.h"
#include "schedule.h"

namespace eidolon {
namespace {

using Random = std::mt19937_64;

std::uint64_t pick(Random &random, std::uint64_t below) { return random() % below; }

void require(bool condition, const char *what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

// ---- The network alone ----

struct Arrival {
  Time start;
  std::uint32_t route;
  std::uint32_t weight;
  std::uint64_t bytes;
};

struct Fabric {
  std::vector<std::uint64_t> links;
  std::vector<std::vector<std::uint32_t>> routes;

  explicit Fabric(Random &random) {
    const std::uint64_t count = 1 + pick(random, 12);
    for (std::uint64_t i = 0; i < count; ++i) {
      links.push_back((1 + pick(random, 9)) * 1'000'000'000);
    }
    const std::uint64_t routes_wanted = 1 + pick(random, 12);
    for (std::uint64_t i = 0; i < routes_wanted; ++i) {
      std::vector<std::uint32_t> all(count);
      for (std::uint32_t k = 0; k < count; ++k) {
        all[k] = k;
      }
      std::shuffle(all.begin(), all.end(), random);
      all.resize(1 + pick(random, std::min<std::uint64_t>(count, 4)));
      if (std::find(routes.begin(), routes.end(), all) == routes.end()) { // equal routes have one number
        routes.push_back(all);
      }
    }
  }

  void build(Network &network) const {
    for (const std::uint64_t link : links) {
      network.add_link(link);
    }
    for (const auto &route : routes) {
      network.add_route(route);
    }
  }
};

void check_network(Random &random) {
  const Fabric fabric(random);
  std::vector<Arrival> arrivals;
  const std::uint64_t count = 1 + pick(random, 60);
  arrivals.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    arrivals.push_back({static_cast<Time>(pick(random, 400)),
                        static_cast<std::uint32_t>(pick(random, fabric.routes.size())),
                        static_cast<std::uint32_t>(1 + pick(random, 3)), pick(random, 3) * 37 + pick(random, 400)});
  }
  Schedule plain(false);
  fabric.build(plain.network());
  for (const Arrival &arrival : arrivals) {
    plain.add(arrival.start, arrival.route, arrival.weight, arrival.bytes);
  }
  for (Time time = 0; time < 800; time += 40) {
    plain.advance(time);
    require(plain.network().next() >= time && plain.network().consistent(), "shares are the full max-min solution");
  }
  plain.advance(kNever);

  std::vector<std::size_t> order(arrivals.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), random);
  Schedule late(true);
  fabric.build(late.network());
  for (const std::size_t i : order) {
    late.add(arrivals[i].start, arrivals[i].route, arrivals[i].weight, arrivals[i].bytes);
    if (pick(random, 3) == 0) {
      late.advance(pick(random, 4) == 0 ? kNever : static_cast<Time>(pick(random, 600)));
      require(late.network().next() >= 0 && late.network().consistent(), "shares are right after a cut");
    }
  }
  late.advance(kNever);
  for (std::size_t i = 0; i < order.size(); ++i) {
    require(late.ends()[i] == plain.ends()[order[i]], "late flows end as flows in order");
    require(late.ends()[i] != kNever, "every flow ends");
  }
}

// ---- Whole engines ----

struct World {
  Fabric fabric;
  std::vector<std::vector<Operation>> programs; // a collective's value is its index
  std::vector<std::tuple<std::vector<std::uint32_t>, Time, std::vector<FlowSpec>>> collectives;
  bool coupled;
  std::uint32_t depth;
  std::int64_t leaves; // of ports, the first class of work

  explicit World(Random &random)
      : fabric(random), coupled(pick(random, 3) == 0), depth(pick(random, 3) * 3),
        leaves(pick(random, 2) == 0 ? kReferenceRate : kReferenceRate / 2) {
    programs.resize(1 + pick(random, 4));
    const std::uint64_t rounds = 1 + pick(random, 8);
    for (std::uint64_t round = 0; round < rounds; ++round) {
      for (auto &program : programs) {
        fill(random, program);
      }
      std::vector<std::uint32_t> members(programs.size());
      for (std::uint32_t i = 0; i < members.size(); ++i) {
        members[i] = i;
      }
      std::shuffle(members.begin(), members.end(), random);
      members.resize(1 + pick(random, members.size()));
      std::vector<FlowSpec> flows(pick(random, 4));
      for (FlowSpec &flow : flows) {
        flow = {fabric.routes[pick(random, fabric.routes.size())], pick(random, 300),
                static_cast<std::uint32_t>(1 + pick(random, 2))};
      }
      collectives.emplace_back(members, static_cast<Time>(pick(random, 30)), flows);
      for (const std::uint32_t rank : members) {
        Operation join = operation(random, Op::kCollective);
        join.value = collectives.size() - 1;
        programs[rank].push_back(join);
      }
    }
    for (auto &program : programs) {
      fill(random, program);
      program.push_back(operation(random, Op::kMark));
      Operation sync = operation(random, Op::kSyncDevice);
      sync.value = 0;
      program.push_back(sync);
      for (std::size_t i = 0; i < program.size(); ++i) {
        program[i].seq = i;
      }
    }
  }

  static Operation operation(Random &random, Op op) {
    Operation result;
    result.op = op;
    result.lane = static_cast<std::uint32_t>(pick(random, 3));
    result.host_ns = static_cast<std::int64_t>(pick(random, 3) * pick(random, 30));
    return result;
  }

  static void fill(Random &random, std::vector<Operation> &program) {
    constexpr Op kOps[] = {Op::kWork, Op::kWork,     Op::kWork,      Op::kRecord,  Op::kWait,
                           Op::kHost, Op::kSyncLane, Op::kQueryLane, Op::kCallback};
    for (std::uint64_t left = pick(random, 6); left > 0; --left) {
      Operation op = operation(random, kOps[pick(random, std::size(kOps))]);
      op.work_ns = op.op == Op::kWork ? static_cast<std::int64_t>(pick(random, 80)) : 0;
      op.work_class = static_cast<std::uint16_t>(pick(random, 2));
      op.value = pick(random, 3);
      // An optimistic engine runs ahead only as far as it was asked.
      op.flags = (op.op == Op::kSyncLane || op.op == Op::kQueryLane) && pick(random, 2) == 0 ? kAsk : 0;
      program.push_back(op);
    }
  }

  std::vector<std::uint64_t> build(Engine &engine) const {
    std::vector<std::uint64_t> handles;
    for (const std::uint64_t link : fabric.links) {
      engine.add_link(link, 0);
    }
    const std::uint16_t table =
        engine.add_rates({{{kReferenceRate, kReferenceRate / 2, kReferenceRate * 2 / 3, kReferenceRate / 5, leaves},
                           {kReferenceRate, kReferenceRate, kReferenceRate, kReferenceRate, kReferenceRate / 3}}});
    for (std::uint32_t rank = 0; rank < programs.size(); ++rank) {
      engine.add_rank(rank);
      for (std::uint32_t lane = 0; lane < 3; ++lane) {
        engine.add_lane(rank, lane, lane / 2);
      }
      if (coupled) {
        engine.set_rates(rank, table);
      }
      for (std::uint32_t device = 0; device < 2; ++device) {
        const std::uint32_t link = 2 * rank + device;
        engine.set_ports(rank, device, {static_cast<std::uint32_t>(link % fabric.links.size()), 0});
      }
    }
    for (const auto &[members, latency, flows] : collectives) {
      handles.push_back(engine.reserve());
      engine.define(handles.back(), members, latency, engine.add_pattern(flows));
    }
    return handles;
  }
};

std::atomic<std::uint64_t> rollbacks = 0;

using Times = std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>, std::pair<Time, Time>>;

Times play(const World &world, Random &random, bool optimistic) {
  Engine engine({optimistic, false, static_cast<std::uint32_t>(world.programs.size()), world.depth});
  const std::vector<std::uint64_t> handles = world.build(engine);
  std::vector<std::size_t> at(world.programs.size(), 0);
  std::vector<bool> ended(world.programs.size(), false);
  Times times;
  const auto take = [&] {
    for (const auto &[rank, span] : engine.timeline()) {
      const bool fresh = times.emplace(std::tuple(rank, span.seq, span.lane), std::pair(span.start, span.end)).second;
      require(fresh, "a span is told once");
    }
  };
  while (std::find(ended.begin(), ended.end(), false) != ended.end()) {
    const std::uint64_t rank = pick(random, world.programs.size());
    if (ended[rank]) {
      continue;
    }
    const std::vector<Operation> &program = world.programs[rank];
    if (at[rank] == program.size()) {
      engine.end_rank(static_cast<std::uint32_t>(rank));
      ended[rank] = true;
    } else {
      std::vector<Operation> some;
      for (std::uint64_t left = 1 + pick(random, 4); left > 0 && at[rank] < program.size(); --left) {
        some.push_back(program[at[rank]++]);
        if (some.back().op == Op::kCollective) {
          some.back().value = handles[some.back().value];
        }
      }
      engine.ingest(static_cast<std::uint32_t>(rank), some);
    }
    if (pick(random, 2) == 0) {
      engine.answers();
    }
    if (pick(random, 6) == 0) {
      take();
    }
    if (pick(random, 10) == 0) {
      const std::string state = engine.snapshot();
      engine.restore(state);
      require(engine.snapshot().size() == state.size(), "a snapshot restores the whole state");
    }
  }
  engine.answers();
  take();
  rollbacks += engine.counters()["rollbacks"];
  return times;
}

void check_engine(Random &random) {
  const World world(random);
  const Times once = play(world, random, false);
  for (int i = 0; i < 3; ++i) {
    require(play(world, random, i > 0) == once, "every order gives the same times");
  }
}

// Coupled ranks that have nothing to do with each other, come when they like and end when they like: some join while
// others sleep or after all so far have ended. A conservative engine has to keep a place for each.
void check_joining(Random &random) {
  Engine engine({false, false, 1, static_cast<std::uint32_t>(pick(random, 3) * 3)});
  const std::uint16_t table = engine.add_rates(
      {{{kReferenceRate, kReferenceRate / 2, kReferenceRate * 2 / 3, kReferenceRate / 5, kReferenceRate}}});
  struct Process {
    std::uint64_t rounds = 0;
    std::uint64_t sequence = 0;
    std::uint64_t awaited = 0;
    bool joined = false;
    bool asleep = false;
    bool ended = false;
  };
  std::vector<Process> processes(1 + pick(random, 4));
  std::size_t left = processes.size();
  std::uint64_t quiet = 0;
  while (left > 0) {
    require(++quiet < 100'000, "every rank gets to its end");
    const auto rank = static_cast<std::uint32_t>(pick(random, processes.size()));
    Process &process = processes[rank];
    if (process.ended || (!process.joined && pick(random, 40) != 0)) {
      continue;
    }
    if (!process.joined) {
      process.joined = true;
      process.rounds = 1 + pick(random, 20);
      engine.add_rank(rank);
      require(engine.clock(rank) < Time{1} << 40, "the end of all others is not the end of time");
      for (std::uint32_t lane = 0; lane < 3; ++lane) {
        engine.add_lane(rank, lane, lane / 2);
      }
      engine.set_rates(rank, table);
    } else if (process.awaited != 0) {
      // It stands still.
    } else if (process.rounds == 0) {
      engine.end_rank(rank);
      process.ended = true;
      --left;
    } else if (!process.asleep && pick(random, 5) == 0) {
      engine.ingest(rank, std::vector<Operation>{{.seq = ++process.sequence, .op = Op::kIdle}});
      process.asleep = true;
    } else {
      process.asleep = false;
      --process.rounds;
      std::vector<Operation> some;
      World::fill(random, some);
      for (std::size_t i = 0; i < some.size() && process.awaited == 0; ++i) {
        some[i].seq = ++process.sequence;
        process.awaited = (some[i].flags & kAsk) != 0 ? some[i].seq : 0;
        engine.ingest(rank, std::span(some).subspan(i, 1));
      }
    }
    if (pick(random, 2) == 0) {
      for (const Answer &answer : engine.answers()) {
        if (processes[answer.rank].awaited == answer.seq) {
          processes[answer.rank].awaited = 0;
        }
      }
    }
  }
}

// As real ranks come: a rank that asked waits for its answer, one that sleeps says so and wakes up without a word, a
// thread beside it reads, and collectives come in groups. When they sleep is a matter of real time, so times are not
// compared; but a conservative engine undoes nothing, and every rank gets to its end.
void check_idle(Random &random) {
  const World world(random);
  Engine engine({false, false, static_cast<std::uint32_t>(world.programs.size()), world.depth});
  const std::vector<std::uint64_t> handles = world.build(engine);
  const std::size_t ranks = world.programs.size();
  std::vector<std::size_t> at(ranks, 0);
  std::vector<bool> ended(ranks, false);
  std::vector<bool> asleep(ranks, false);
  std::vector<std::uint64_t> sequence(ranks, 0);
  std::vector<std::uint64_t> awaited(ranks, 0);
  std::size_t left = ranks;
  std::uint64_t quiet = 0;
  while (left > 0) {
    require(++quiet < 100'000, "every rank gets to its end");
    const auto rank = static_cast<std::uint32_t>(pick(random, ranks));
    const std::vector<Operation> &program = world.programs[rank];
    std::vector<Operation> some;
    const auto send = [&](Operation operation) {
      operation.seq = ++sequence[rank];
      some.push_back(operation);
    };
    if (!ended[rank] && pick(random, 4) == 0) {
      Operation read = World::operation(random, Op::kQueryLane);
      read.flags = kAsk | kBackground;
      send(read);
    }
    if (ended[rank]) {
    } else if (awaited[rank] != 0) {
      // It stands still.
    } else if (!asleep[rank] && pick(random, 5) == 0) {
      send({.op = Op::kIdle});
      asleep[rank] = true;
    } else if (at[rank] == program.size()) {
      engine.end_rank(rank);
      ended[rank] = true;
      --left;
    } else if (!asleep[rank] || pick(random, 3) == 0) {
      asleep[rank] = false;
      for (std::uint64_t count = 1 + pick(random, 4); count > 0 && at[rank] < program.size(); --count) {
        Operation operation = program[at[rank]++];
        if (operation.op == Op::kCollective) {
          operation.value = handles[operation.value];
        }
        send(operation);
        if ((operation.flags & kAsk) != 0) {
          awaited[rank] = sequence[rank];
          break;
        }
      }
    }
    if (!ended[rank]) {
      engine.ingest(rank, some);
    }
    if (pick(random, 2) == 0) {
      for (const Answer &answer : engine.answers()) {
        if (awaited[answer.rank] == answer.seq) {
          awaited[answer.rank] = 0;
        }
      }
    }
  }
  engine.answers();
  require(engine.blocked().empty(), "nobody waits after the end");
}

void run(std::uint64_t cases, std::uint64_t seed) {
  for (std::uint64_t i = 0; i < cases; ++i) {
    try {
      Random random(seed + i);
      check_network(random);
      check_engine(random);
      check_idle(random);
      check_joining(random);
    } catch (const std::exception &error) {
      std::fprintf(stderr, "seed %" PRIu64 ": %s\n", seed + i, error.what());
      std::exit(1);
    }
  }
}

} // namespace
} // namespace eidolon

int main(int argc, char **argv) {
  const std::uint64_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300;
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  // Two engines at once: they share nothing.
  std::thread other([&] { eidolon::run(cases / 2, seed + 1'000'000); });
  eidolon::run(cases - cases / 2, seed);
  other.join();
  const std::uint64_t rollbacks = eidolon::rollbacks;
  std::printf("%" PRIu64 " cases, %" PRIu64 " rollbacks\n", cases, rollbacks);
  return rollbacks >= cases / 4 ? 0 : 1; // else the test has lost its subject
}
