// What both libraries do with graphs beyond the core's API: nodes added by hand, lists of nodes, DOT output.
#pragma once
#include <cstdio>
#include <mutex>
#include <vector>

#include "status.h"

namespace eidolon {

// A node added by hand is captured like any other: a private stream captures into the graph, behind the dependencies,
// while `operation` issues the work to it; the last node of the stream is the new one.
template <class Operation>
Status add_node(void **node, void *graph, void *const *dependencies, size_t count, Operation operation) {
  static std::mutex mutex;
  static Stream *streams[kMaxDevices] = {};
  if (node == nullptr || graph == nullptr || (count != 0 && dependencies == nullptr))
    return kInvalidValue;
  if (Status status = context())
    return status;
  std::lock_guard hold(mutex);
  Stream *&stream = streams[current_device()];
  if (stream == nullptr)
    if (Status status = stream_create(1, 0, &stream))
      return status;
  constexpr int kRelaxed = 2;
  if (Status status = capture_begin(stream, kRelaxed, graph))
    return status;
  Status status = capture_update_dependencies(stream, dependencies, count, true);
  if (status == kSuccess)
    status = operation(stream);
  CaptureInfo info = capture_info(stream);
  if (status == kSuccess && (info.count != 1 || (count == 1 && info.dependencies[0] == dependencies[0])))
    status = kInvalidValue; // the operation added nothing
  if (status == kSuccess)
    *node = info.dependencies[0];
  void *ignored = nullptr;
  Status ended = capture_end(stream, &ignored);
  return status != kSuccess ? status : ended;
}

// CUDA's convention for lists: without an array it gives the count; with one it fills up to *count, clears the rest
// and says how many there are. `list(array, capacity)` returns the count.
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

inline const char *node_type_name(int type) {
  static const char *const kNames[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT", "EVENT_RECORD"};
  return type >= 0 && type < 8 ? kNames[type] : "OTHER";
}

inline Status write_dot(void *graph, const char *path) {
  std::FILE *file = std::fopen(path, "we");
  if (file == nullptr)
    return 304; // operating system
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
  return std::fclose(file) == 0 ? kSuccess : 304;
}

} // namespace eidolon
