// Private to the driver library: one launch of a kernel.
#pragma once
#include "cuda_driver.h"

namespace eidolon::driver {

// Launches a kernel with `arguments` or with `extra` (one packed buffer), as cuLaunchKernel takes them.
Status launch(const void *kernel, Dim3 grid, Dim3 block, size_t shared_bytes, CUstream stream, void **arguments,
              void **extra, uint16_t call, Dim3 cluster = {1, 1, 1}, bool cooperative = false);

} // namespace eidolon::driver
