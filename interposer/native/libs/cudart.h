// Private to the runtime library (cudart_*.cpp): its view of CUDA's headers and the thread's last error.
#pragma once
#pragma GCC visibility push(default) // the library exports what the headers declare
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#include "library.h"
#include "per_thread.h"
#ifndef EIDOLON_EARLIER_NAMES
#include "cuda12_names.h"
#endif

// Marks entry points that the headers do not declare: the ABI of compiled CUDA code, and the forms for per-thread
// streams.
#define EID_EXPORT extern "C" __attribute__((visibility("default")))

namespace eidolon::runtime {

// Every call returns through this function. A failure becomes the thread's last error, until cudaGetLastError reads it.
cudaError_t report(Status status);

// What the shared bodies need to know of the runtime.
inline constexpr Library kRuntime{"cudart", "cuda", present, context, resolve, resolve_work};

// A registered __device__ or __constant__ variable: its address on the current device and its size.
Status symbol(const void *host_variable, void **address, size_t *bytes);

// Launches anything that the core knows by a handle or by a host function.
Status launch(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes, cudaStream_t stream,
              uint16_t call, dim3 cluster = dim3{1, 1, 1}, bool cooperative = false);

} // namespace eidolon::runtime
