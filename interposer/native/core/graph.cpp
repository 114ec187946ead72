// Stream capture and graphs.
//
// A captured operation is a node that knows how to issue itself on a lane (Replay) and which nodes it depends on.
// Instantiating lays the graph out on lanes once: a node continues the lane of the first of its dependencies that is
// still its lane's last node, otherwise it opens a new lane; every other dependency becomes a recording and a wait. A
// launch issues that sequence, its first lane being the launch stream, so a replay costs and orders exactly what was
// captured.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "internal.h"

namespace eidolon {

struct Node {
  NodeType type;
  Replay replay;
  std::vector<Node *> dependencies;
  struct Graph *graph;
};

struct UserObject {
  void *data;
  void (*destroy)(void *);
  std::atomic<unsigned> references;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes; // in an order that respects dependencies
  std::vector<std::pair<UserObject *, unsigned>> objects;
};

struct Capture {
  uint64_t id;
  Graph *graph;
  Stream *origin;
  CaptureMode mode;
  uint64_t thread; // that began it
  bool owns_graph; // began without a graph of the caller's
  std::atomic<bool> invalid{false};
  bool ended = false;
  std::vector<Stream *> members = {};
};

namespace {

struct Step { // of an instantiated graph
  enum { kRun, kRecord, kWait } what;
  int lane;
  size_t node; // kRun: index; kRecord, kWait: index of the key
};
struct Exec {
  std::vector<Replay> replays;
  std::vector<Step> steps;
  int lanes = 1;
  size_t keys = 0;
  std::map<int, std::vector<std::unique_ptr<Stream>>> lanes_of; // per device: private lanes, of the second on
  std::vector<std::pair<UserObject *, unsigned>> objects;
};

std::mutex mutex; // captures and graphs: rarely contended, never on the launch path of plain work
std::vector<std::shared_ptr<Capture>> &live_captures =
    *new std::vector<std::shared_ptr<Capture>>; // begun and not ended; under the mutex
std::atomic<uint64_t> next_capture{1};
std::atomic<int> global_captures{0}, open_captures{0};
thread_local CaptureMode thread_mode = CaptureMode::kGlobal;
thread_local int thread_captures = 0; // global or thread-local captures that this thread began

struct Effect {
  void *pointer;
  size_t bytes;
  std::vector<char> data; // empty: unknown
};
thread_local std::vector<Effect> effects; // of what this thread captures next
thread_local uint64_t effects_since = 0;  // the capture that was the newest: older ones' leftovers do not count

void apply(const std::vector<Effect> &all) {
  for (const Effect &e : all)
    if (e.data.empty())
      value_unknown(e.pointer, e.bytes);
    else
      value_write(e.pointer, e.bytes, e.data.data());
}

uint64_t thread_number() { return reinterpret_cast<uint64_t>(&thread_mode); }

Graph *graph_of(void *handle) { return static_cast<Graph *>(handle); }

void retain(UserObject *object, unsigned n) { object->references.fetch_add(n); }
void release(UserObject *object, unsigned n) {
  if (object->references.fetch_sub(n) == n) {
    object->destroy(object->data);
    delete object;
  }
}

void plan(Exec *exec, const Graph *graph) {
  std::map<const Node *, size_t> index;
  std::vector<int> lane_of(graph->nodes.size());
  std::vector<const Node *> last_on_lane;
  std::map<const Node *, size_t> key_of; // nodes that another lane waits for
  exec->replays.clear();
  exec->steps.clear();
  exec->keys = 1; // key 0: the launch itself
  // Which dependencies cross lanes is known only once lanes are chosen: two passes.
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    const Node *node = graph->nodes[i].get();
    index[node] = i;
    int lane = -1;
    for (const Node *dependency : node->dependencies)
      if (int candidate = lane_of[index[dependency]]; last_on_lane[static_cast<size_t>(candidate)] == dependency) {
        lane = candidate;
        break;
      }
    if (lane < 0) {
      lane = static_cast<int>(last_on_lane.size());
      last_on_lane.push_back(node);
    }
    last_on_lane[static_cast<size_t>(lane)] = node;
    lane_of[i] = lane;
    for (const Node *dependency : node->dependencies)
      if (lane_of[index[dependency]] != lane && !key_of.contains(dependency))
        key_of[dependency] = exec->keys++;
  }
  exec->lanes = std::max<int>(1, static_cast<int>(last_on_lane.size()));
  std::vector<bool> started(static_cast<size_t>(exec->lanes), false);
  started[0] = true;
  if (exec->lanes > 1)
    exec->steps.push_back({Step::kRecord, 0, 0});
  for (size_t i = 0; i < graph->nodes.size(); ++i) {
    const Node *node = graph->nodes[i].get();
    int lane = lane_of[i];
    if (!started[static_cast<size_t>(lane)]) {
      exec->steps.push_back({Step::kWait, lane, 0});
      started[static_cast<size_t>(lane)] = true;
    }
    for (const Node *dependency : node->dependencies)
      if (lane_of[index[dependency]] != lane)
        exec->steps.push_back({Step::kWait, lane, key_of[dependency]});
    exec->steps.push_back({Step::kRun, lane, i});
    exec->replays.push_back(node->replay);
    if (auto key = key_of.find(node); key != key_of.end())
      exec->steps.push_back({Step::kRecord, lane, key->second});
  }
  for (int lane = 1; lane < exec->lanes; ++lane) { // the launch stream goes on when all lanes have ended
    exec->steps.push_back({Step::kRecord, lane, exec->keys});
    exec->steps.push_back({Step::kWait, 0, exec->keys++});
  }
}

void drop_member(Capture *capture, Stream *stream) {
  stream->capture.reset();
  stream->tail.clear();
  std::erase(capture->members, stream);
}

} // namespace

bool in_capture(const Stream *stream) { return stream->capture != nullptr; }
bool capturing() { return open_captures.load(std::memory_order_relaxed) != 0; }

void capture_effect(void *pointer, size_t bytes, const void *data) {
  if (open_captures.load(std::memory_order_relaxed) == 0)
    return;
  if (uint64_t newest = next_capture.load(); effects_since != newest) {
    effects.clear();
    effects_since = newest;
  }
  effects.push_back({pointer, bytes, {}});
  if (const char *first = static_cast<const char *>(data); data != nullptr)
    effects.back().data.assign(first, first + bytes);
}

bool capture_node(Stream *stream, NodeType type, Replay replay) {
  if (stream->capture == nullptr)
    return false;
  if (!effects.empty() && effects_since == next_capture.load())
    replay = [before = std::exchange(effects, {}), replay = std::move(replay)](Stream *lane, uint8_t flags) {
      apply(before);
      replay(lane, flags);
    };
  std::lock_guard hold(mutex);
  Graph *graph = stream->capture->graph;
  auto node = std::make_unique<Node>(Node{type, std::move(replay), stream->tail, graph});
  stream->tail = {node.get()};
  graph->nodes.push_back(std::move(node));
  return true;
}

void capture_event_record(Stream *stream, CudaEvent *event) {
  std::lock_guard hold(mutex);
  event->capture = stream->capture;
  event->captured = stream->tail;
}

Status capture_join(Stream *stream, CudaEvent *event) {
  std::lock_guard hold(mutex);
  if (event->capture == nullptr) { // a capturing stream may not wait for work outside its capture
    if (event->key == 0)
      return kSuccess;
    stream->capture->invalid = true;
    return kCaptureIsolation;
  }
  if (event->capture->ended)
    return kCapturedEvent;
  if (stream->capture != nullptr && stream->capture != event->capture)
    return kCaptureMerge;
  if (stream->capture == nullptr) {
    if (stream->legacy)
      return kCaptureImplicit;
    stream->capture = event->capture;
    stream->capture->members.push_back(stream);
  }
  for (Node *node : event->captured)
    if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end())
      stream->tail.push_back(node);
  return kSuccess;
}

Status capture_begin(Stream *stream, CaptureMode mode, void *into_graph) {
  if (stream->legacy)
    return kCaptureUnsupported;
  if (stream->capture != nullptr)
    return kInvalidValue; // already capturing
  if (mode < CaptureMode::kGlobal || mode > CaptureMode::kRelaxed)
    return kInvalidValue;
  std::lock_guard hold(mutex);
  auto capture = std::make_shared<Capture>(next_capture.fetch_add(1), nullptr, stream, mode, thread_number(),
                                           into_graph == nullptr);
  capture->graph = into_graph != nullptr ? graph_of(into_graph) : new Graph;
  capture->members.push_back(stream);
  live_captures.push_back(capture);
  stream->capture = capture;
  stream->tail.clear();
  if (mode == CaptureMode::kGlobal)
    global_captures.fetch_add(1);
  if (mode != CaptureMode::kRelaxed)
    thread_captures++;
  open_captures.fetch_add(1);
  return kSuccess;
}

Status capture_end(Stream *stream, void **out) {
  *out = nullptr;
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr)
    return kInvalidValue;
  if (capture->origin != stream)
    return kCaptureUnmatched;
  if (capture->mode != CaptureMode::kRelaxed && capture->thread != thread_number())
    return kCaptureWrongThread;
  std::lock_guard hold(mutex);
  capture->ended = true;
  std::erase(live_captures, capture);
  Status status = capture->invalid ? kCaptureInvalidated : kSuccess;
  // Every joined stream must have been joined back: its last nodes are dependencies of something on the origin.
  std::set<Node *> reached(stream->tail.begin(), stream->tail.end());
  for (size_t i = capture->graph->nodes.size(); i-- > 0;)
    if (Node *node = capture->graph->nodes[i].get(); reached.contains(node))
      reached.insert(node->dependencies.begin(), node->dependencies.end());
  for (Stream *member : capture->members)
    for (Node *node : member->tail)
      if (status == kSuccess && !reached.contains(node))
        status = kCaptureUnjoined;
  while (!capture->members.empty())
    drop_member(capture.get(), capture->members.back());
  if (capture->mode == CaptureMode::kGlobal)
    global_captures.fetch_sub(1);
  if (capture->mode != CaptureMode::kRelaxed)
    thread_captures--;
  open_captures.fetch_sub(1);
  if (status == kSuccess)
    *out = capture->graph;
  else if (capture->owns_graph)
    delete capture->graph;
  return status;
}

CaptureInfo capture_info(Stream *stream) {
  if (stream->capture == nullptr)
    return {};
  static_assert(sizeof(Node *) == sizeof(void *));
  return {stream->capture->invalid ? CaptureStatus::kInvalidated : CaptureStatus::kActive, stream->capture->id,
          stream->capture->graph, reinterpret_cast<void **>(stream->tail.data()), stream->tail.size()};
}

Status capture_update_dependencies(Stream *stream, void *const *nodes, size_t n, bool replace) {
  if (stream->capture == nullptr)
    return kInvalidValue;
  std::lock_guard hold(mutex);
  if (replace)
    stream->tail.clear();
  for (size_t i = 0; i < n; ++i)
    stream->tail.push_back(static_cast<Node *>(nodes[i]));
  return kSuccess;
}

CaptureMode capture_exchange_mode(CaptureMode mode) { return std::exchange(thread_mode, mode); }

bool capture_forbids_unsafe_call() {
  // CUDA runtime API, cudaThreadExchangeStreamCaptureMode: a thread in relaxed mode may always; in thread-local mode
  // only its own captures forbid; in global mode any global capture does.
  if (thread_mode == CaptureMode::kRelaxed)
    return false;
  const bool any_global = thread_mode == CaptureMode::kGlobal && global_captures.load(std::memory_order_relaxed) > 0;
  if (thread_captures == 0 && !any_global)
    return false;
  std::lock_guard hold(mutex);
  for (const auto &capture : live_captures) // those that forbade it are spoiled
    if ((any_global && capture->mode == CaptureMode::kGlobal) ||
        (capture->mode != CaptureMode::kRelaxed && capture->thread == thread_number()))
      capture->invalid = true;
  return true;
}

void capture_invalidate(Capture &capture) {
  std::lock_guard hold(mutex);
  capture.invalid = true;
}

// ---- graphs -------------------------------------------------------------------------------------------------------

Status graph_create(void **graph) {
  *graph = new Graph;
  return kSuccess;
}

Status graph_destroy(void *handle) {
  Graph *graph = graph_of(handle);
  for (auto [object, n] : graph->objects)
    release(object, n);
  delete graph;
  return kSuccess;
}

Status graph_clone(void *handle, void **out) {
  std::lock_guard hold(mutex);
  const Graph *graph = graph_of(handle);
  auto *copy = new Graph;
  std::map<const Node *, Node *> twin;
  for (const auto &node : graph->nodes) {
    auto made = std::make_unique<Node>(Node{node->type, node->replay, {}, copy});
    for (const Node *dependency : node->dependencies)
      made->dependencies.push_back(twin[dependency]);
    twin[node.get()] = made.get();
    copy->nodes.push_back(std::move(made));
  }
  *out = copy;
  return kSuccess;
}

size_t graph_nodes(void *handle, void **nodes, size_t capacity) {
  std::lock_guard hold(mutex);
  const Graph *graph = graph_of(handle);
  for (size_t i = 0; nodes != nullptr && i < std::min(capacity, graph->nodes.size()); ++i)
    nodes[i] = graph->nodes[i].get();
  return graph->nodes.size();
}

size_t graph_roots(void *handle, void **nodes, size_t capacity) {
  std::lock_guard hold(mutex);
  size_t count = 0;
  for (const auto &node : graph_of(handle)->nodes)
    if (node->dependencies.empty()) {
      if (nodes != nullptr && count < capacity)
        nodes[count] = node.get();
      count++;
    }
  return count;
}

size_t graph_edges(void *handle, void **from, void **to, size_t capacity) {
  std::lock_guard hold(mutex);
  size_t count = 0;
  for (const auto &node : graph_of(handle)->nodes)
    for (Node *dependency : node->dependencies) {
      if (from != nullptr && to != nullptr && count < capacity) {
        from[count] = dependency;
        to[count] = node.get();
      }
      count++;
    }
  return count;
}

size_t node_dependencies(void *handle, void **nodes, size_t capacity) {
  std::lock_guard hold(mutex);
  const auto *node = static_cast<const Node *>(handle);
  for (size_t i = 0; nodes != nullptr && i < std::min(capacity, node->dependencies.size()); ++i)
    nodes[i] = node->dependencies[i];
  return node->dependencies.size();
}

Status graph_add_empty(void *handle, void *const *dependencies, size_t n, void **out) {
  std::lock_guard hold(mutex);
  Graph *graph = graph_of(handle);
  auto node = std::make_unique<Node>(Node{NodeType::kEmpty, [](Stream *, uint8_t) {}, {}, graph});
  for (size_t i = 0; i < n; ++i)
    node->dependencies.push_back(static_cast<Node *>(dependencies[i]));
  *out = node.get();
  graph->nodes.push_back(std::move(node));
  return kSuccess;
}

NodeType node_type(void *handle) { return static_cast<const Node *>(handle)->type; }

Status graph_instantiate(void *handle, void **out) {
  std::lock_guard hold(mutex);
  Graph *graph = graph_of(handle);
  auto *exec = new Exec;
  plan(exec, graph);
  for (auto [object, n] : graph->objects) {
    retain(object, n);
    exec->objects.emplace_back(object, n);
  }
  *out = exec;
  return kSuccess;
}

Status graph_exec_destroy(void *handle) {
  auto *exec = static_cast<Exec *>(handle);
  for (auto [object, n] : exec->objects)
    release(object, n);
  delete exec; // its lanes' ids are never used again
  return kSuccess;
}

Status graph_exec_update(void *handle, void *graph) {
  std::lock_guard hold(mutex);
  auto *exec = static_cast<Exec *>(handle);
  if (exec->replays.size() != graph_of(graph)->nodes.size())
    return 910; // cudaErrorGraphExecUpdateFailure: another topology
  plan(exec, graph_of(graph));
  return kSuccess;
}

Status graph_launch(void *handle, Stream *stream, uint16_t call) {
  auto *exec = static_cast<Exec *>(handle);
  emit_work({.kind = Kind::kGraphLaunch, .call = call, .stream = stream}); // ordered for all of its lanes
  auto &lanes = exec->lanes_of[stream->device];
  while (static_cast<int>(lanes.size()) + 1 < exec->lanes)
    lanes.emplace_back(make_stream(stream->device, 1, 0));
  std::vector<uint64_t> keys(exec->keys);
  for (const Step &step : exec->steps) {
    Stream *lane = step.lane == 0 ? stream : lanes[static_cast<size_t>(step.lane) - 1].get();
    switch (step.what) {
    case Step::kRun:
      exec->replays[step.node](lane, kInGraph);
      break;
    case Step::kRecord:
      keys[step.node] = next_event_key();
      emit({.kind = Kind::kEventRecord, .flags = kInGraph, .stream = lane, .value = keys[step.node]});
      break;
    case Step::kWait:
      lane->last_seq =
          1 + emit({.kind = Kind::kStreamWait, .flags = kInGraph, .stream = lane, .value = keys[step.node]});
      break;
    }
  }
  return kSuccess;
}

void *user_object_create(void *data, void (*destroy)(void *), unsigned references) {
  return new UserObject{data, destroy, references};
}
void user_object_release(void *object, unsigned n) { release(static_cast<UserObject *>(object), n); }
void user_object_retain(void *object, unsigned n) { retain(static_cast<UserObject *>(object), n); }
void graph_retain_user_object(void *graph, void *object, unsigned n, bool move) {
  std::lock_guard hold(mutex);
  if (!move)
    retain(static_cast<UserObject *>(object), n);
  graph_of(graph)->objects.emplace_back(static_cast<UserObject *>(object), n);
}

} // namespace eidolon
