// Includes NVIDIA's cuda.h. The driver library exports what it declares. The other libraries use its names for numbers,
// which have the same values in the runtime's own enumerations.
#pragma once
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
