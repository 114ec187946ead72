// NCCL's ways into another rank's memory. The kernels that would go them are not there, so each call fails with one
// error that says so (ncclGetLastError), and is counted. PyTorch 2.14 calls them for symmetric memory only.
#include "nccl_internal.h"

namespace eidolon::nccl {
namespace {

// Said on the standard error too: torch shows its own text only.
ncclResult_t refuse(const char *function) {
  constexpr const char *kText = "%s: access to the memory of another rank is not emulated; use collectives, or sends";
  unmodelled("nccl", function);
  warn_once(kText, function);
  return fail(ncclInvalidUsage, kText, function);
}

} // namespace
} // namespace eidolon::nccl

using namespace eidolon::nccl;

// Arguments are not looked at, so none are declared; the headers that do are newer than the oldest supported one.
#define REFUSED_AS(name)                                                                                               \
  extern "C" EID_API ncclResult_t one_sided_##name() asm(#name);                                                       \
  ncclResult_t one_sided_##name() { return refuse(#name); }
#define REFUSED(name) REFUSED_AS(name) REFUSED_AS(p##name)

REFUSED(ncclPutSignal)
REFUSED(ncclSignal)
REFUSED(ncclWaitSignal)
REFUSED(ncclDevCommCreate)
REFUSED(ncclDevCommDestroy)
REFUSED(ncclGetPeerDevicePointer)
REFUSED(ncclGetLsaDevicePointer)
REFUSED(ncclGetLsaMultimemDevicePointer)
REFUSED(ncclGetMultimemDevicePointer)
