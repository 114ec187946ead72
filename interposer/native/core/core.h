// The shim's core: what every fake NVIDIA library builds on.
//
// A library file (libs/*.cpp) is a thin translation: it checks its arguments, calls the core, maps the status. All
// state (devices, memory, streams, events, graphs, the ring) lives behind these headers, in libeidolon.so. Only plain
// types cross them, so no C++ runtime symbol is shared between preloaded objects.
#pragma once
#include "api/config.h"  // server.conf
#include "api/graphs.h"  // capture and graphs
#include "api/hash.h"    // numbers of texts
#include "api/hook.h"    // C functions for the Python hook
#include "api/memory.h"  // device and host memory, pools
#include "api/rank.h"    // this process as a rank
#include "api/records.h" // records of calls and their signatures
#include "api/status.h"  // status codes, errors that end the process
#include "api/streams.h" // streams and events
#include "api/values.h"  // which device bytes are known
#include "api/work.h"    // kernels, copies, sets, collectives
