// NCCL's functions for direct access to another rank's memory. The kernels that would use it do not run here. So each
// call fails with one error that says so (ncclGetLastError), and is counted. PyTorch 2.14 calls them for symmetric
// memory only.
#include "nccl_internal.h"

namespace eidolon::nccl {
namespace {

// The error goes to standard error too, because torch shows only its own text.
ncclResult_t refuse(const char *function) {
  constexpr const char *kText = "%s: access to the memory of another rank is not emulated; use collectives, or sends";
  unmodelled("nccl", function);
  warn_once(kText, function);
  return fail(ncclInvalidUsage, kText, function);
}

} // namespace
} // namespace eidolon::nccl

using namespace eidolon::nccl;

// Arguments are not looked at, so none are declared. The headers that declare them are newer than the oldest supported
// one.
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
