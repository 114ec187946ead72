// Driver: the tables that a runtime asks for by UUID (cuGetExportTable), which NVIDIA does not document.
//
// A library asks for them that was linked with the static CUDA runtime, which reaches only the driver. The static
// runtime of CUDA 13.0 was watched: it looks up some 280 documented functions through cuGetProcAddress, all of which
// are here, and then asks for five tables: its own interface to the driver (6BD5FB6C), hooks and storage for tools
// (A094798C, 42D85A81), storage per context (C693336E), context checks (263E8860), and at last D4082055, by which the
// driver proves with a keyed hash that it is NVIDIA's. That proof is not imitated here, so a static runtime cannot
// work. When it asks for its first table, one line says so and names the library. The remedy is to build the library
// with the shared runtime (nvcc's -cudart shared), which the shim stands in for.
#include "cuda_driver.h"

#include <dlfcn.h>

#include <cstring>

using namespace eidolon;
using namespace eidolon::driver;

// The first table that every runtime since CUDA 12 asks for. The runtime goes on without it.
static constexpr unsigned char kOptionalTable[16] = {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e,
                                                     0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9};

extern "C" CUresult cuGetExportTable(const void **out, const CUuuid *id) {
  if (out == nullptr || id == nullptr)
    return result(kInvalidValue);
  *out = nullptr;
  if (!config().active)
    return result(kNotInitialized);
  if (std::memcmp(id->bytes, kOptionalTable, sizeof kOptionalTable) == 0)
    return result(kNotFound);
  Dl_info caller;
  const bool found = dladdr(__builtin_return_address(0), &caller) != 0 && caller.dli_fname != nullptr;
  warn_once("%s holds a static CUDA runtime, which works with NVIDIA's own driver only: its CUDA calls will fail with "
            "'operation not supported'. Build it with the shared runtime (nvcc -cudart shared).",
            found ? caller.dli_fname : "a library");
  unmodelled("cuda", "cuGetExportTable");
  return result(kNotSupported);
}
