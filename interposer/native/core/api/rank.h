// This process as a rank, and its calling thread: contexts, the current device, the current operator.
#pragma once
#include "status.h"

namespace eidolon {

// Makes this process a rank (its ring, its context on `device`) if it is not one yet. Called by whatever creates a
// CUDA context. After fork() in a rank the child gets kNotInitialized from it (CUDA's own rule).
EID_API Status ensure_context(int device);
EID_API bool is_rank();
EID_API bool has_context(int device); // this process created a context on it

EID_API int current_device();                  // of the calling thread
EID_API Status set_current_device(int device); // does not create a context

// The current operator of this thread (set by the torch plugin), 0 if none; part of kernel signatures.
EID_API void set_operator(uint32_t sig);
EID_API uint32_t current_operator();

// An operator of the framework, known by an address of its own, began on this thread (told by the torch plugin): it
// takes host time.
EID_API void count_operator(const void *op);

} // namespace eidolon
