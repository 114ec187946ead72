// Streams and events.
#pragma once
#include "memory.h"

namespace eidolon {

struct Stream;

// Flags, numbers as in CUstream_flags and CUevent_flags.
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1, kEventDisableTiming = 2, kEventInterprocess = 4;

// Handles of the default streams beside nullptr, numbers as in CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
inline constexpr uintptr_t kLegacyHandle = 1, kPerThreadHandle = 2;
// True for a default stream, which nobody may destroy.
inline bool is_default_handle(const void *handle) { return reinterpret_cast<uintptr_t>(handle) <= kPerThreadHandle; }

// nullptr and kLegacyHandle are the legacy default stream of the current device, kPerThreadHandle is the calling
// thread's; any other handle is a Stream*. Returns nullptr for a handle that is not a live stream.
EID_API Stream *stream_of(void *handle);
EID_API void *stream_handle(Stream *stream);
EID_API Status stream_create(unsigned flags, int priority, Stream **out); // on the current device
EID_API Status stream_destroy(Stream *stream);
EID_API unsigned stream_flags(const Stream *stream);
EID_API int stream_priority(const Stream *stream);
EID_API int stream_device(const Stream *stream);
EID_API uint64_t stream_id(const Stream *stream);

EID_API Status stream_synchronize(Stream *stream, uint16_t call);
EID_API Status stream_query(Stream *stream, uint16_t call); // kSuccess or kNotReady
EID_API Status device_synchronize(int device, uint16_t call);
EID_API Status stream_wait(Stream *stream, void *event, uint16_t call);
// What `stream` gets from now on waits for what `other` has by now; costs no host time, and is no event of the
// program's.
EID_API Status stream_follow(Stream *stream, Stream *other);
// Runs `function(data)` when the work before it has ended in virtual time; later work of the stream waits for it.
EID_API Status stream_callback(Stream *stream, void (*function)(void *), void *data, uint16_t call);

EID_API Status event_create(unsigned flags, void **out);
EID_API Status event_destroy(void *event);
EID_API Status event_record(void *event, Stream *stream, uint16_t call);
// Inside a capture: a node that records the event, or waits for it, at each replay (CUDA's "external" events).
EID_API Status event_record_external(void *event, Stream *stream);
EID_API Status stream_wait_external(Stream *stream, void *event);
EID_API Status event_query(void *event, uint16_t call);
EID_API Status event_synchronize(void *event, uint16_t call);
EID_API Status event_elapsed(void *start, void *end, float *ms, uint16_t call);
EID_API Status event_ipc_get(void *event, unsigned char out[kIpcHandleBytes]);
EID_API Status event_ipc_open(const unsigned char handle[kIpcHandleBytes], void **out);

} // namespace eidolon
