// The runtime and the driver answer many calls alike. Their shared bodies (streams.h, graphs.h) take a Library, which
// says where the two differ. A body checks its arguments and returns a Status, and the export turns that into its
// result.
#pragma once
#include "status.h"

// A handle is one type under two names: cudaStream_t is CUstream, and so on.
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphNode_st;
struct CUgraphExec_st;
struct CUuserObject_st;

namespace eidolon {

struct Library {
  const char *name;                                  // what `unmodelled` counts its calls under
  const char *prefix;                                // of its functions' names
  Status (*present)();                               // before anything that needs a device
  Status (*context)();                               // before anything that needs a context
  Status (*stream)(void *handle, Stream **out);      // the same, and the stream that a call is about
  Status (*work_stream)(void *handle, Stream **out); // the same for work: a spoiled capture takes none
};

} // namespace eidolon
