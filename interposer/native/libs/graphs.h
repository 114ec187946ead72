// What the runtime and the driver do with stream capture and graphs.
//
// The core holds graphs. A node that a program adds by hand is captured like any other. Some nodes are not modelled:
// those of child graphs, conditions, allocations and external semaphores. To change one node of an instantiated graph
// is not modelled either, since frameworks capture again or update the whole graph.
#pragma once
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "copies.h"
#include "library.h"

namespace eidolon {

// ---- capture ------------------------------------------------------------------------------------------------------

inline void *const *nodes_of(CUgraphNode_st *const *handles) { return reinterpret_cast<void *const *>(handles); }

// Begins a capture into `graph`, behind `dependencies`. If `graph` is nullptr, a new graph is made.
inline Status begin_capture(const Library &library, CUstream_st *handle, CUgraph_st *graph,
                            CUgraphNode_st *const *dependencies, size_t count, int mode) {
  Stream *stream;
  if (Status status = library.stream(handle, &stream))
    return status;
  if (captures(stream))
    return kIllegalState;
  if (Status status = capture_begin(stream, static_cast<CaptureMode>(mode), graph))
    return status;
  if (count == 0)
    return kSuccess;
  return capture_update_dependencies(stream, nodes_of(dependencies), count, true);
}

inline Status begin_capture_to_graph(const Library &library, CUstream_st *handle, CUgraph_st *graph,
                                     CUgraphNode_st *const *dependencies, size_t count, int mode) {
  if (graph == nullptr || (count != 0 && dependencies == nullptr))
    return kInvalidValue;
  return begin_capture(library, handle, graph, dependencies, count, mode);
}

inline Status end_capture(const Library &library, CUstream_st *handle, CUgraph_st **graph) {
  Stream *stream;
  if (graph == nullptr)
    return kInvalidValue;
  *graph = nullptr;
  if (Status status = library.stream(handle, &stream))
    return status;
  if (!captures(stream))
    return kIllegalState;
  void *made = nullptr;
  Status status = capture_end(stream, &made);
  *graph = static_cast<CUgraph_st *>(made);
  return status;
}

template <class State> Status capture_state(const Library &library, CUstream_st *handle, State *out) {
  Stream *stream;
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  *out = static_cast<State>(capture_info(stream).status);
  return kSuccess;
}

// All dependencies are plain ones. Their edge data is all zero, which CUDA states with a null pointer.
template <class State, class Id, class Edge>
Status capture_details(const Library &library, CUstream_st *handle, State *out, Id *id, CUgraph_st **graph,
                       CUgraphNode_st *const **dependencies, const Edge **edges, size_t *count) {
  Stream *stream;
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  const CaptureInfo info = capture_info(stream);
  *out = static_cast<State>(info.status);
  if (info.status == CaptureStatus::kNone)
    return kSuccess;
  const bool valid = info.status == CaptureStatus::kActive;
  if (id != nullptr)
    *id = info.id;
  if (graph != nullptr)
    *graph = valid ? static_cast<CUgraph_st *>(info.graph) : nullptr;
  if (dependencies != nullptr)
    *dependencies = valid ? reinterpret_cast<CUgraphNode_st *const *>(info.dependencies) : nullptr;
  if (edges != nullptr)
    *edges = nullptr;
  if (count != nullptr)
    *count = valid ? info.count : 0;
  return kSuccess;
}

inline Status update_dependencies(const Library &library, CUstream_st *handle, CUgraphNode_st *const *dependencies,
                                  size_t count, unsigned flags) {
  constexpr unsigned kReplace = 1; // CU_STREAM_SET_CAPTURE_DEPENDENCIES; 0 adds
  Stream *stream;
  if (flags > kReplace || (count != 0 && dependencies == nullptr))
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  if (!captures(stream))
    return kIllegalState;
  return capture_update_dependencies(stream, nodes_of(dependencies), count, flags == kReplace);
}

template <class Mode> Status exchange_mode(Mode *mode) {
  if (mode == nullptr)
    return kInvalidValue;
  const auto wanted = static_cast<CaptureMode>(*mode);
  if (wanted < CaptureMode::kGlobal || wanted > CaptureMode::kRelaxed)
    return kInvalidValue;
  *mode = static_cast<Mode>(capture_exchange_mode(wanted));
  return kSuccess;
}

// ---- graphs -------------------------------------------------------------------------------------------------------

inline Status create_graph(const Library &library, CUgraph_st **graph, unsigned flags) {
  if (graph == nullptr || flags != 0)
    return kInvalidValue;
  if (Status status = library.present())
    return status;
  void *made = nullptr;
  Status status = graph_create(&made);
  *graph = static_cast<CUgraph_st *>(made);
  return status;
}

inline Status destroy_graph(CUgraph_st *graph) { return graph != nullptr ? graph_destroy(graph) : kInvalidValue; }

inline Status clone_graph(CUgraph_st **out, CUgraph_st *graph) {
  if (out == nullptr || graph == nullptr)
    return kInvalidValue;
  void *made = nullptr;
  Status status = graph_clone(graph, &made);
  *out = static_cast<CUgraph_st *>(made);
  return status;
}

// Follows CUDA's convention for lists. Without an array it gives the count. With one it fills up to *count entries,
// clears the rest, and gives the number of entries. `list(array, capacity)` returns the count.
template <class Handle, class List> Status fill_list(Handle *out, size_t *count, List list) {
  if (count == nullptr)
    return kInvalidValue;
  const size_t have = list(nullptr, size_t{0});
  if (out == nullptr) {
    *count = have;
    return kSuccess;
  }
  static_assert(sizeof(Handle) == sizeof(void *));
  list(reinterpret_cast<void **>(out), *count);
  for (size_t i = have; i < *count; ++i)
    out[i] = nullptr;
  *count = have;
  return kSuccess;
}

inline Status list_nodes(CUgraph_st *graph, CUgraphNode_st **nodes, size_t *count) {
  if (graph == nullptr)
    return kInvalidValue;
  return fill_list(nodes, count, [=](void **out, size_t n) { return graph_nodes(graph, out, n); });
}

inline Status list_roots(CUgraph_st *graph, CUgraphNode_st **nodes, size_t *count) {
  if (graph == nullptr)
    return kInvalidValue;
  return fill_list(nodes, count, [=](void **out, size_t n) { return graph_roots(graph, out, n); });
}

template <class Edge>
Status list_edges(CUgraph_st *graph, CUgraphNode_st **from, CUgraphNode_st **to, Edge *data, size_t *count) {
  if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr))
    return kInvalidValue;
  if (data != nullptr && from != nullptr)
    std::memset(data, 0, *count * sizeof *data);
  return fill_list(from, count,
                   [=](void **out, size_t n) { return graph_edges(graph, out, reinterpret_cast<void **>(to), n); });
}

template <class Edge>
Status list_dependencies(CUgraphNode_st *node, CUgraphNode_st **dependencies, Edge *data, size_t *count) {
  if (node == nullptr || count == nullptr)
    return kInvalidValue;
  if (data != nullptr && dependencies != nullptr)
    std::memset(data, 0, *count * sizeof *data);
  return fill_list(dependencies, count, [=](void **out, size_t n) { return node_dependencies(node, out, n); });
}

template <class Type> Status type_of_node(CUgraphNode_st *node, Type *type) {
  if (node == nullptr || type == nullptr)
    return kInvalidValue;
  *type = static_cast<Type>(node_type(node));
  return kSuccess;
}

inline const char *node_type_name(NodeType type) {
  switch (type) {
  case NodeType::kKernel:
    return "KERNEL";
  case NodeType::kCopy:
    return "MEMCPY";
  case NodeType::kSet:
    return "MEMSET";
  case NodeType::kHost:
    return "HOST";
  case NodeType::kEmpty:
    return "EMPTY";
  case NodeType::kWaitEvent:
    return "WAIT";
  case NodeType::kEventRecord:
    return "EVENT_RECORD";
  default:
    return "OTHER";
  }
}

inline Status write_dot(CUgraph_st *graph, const char *path) {
  if (graph == nullptr || path == nullptr)
    return kInvalidValue;
  std::FILE *file = std::fopen(path, "we");
  if (file == nullptr)
    return kOperatingSystem;
  std::vector<void *> nodes(graph_nodes(graph, nullptr, 0));
  graph_nodes(graph, nodes.data(), nodes.size());
  std::vector<void *> from(graph_edges(graph, nullptr, nullptr, 0)), to(from.size());
  graph_edges(graph, from.data(), to.data(), from.size());
  auto number = [&nodes](const void *node) {
    for (size_t i = 0; i < nodes.size(); ++i)
      if (nodes[i] == node)
        return i;
    return nodes.size();
  };
  std::fprintf(file, "digraph dot {\n");
  for (size_t i = 0; i < nodes.size(); ++i)
    std::fprintf(file, "  \"node_%zu\" [shape=\"box\", label=\"%zu\\n%s\"];\n", i, i,
                 node_type_name(node_type(nodes[i])));
  for (size_t i = 0; i < from.size(); ++i)
    std::fprintf(file, "  \"node_%zu\" -> \"node_%zu\";\n", number(from[i]), number(to[i]));
  std::fprintf(file, "}\n");
  return std::fclose(file) == 0 ? kSuccess : kOperatingSystem;
}

// ---- instantiated graphs ------------------------------------------------------------------------------------------

// These numbers are those of CUgraphInstantiate_flags.
inline constexpr unsigned long long kAutoFreeOnLaunch = 1, kUpload = 2, kDeviceLaunch = 4, kUseNodePriority = 8;

// The flags with which each live graph of this library was instantiated.
class ExecFlags {
public:
  void set(const void *exec, unsigned long long flags) {
    std::lock_guard hold(mutex_);
    flags_[exec] = flags;
  }
  template <class Flags> Status get(const void *exec, Flags *out) {
    std::lock_guard hold(mutex_);
    auto found = flags_.find(exec);
    if (out == nullptr || found == flags_.end())
      return kInvalidValue;
    *out = found->second;
    return kSuccess;
  }
  bool erase(const void *exec) { // false if it is not of this library
    std::lock_guard hold(mutex_);
    return flags_.erase(exec) != 0;
  }

private:
  std::mutex mutex_;
  std::map<const void *, unsigned long long> flags_;
};
inline ExecFlags &exec_flags() {
  static auto &all = *new ExecFlags;
  return all;
}

// Counts a call that is not modelled under the name of the library's function. `what` is that name without its prefix.
inline Status not_modelled(const Library &library, const char *what) {
  char name[96];
  std::snprintf(name, sizeof name, "%s%s", library.prefix, what);
  unmodelled(library.name, name);
  return kNotSupported;
}

inline Status instantiate(const Library &library, CUgraphExec_st **out, CUgraph_st *graph, unsigned long long flags,
                          uint16_t call) {
  constexpr unsigned long long kKnown = kAutoFreeOnLaunch | kUpload | kDeviceLaunch | kUseNodePriority;
  if (out == nullptr || graph == nullptr || (flags & ~kKnown) != 0)
    return kInvalidValue;
  if ((flags & kDeviceLaunch) != 0)
    return not_modelled(library, "GraphInstantiate for launches from the device");
  if (Status status = library.context())
    return status;
  host_cost(call);
  void *exec = nullptr;
  if (Status status = graph_instantiate(graph, &exec))
    return status;
  *out = static_cast<CUgraphExec_st *>(exec);
  exec_flags().set(exec, flags);
  return kSuccess;
}

// `info` is cudaGraphExecUpdateResultInfo or the driver's structure for it. The core does not say why an update was
// refused.
template <class Info>
Status update_exec(CUgraphExec_st *exec, CUgraph_st *graph, Info *info, decltype(Info::result) done,
                   decltype(Info::result) changed, uint16_t call) {
  if (exec == nullptr || graph == nullptr || info == nullptr)
    return kInvalidValue;
  host_cost(call);
  Status status = graph_exec_update(exec, graph);
  *info = {};
  info->result = status == kSuccess ? done : changed;
  return status;
}

// An upload costs nothing of its own. What it moves belongs to the instantiation.
inline Status upload_exec(const Library &library, CUgraphExec_st *exec, CUstream_st *handle, uint16_t call) {
  Stream *stream;
  if (exec == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  host_cost(call);
  return kSuccess;
}

inline Status launch_exec(const Library &library, CUgraphExec_st *exec, CUstream_st *handle, uint16_t call) {
  Stream *stream;
  if (exec == nullptr)
    return kInvalidValue;
  if (Status status = library.stream(handle, &stream))
    return status;
  if (captures(stream)) // this would be a child graph node
    return not_modelled(library, "GraphLaunch in a capture");
  return graph_launch(exec, stream, call);
}

// ---- nodes by hand ------------------------------------------------------------------------------------------------

inline CUstream_st *handle_of(Stream *stream) { return static_cast<CUstream_st *>(stream_handle(stream)); }

// Adds one node to a graph, as the functions below do.
struct NewNode {
  const Library &library;
  CUgraphNode_st **out;
  CUgraph_st *graph;
  CUgraphNode_st *const *dependencies;
  size_t count;

  // A node that is added by hand is captured like any other. A private stream captures into the graph, behind the
  // dependencies, and `operation(stream)` issues the work to it. The last node of the stream is then the new one.
  template <class Operation> [[nodiscard]] Status of(Operation operation) const {
    static std::mutex mutex; // one per kind of operation, like the streams
    static Stream *streams[kMaxDevices] = {};
    if (out == nullptr)
      return kInvalidValue;
    *out = nullptr;
    if (graph == nullptr || (count != 0 && dependencies == nullptr))
      return kInvalidValue;
    if (Status status = library.context())
      return status;
    std::lock_guard hold(mutex);
    Stream *&stream = streams[current_device()];
    if (stream == nullptr)
      if (Status status = stream_create(kStreamNonBlocking, 0, &stream))
        return status;
    if (Status status = capture_begin(stream, CaptureMode::kRelaxed, graph))
      return status;
    Status status = capture_update_dependencies(stream, nodes_of(dependencies), count, true);
    if (status == kSuccess)
      status = operation(stream);
    const CaptureInfo info = capture_info(stream);
    if (status == kSuccess && (info.count != 1 || (count == 1 && info.dependencies[0] == dependencies[0])))
      status = kInvalidValue; // the operation added nothing
    if (status == kSuccess)
      *out = static_cast<CUgraphNode_st *>(info.dependencies[0]);
    void *ignored = nullptr;
    Status ended = capture_end(stream, &ignored);
    return status != kSuccess ? status : ended;
  }
};

inline Status memset_node(Stream *stream, void *to, size_t pitch, unsigned value, unsigned element_bytes, size_t width,
                          size_t height) {
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4)
    return kInvalidValue;
  return set_box(to, value, element_bytes, pitch, width, height, 1, height, stream, false, 0);
}

template <class Parameters> Status add_host_node(const NewNode &node, const Parameters *p) {
  if (p == nullptr || p->fn == nullptr)
    return kInvalidValue;
  return node.of([p](Stream *stream) { return stream_callback(stream, p->fn, p->userData, 0); });
}

inline Status add_event_record_node(const NewNode &node, CUevent_st *event) {
  return node.of([event](Stream *stream) { return event_record_external(event, stream); });
}

inline Status add_event_wait_node(const NewNode &node, CUevent_st *event) {
  return node.of([event](Stream *stream) { return stream_wait_external(stream, event); });
}

inline Status add_empty_node(const NewNode &node) {
  if (node.out == nullptr || node.graph == nullptr || (node.count != 0 && node.dependencies == nullptr))
    return kInvalidValue;
  void *made = nullptr;
  Status status = graph_add_empty(node.graph, nodes_of(node.dependencies), node.count, &made);
  *node.out = static_cast<CUgraphNode_st *>(made);
  return status;
}

// Adds any node; the parameters' type says which. `copy`, `kernel` and `fill` issue work with the library's own
// parameters. They take the stream and the member of `p` for that work.
template <class Parameters, class Copy, class Kernel, class Fill>
Status add_any_node(const NewNode &node, const Parameters *p, Copy copy, Kernel kernel, Fill fill) {
  constexpr int kChildGraph = 4, kConditional = 13; // cudaGraphNodeTypeGraph, cudaGraphNodeTypeConditional
  if (p == nullptr)
    return kInvalidValue;
  switch (static_cast<int>(p->type)) {
  case static_cast<int>(NodeType::kEmpty):
    return add_empty_node(node);
  case static_cast<int>(NodeType::kEventRecord):
    return add_event_record_node(node, p->eventRecord.event);
  case static_cast<int>(NodeType::kWaitEvent):
    return add_event_wait_node(node, p->eventWait.event);
  case static_cast<int>(NodeType::kCopy):
    return node.of([=](Stream *stream) { return copy(stream, p->memcpy.copyParams); });
  case static_cast<int>(NodeType::kKernel):
    return node.of([=](Stream *stream) { return kernel(stream, p->kernel); });
  case static_cast<int>(NodeType::kSet):
    return node.of([=](Stream *stream) { return fill(stream, p->memset); });
  case static_cast<int>(NodeType::kHost):
    return node.of([p](Stream *stream) {
      return p->host.fn != nullptr ? stream_callback(stream, p->host.fn, p->host.userData, 0) : kInvalidValue;
    });
  case kConditional:
    return not_modelled(node.library, "GraphAddNode: conditional");
  case kChildGraph:
    return not_modelled(node.library, "GraphAddNode: child graph");
  default:
    return not_modelled(node.library, "GraphAddNode: other");
  }
}

// ---- objects whose life a graph shares ----------------------------------------------------------------------------

inline Status create_user_object(CUuserObject_st **out, void *data, void (*destroy)(void *), unsigned references,
                                 unsigned flags) {
  constexpr unsigned kNoDestructorSync = 1; // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
  if (out == nullptr || destroy == nullptr || references == 0 || flags != kNoDestructorSync)
    return kInvalidValue;
  *out = static_cast<CUuserObject_st *>(user_object_create(data, destroy, references));
  return kSuccess;
}

inline Status retain_user_object(CUuserObject_st *object, unsigned count) {
  if (object == nullptr || count == 0)
    return kInvalidValue;
  user_object_retain(object, count);
  return kSuccess;
}

inline Status release_user_object(CUuserObject_st *object, unsigned count) {
  if (object == nullptr || count == 0)
    return kInvalidValue;
  user_object_release(object, count);
  return kSuccess;
}

inline Status give_user_object(CUgraph_st *graph, CUuserObject_st *object, unsigned count, unsigned flags) {
  constexpr unsigned kMove = 1; // CU_GRAPH_USER_OBJECT_MOVE
  if (graph == nullptr || object == nullptr || count == 0 || (flags & ~kMove) != 0)
    return kInvalidValue;
  graph_retain_user_object(graph, object, count, flags == kMove);
  return kSuccess;
}

} // namespace eidolon
