// NVIDIA's cuda.h. What it declares is what the driver library exports; the other libraries take the names of its
// numbers, which are those of the runtime's own enumerations as well.
#pragma once
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
