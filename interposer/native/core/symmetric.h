// Kernels of torch's symmetric memory (symmetric.cpp).
#pragma once
#include "core.h"

namespace eidolon {

// What a kernel does for its group. kNotModelled: it is one of symmetric memory that cannot be simulated.
enum class Symmetric : uint8_t {
  kNo,
  kBarrier,
  kOneShot,
  kTwoShot,
  kTwoShotInPlace,
  kScatter,
  kScatterLast,
  kNotModelled
};
EID_API Symmetric symmetric_kernel(const char *mangled_name);
// Launches one that is not kNo.
Status launch_symmetric(Symmetric what, const Launch &launch);

} // namespace eidolon
