// Stream capture, graphs and user objects.
#pragma once
#include "streams.h"

namespace eidolon {

// Numbers as in cudaStreamCaptureStatus.
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };
// Numbers as in cudaStreamCaptureMode.
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
// Numbers as in cudaGraphNodeType.
enum class NodeType : int { kKernel = 0, kCopy = 1, kSet = 2, kHost = 3, kEmpty = 5, kWaitEvent = 6, kEventRecord = 7 };

struct CaptureInfo {
  CaptureStatus status;
  uint64_t id;
  void *graph;
  void **dependencies; // nodes the next captured one would depend on; valid until the next call on the stream
  size_t count;
};
EID_API Status capture_begin(Stream *stream, CaptureMode mode, void *into_graph);
EID_API Status capture_end(Stream *stream, void **graph);
EID_API CaptureInfo capture_info(Stream *stream);
// True from the begin of a capture to its end, even if it was spoiled.
inline bool captures(Stream *stream) { return capture_info(stream).status != CaptureStatus::kNone; }
EID_API Status capture_update_dependencies(Stream *stream, void *const *nodes, size_t n, bool replace);
// Sets the calling thread's mode and returns the one before.
EID_API CaptureMode capture_exchange_mode(CaptureMode mode);
// True while any stream of the process captures.
EID_API bool capturing();
// True if a call that is unsafe during capture (cudaMalloc, synchronize, ...) must fail: sets the capture invalid.
EID_API bool capture_forbids_unsafe_call();

EID_API Status graph_create(void **graph);
EID_API Status graph_destroy(void *graph);
EID_API Status graph_clone(void *graph, void **out);
EID_API size_t graph_nodes(void *graph, void **nodes, size_t capacity); // returns the count
EID_API size_t graph_roots(void *graph, void **nodes, size_t capacity);
EID_API size_t graph_edges(void *graph, void **from, void **to, size_t capacity);
EID_API size_t node_dependencies(void *node, void **nodes, size_t capacity);
// Adds a node that does nothing but join its dependencies.
EID_API Status graph_add_empty(void *graph, void *const *dependencies, size_t n, void **node);
EID_API NodeType node_type(void *node);
EID_API Status graph_instantiate(void *graph, void **exec);
EID_API Status graph_exec_destroy(void *exec);
EID_API Status graph_exec_update(void *exec, void *graph);
EID_API Status graph_launch(void *exec, Stream *stream, uint16_t call);
// Objects whose destructor runs when the graph goes (cudaUserObject).
EID_API void *user_object_create(void *data, void (*destroy)(void *), unsigned references);
EID_API void user_object_release(void *object, unsigned references);
EID_API void user_object_retain(void *object, unsigned references);
EID_API void graph_retain_user_object(void *graph, void *object, unsigned references, bool move);

} // namespace eidolon
