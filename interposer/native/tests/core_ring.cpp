// The ring from both ends: several threads of a rank write and block, an agent in this process reads and answers.
#include <nccl.h>
#include <time.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "agent.h"
#include "nccl_internal.h"

using namespace eidolon;
using test::Agent, test::map_ring;

namespace {

constexpr int kThreads = 4, kRounds = 200, kLaunches = 20;

void one_thread(int number) {
  set_current_device(number % 2);
  Stream *stream;
  CHECK_EQUAL(stream_create(kStreamNonBlocking, 0, &stream), kSuccess);
  void *event;
  event_create(0, &event);
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kLaunches; ++i) {
      const signatures::Library fields = {.bytes = round, .flops = number, .op = 0};
      launch_operation(stream, signature("test:work", fields), EID_CALL("cudaLaunchKernel"));
    }
    event_record(event, stream, EID_CALL("cudaEventRecord"));
    CHECK_EQUAL(event_query(event, EID_CALL("cudaEventQuery")), kSuccess);
    CHECK_EQUAL(stream_synchronize(stream, EID_CALL("cudaStreamSynchronize")), kSuccess);
  }
  event_destroy(event);
  stream_destroy(stream);
}

std::atomic<int> callbacks_run{0};

void everything_else(Agent &agent) {
  Stream *stream;
  stream_create(kStreamNonBlocking, 0, &stream);
  // Host callbacks run in order before a later synchronise returns.
  for (int i = 0; i < 10; ++i)
    stream_callback(stream, [](void *) { callbacks_run.fetch_add(1); }, nullptr, EID_CALL("cudaLaunchHostFunc"));
  stream_synchronize(stream, 0);
  CHECK_EQUAL(callbacks_run.load(), 10);
  // A payload comes back through the inbox, in stream order with the copy that reads it.
  void *device;
  mem_alloc(0, 4096, &device);
  int sent = 42, got = 0;
  copy(device, &sent, 4, CopyKind::kHostToDevice, stream, false, 0);
  static std::atomic<uint64_t> position{0};
  launch_collective({.sig = signature("all_reduce", signatures::Collective{}),
                     .position = &position,
                     .stream = stream,
                     .call = EID_CALL("ncclAllReduce"),
                     .group_more = false,
                     .send = device,
                     .send_bytes = 4,
                     .receive = static_cast<char *>(device) + 512,
                     .receive_bytes = 4});
  copy(static_cast<char *>(device) + 1024, static_cast<char *>(device) + 512, 4, CopyKind::kDeviceToDevice, stream,
       false, 0);
  copy(&got, static_cast<char *>(device) + 1024, 4, CopyKind::kDeviceToHost, stream, true, 0);
  CHECK_EQUAL(got, 42);
  // Of one that is known in part, the same part arrives.
  char *from = static_cast<char *>(device) + 2048, *to = static_cast<char *>(device) + 3072, back[20];
  value_write(to, 20, "what lay there first");
  value_write(from, 4, "abcd");
  value_write(from + 9, 1, "x");
  launch_collective({.sig = signature("all_reduce", signatures::Collective{}),
                     .position = &position,
                     .stream = stream,
                     .call = EID_CALL("ncclAllReduce"),
                     .group_more = false,
                     .send = from,
                     .send_bytes = 20,
                     .receive = to,
                     .receive_bytes = 20});
  CHECK_EQUAL(value_read(to, 20, back), 15); // 5 are known
  CHECK_EQUAL(value_known(to, 20), 4);
  CHECK_EQUAL(value_known(to + 9, 11), 1);
  CHECK(memcmp(back, "abcd\0\0\0\0\0x", 10) == 0);
  // Of a reduction to which this rank adds nothing that is known, nothing will be known: nobody moves bytes or waits.
  value_unknown(from, 20);
  value_write(to, 20, "what lay there first");
  launch_collective({.sig = signature("all_reduce", signatures::Collective{}),
                     .position = &position,
                     .stream = stream,
                     .call = EID_CALL("ncclAllReduce"),
                     .group_more = false,
                     .reduces = true,
                     .send = from,
                     .send_bytes = 20,
                     .receive = to,
                     .receive_bytes = 20});
  CHECK(value_knowledge(to, 20) == Knowledge::kUnknown);
  stream_synchronize(stream, 0);
  CHECK_EQUAL(agent.ordered().back().flags & kPayload, 0);
  mem_free(device);
  // Elapsed time comes from the core.
  void *start, *end;
  event_create(0, &start);
  event_create(0, &end);
  float ms = -1;
  CHECK_EQUAL(event_elapsed(start, end, &ms, 0), kInvalidHandle); // never recorded
  event_record(start, stream, 0);
  event_record(end, stream, 0);
  CHECK_EQUAL(event_elapsed(start, end, &ms, 0), kSuccess);
  CHECK(ms > 0);
  // A replayed graph writes one record per node.
  void *graph, *exec;
  capture_begin(stream, CaptureMode::kThreadLocal, nullptr);
  for (int i = 0; i < 7; ++i)
    launch_operation(stream, signature("test:node", signatures::Library{}), 0);
  capture_end(stream, &graph);
  graph_instantiate(graph, &exec);
  for (int i = 0; i < 3; ++i)
    graph_launch(exec, stream, EID_CALL("cudaGraphLaunch"));
  graph_exec_destroy(exec);
  graph_destroy(graph);
  // The clock is the core's, never goes backwards, and repeated reads need no round trip.
  int64_t before = eidolon_clock_ns();
  for (int i = 0; i < 1000; ++i) {
    int64_t now = eidolon_clock_ns();
    CHECK(now > before);
    before = now;
  }
  CHECK_EQUAL(eidolon_mark("step"), 1);
  stream_synchronize(stream, 0);
}

// Adds one to a number on the device, if that is known by then.
struct AddOne final : ValueWork {
  const int *from;
  int *to;
  AddOne(const int *f, int *t) : from(f), to(t) {}
  void run() override {
    int number;
    if (value_read(from, sizeof number, &number) != 0)
      return value_unknown(to, sizeof number);
    ++number;
    value_computed(to, sizeof number, &number);
  }
  static void leave(const int *from, int *to) {
    const ByteRange reads[] = {{from, sizeof *from}}, writes[] = {{to, sizeof *to}};
    value_work(new AddOne(from, to), reads, writes);
  }
};

// Work on what a payload still has to bring waits for that, in the order in which it was left, and nobody else does.
void deferred_work(Agent &agent) {
  Stream *stream;
  stream_create(kStreamNonBlocking, 0, &stream);
  void *memory, *pooled;
  mem_alloc(0, 4096, &memory);
  mem_alloc_async(0, 4096, stream, &pooled);
  int *at = static_cast<int *>(memory), *in_pool = static_cast<int *>(pooled);
  static std::atomic<uint64_t> position{0};
  const int sent = 41, five = 5;
  value_write(at, sizeof sent, &sent);
  value_write(at + 10, sizeof five, &five);
  agent.holds_payloads = true;
  launch_collective({.sig = signature("all_reduce", signatures::Collective{}),
                     .position = &position,
                     .stream = stream,
                     .call = EID_CALL("ncclAllReduce"),
                     .group_more = false,
                     .send = at,
                     .send_bytes = sizeof sent,
                     .receive = at + 1,
                     .receive_bytes = sizeof sent});
  AddOne::leave(at + 1, at + 2);  // 42
  AddOne::leave(at + 2, at + 2);  // in place: 43
  AddOne::leave(at + 2, in_pool); // 44
  AddOne::leave(in_pool, at + 3); // 45, although the memory between is freed
  mem_free_async(pooled, stream);
  value_write(at + 2, sizeof five, &five); // comes after the work that reads and writes it
  AddOne::leave(at + 10, at + 11);         // 6, at once: it waits for nothing
  CHECK(value_knowledge(at + 1, sizeof sent) == Knowledge::kComing);
  CHECK(value_knowledge(at + 3, sizeof sent) == Knowledge::kComing);
  CHECK(value_knowledge(at + 11, sizeof sent) == Knowledge::kKnown);
  CHECK(value_knowledge(at + 12, sizeof sent) == Knowledge::kUnknown);
  agent.holds_payloads = false;
  int got[12];
  CHECK_EQUAL(value_read(at, sizeof got, got), 6 * sizeof(int)); // those between are unknown
  CHECK_EQUAL(got[1], 41);
  CHECK_EQUAL(got[2], 5);
  CHECK_EQUAL(got[3], 45);
  CHECK_EQUAL(got[11], 6);
  CHECK_EQUAL(value_known(in_pool, sizeof sent), 0);
  mem_free(memory);
}

// Torch's watchdog looks at the ends of collectives once in 100 ms. It is told what the main thread knows and no more,
// and when the main thread issues its next collective, the watchdog has seen all of that.
constexpr int kTurns = 25, kFar = 3 * 4096, kWatched = kTurns + kFar; // launches

void watchdog() {
  Stream *compute, *communication;
  stream_create(kStreamNonBlocking, 0, &compute);
  stream_create(kStreamNonBlocking, 0, &communication);
  void *device;
  mem_alloc(0, 4096, &device);
  static std::atomic<uint64_t> position{0};
  auto collective = [&](void *end) {
    launch_collective({.sig = signature("all_reduce", signatures::Collective{}),
                       .position = &position,
                       .stream = communication,
                       .call = EID_CALL("ncclAllReduce"),
                       .group_more = false,
                       .send = device,
                       .send_bytes = 0,
                       .receive = device,
                       .receive_bytes = 0});
    event_record(end, communication, 0);
  };
  constexpr int kEnds = 6;
  void *ends[kEnds], *future;
  for (void *&end : ends)
    event_create(kEventDisableTiming, &end);
  event_create(kEventDisableTiming, &future);
  collective(ends[0]); // a while: nobody looks at the collectives of the tests before
  std::atomic<int> known{1}, seen{0};
  std::atomic<bool> over{false};
  std::thread thread([&] {
    while (!over) {
      usleep(100'000);
      while (seen < known && event_query(ends[seen], 0) == kSuccess)
        ++seen;
    }
  });
  for (int i = 0; i < kTurns; ++i) { // at work, so that the core is not asked for the watchdog's sake
    launch_operation(compute, signature("test:work", signatures::Library{}), 0);
    for (const clock_t until = clock() + CLOCKS_PER_SEC / 100; clock() < until;) // of processor time: it never sleeps
      ;
  }
  CHECK_EQUAL(seen.load(), 0); // over on the device, for all that the core would say, but nobody asked
  device_synchronize(0, 0);
  collective(ends[1]);
  CHECK_EQUAL(seen.load(), 1);
  // A stream that waits for something is done behind it: DDP waits for an event behind the collective's own.
  event_record(future, communication, 0);
  stream_wait(compute, future, 0);
  known = 2;
  stream_synchronize(compute, 0);
  collective(ends[2]);
  CHECK_EQUAL(seen.load(), 2);
  // Work.wait() lets a stream wait for the end itself, and frees what the collective kept: there is nothing to wait
  // for.
  stream_wait(compute, ends[2], 0);
  device_synchronize(0, 0);
  collective(ends[3]);
  CHECK_EQUAL(seen.load(), 2);
  // Hosts do not run ahead of the device for ever.
  for (int i = 0; i < kFar; ++i)
    launch_operation(compute, signature("test:work", signatures::Library{}), 0);
  known = 4;
  collective(ends[4]);
  CHECK_EQUAL(seen.load(), 4);
  // A main thread that rests may be waiting for the watchdog: it gets its answers from the core.
  known = 5;
  for (int i = 0; i < 100 && seen < 5; ++i)
    usleep(100'000);
  CHECK_EQUAL(seen.load(), 5);
  over = true;
  thread.join();
  // Without anybody who looks, the main thread goes on.
  device_synchronize(0, 0);
  collective(ends[5]);
  device_synchronize(0, 0);
  const RingHeader *header = map_ring();
  const uint64_t before = header->head.load();
  collective(ends[5]);
  CHECK(header->head.load() > before);
  mem_free(device);
}

// What the agent saw of `work`, in its order: "C0" (a collective on stream 0), "R0a" (a recording a there) and "W1a"
// (stream 1 waits for it; "-" is a recording from before); "+" where more of a group follows.
template <class Work> std::string order_of(Agent &agent, Stream *const *streams, Work work) {
  device_synchronize(0, 0);
  const size_t before = agent.ordered().size();
  work();
  device_synchronize(0, 0);
  std::string text;
  std::vector<uint64_t> keys;
  const std::vector<EventRecord> seen = agent.ordered();
  for (size_t i = before; i < seen.size(); ++i) {
    const EventRecord &r = seen[i];
    const auto kind = static_cast<Kind>(r.kind);
    text += kind == Kind::kCollective ? " C" : kind == Kind::kEventRecord ? " R" : " W";
    text += r.stream == stream_id(streams[0]) ? "0" : r.stream == stream_id(streams[1]) ? "1" : "?";
    if (kind == Kind::kCollective) {
      text += (r.flags & kGroupMore) != 0 ? "+" : "";
      continue;
    }
    const auto known = std::find(keys.begin(), keys.end(), r.value);
    text += kind == Kind::kStreamWait && known == keys.end() ? '-' : static_cast<char>('a' + (known - keys.begin()));
    if (known == keys.end() && kind == Kind::kEventRecord)
      keys.push_back(r.value);
  }
  return text;
}

// Launches of one communicator take turns on whatever streams.
void turns(Agent &agent) {
  constexpr size_t kCount = 1 << 14; // their values do not travel
  Stream *streams[2];
  for (Stream *&stream : streams)
    stream_create(kStreamNonBlocking, 0, &stream);
  void *device;
  mem_alloc(0, 1 << 20, &device);
  auto is = [&](const char *wanted, auto work) {
    const std::string got = order_of(agent, streams, work);
    if (got != wanted)
      fprintf(stderr, "order is%s, not%s\n", got.c_str(), wanted);
    CHECK(got == wanted);
  };
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm, other, child, sharing;
  CHECK_EQUAL(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  ncclGetUniqueId(&id);
  CHECK_EQUAL(ncclCommInitRank(&other, 2, id, 0), ncclSuccess);
  auto reduce = [&](ncclComm_t on, int stream) {
    auto handle = static_cast<cudaStream_t>(stream_handle(streams[stream]));
    CHECK_EQUAL(ncclAllReduce(device, device, kCount, ncclFloat64, ncclSum, on, handle), ncclSuccess);
  };
  auto pair = [&](int sending, int receiving) {
    ncclGroupStart();
    for (auto [stream, sends] : {std::pair{sending, true}, {receiving, false}}) {
      auto handle = static_cast<cudaStream_t>(stream_handle(streams[stream]));
      CHECK_EQUAL(sends ? ncclSend(device, 8 * kCount, ncclInt8, 1, comm, handle)
                        : ncclRecv(static_cast<char *>(device) + (1 << 19), 8 * kCount, ncclInt8, 1, comm, handle),
                  ncclSuccess);
    }
    return ncclGroupEnd();
  };
  is(" C0 R0a W1a C1 R1b C1 R1c W0c C0 R0d", [&] {
    for (int stream : {0, 1, 1, 0})
      reduce(comm, stream);
  });
  is(" C1 R1a C0 R0b", [&] { // another communicator has its own turn
    reduce(other, 1);
    reduce(comm, 0);
  });
  is(" C0+ C0 R0a", [&] { CHECK_EQUAL(pair(0, 0), ncclSuccess); });
  // A group is one launch on the stream of its first call; the other stream waits for it, and it for the other stream.
  is(" R1a W0a C0+ C0 R0b R0c W1c", [&] { CHECK_EQUAL(pair(0, 1), ncclSuccess); });
  is(" R0a W1a W1- C1+ C1 R1b R1c W0c", [&] { CHECK_EQUAL(pair(1, 0), ncclSuccess); });
  // A captured launch takes its turn when the graph is launched.
  void *graph, *exec;
  is("", [&] {
    capture_begin(streams[0], CaptureMode::kThreadLocal, nullptr);
    reduce(comm, 0);
    CHECK_EQUAL(pair(0, 1), ncclInvalidUsage); // of a group all streams are captured, or none
    capture_end(streams[0], &graph);
    CHECK_EQUAL(graph_instantiate(graph, &exec), kSuccess);
  });
  is(" W0- C0 R0a W1a C1 R1b W0b C0 R0c", [&] {
    graph_launch(exec, streams[0], 0);
    reduce(comm, 1);
    graph_launch(exec, streams[0], 0);
  });
  graph_exec_destroy(exec);
  graph_destroy(graph);
  // A child is on its own, unless it shares the parent's resources.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 1;
  CHECK_EQUAL(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclCommSplit(comm, 0, 0, &sharing, &config), ncclSuccess);
  for (ncclComm *each : {child, sharing})
    each->size = 2; // the agent here answers something else
  is(" C1 R1a W1- C1 R1b", [&] {
    reduce(child, 1);
    reduce(sharing, 1);
  });
  // What is left of a communicator that ended needs it no more.
  for (ncclComm_t each : {child, comm, other})
    CHECK_EQUAL(ncclCommDestroy(each), ncclSuccess);
  is(" W0- C0 R0a", [&] { reduce(sharing, 0); });
  CHECK_EQUAL(ncclCommAbort(sharing), ncclSuccess);
  mem_free(device);
}

// A rank whose foreground threads sleep is idle though others go on asking: main waits here for one that does, as it
// does for NCCL's watchdogs when a process group is destroyed. Its next record ends that.
void rest() {
  const RingHeader *header = map_ring();
  std::thread watchdog([header] {
    for (int i = 0; i < 5000 && header->idle.load() == 0; ++i) {
      unmodelled("test", "poll");
      usleep(2000);
    }
  });
  watchdog.join();
  CHECK_EQUAL(header->idle.load(), 1);
  CHECK_EQUAL(eidolon_mark("awake"), 1);
  CHECK_EQUAL(header->idle.load(), 0);
}

} // namespace

int main() {
  test::directory = test::enter_server("mode=core\ndevices=2\nring.records=1024\nring.defs_bytes=65536\n"
                                       "ring.inbox_bytes=65536\ngpu.context_bytes=104857600\n"
                                       "host.function=64 512 8192 460 970 6800 15400\n"
                                       "host.operator=64 512 8192 1730 7100 13600 13600\nhost.ages=5 60 10000\n");
  static Agent agent;
  agent.make_page();
  CHECK_EQUAL(ensure_context(0), kSuccess);
  CHECK(is_rank());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back(one_thread, i);
  for (std::thread &thread : threads)
    thread.join();
  everything_else(agent);
  deferred_work(agent);
  watchdog();
  turns(agent);
  rest();
  agent.stop = true;
  agent.thread.join();
  CHECK_EQUAL(agent.out_of_order, 0);
  CHECK_EQUAL(agent.undefined, 0);
  CHECK_EQUAL(agent.payloads, 3);
  CHECK_EQUAL(agent.graph_nodes, 21);
  CHECK_EQUAL(agent.kernels, kThreads * kRounds * kLaunches + 21 + kWatched);
  CHECK(agent.page->used_bytes[0].load() >= 104857600);
  int failed = test::result();
  fflush(nullptr);
  _exit(failed); // the exit handler would wait for an agent
}
