// NCCL: registered buffers, windows, and memory that it allocates.
#include "nccl_internal.h"

#include <mutex>

using namespace eidolon;
using namespace eidolon::nccl;

namespace {
ncclResult_t enroll(ncclComm *comm, void *buffer, size_t bytes, void **out) {
  if (!usable(comm) || buffer == nullptr || bytes == 0 || out == nullptr)
    return fail(ncclInvalidArgument, "%zu bytes at %p cannot be registered", bytes, buffer);
  if (pointer_info(buffer).type != PointerInfo::kDevice)
    return fail(ncclInvalidArgument, "%p is not device memory", buffer);
  *out = new Registration{buffer};
  std::lock_guard hold(comm->mutex);
  comm->buffers.emplace(*out, buffer);
  return ncclSuccess;
}
ncclResult_t strike(ncclComm *comm, void *handle) {
  if (!valid(comm))
    return ncclInvalidArgument;
  if (handle == nullptr)
    return ncclSuccess;
  std::lock_guard hold(comm->mutex);
  if (comm->buffers.erase(handle) == 0)
    return fail(ncclInvalidArgument, "nothing is registered under the handle");
  delete static_cast<Registration *>(handle);
  return ncclSuccess;
}
} // namespace

EID_NCCL ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle) {
  return enroll(comm, buffer, bytes, handle);
}
EID_NCCL_ALIAS(ncclCommRegister);
EID_NCCL ncclCommDeregister(const ncclComm_t comm, void *handle) { return strike(comm, handle); }
EID_NCCL_ALIAS(ncclCommDeregister);
#if NCCL_VERSION_CODE >= 22700
EID_NCCL ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags) {
  if (flags & ~(NCCL_WIN_COLL_SYMMETRIC | 2)) // 2: NCCL_WIN_STRICT_ORDERING, since 2.30
    return fail(ncclInvalidArgument, "the flags %d of the window are not known", flags);
  return enroll(comm, buffer, bytes, reinterpret_cast<void **>(window));
}
EID_NCCL_ALIAS(ncclCommWindowRegister);
EID_NCCL ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) { return strike(comm, window); }
EID_NCCL_ALIAS(ncclCommWindowDeregister);
#if NCCL_VERSION_CODE < 23000 // declared since 2.30
EID_NCCL ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **out);
#endif
EID_NCCL ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **out) {
  if (!valid(comm) || window == nullptr || out == nullptr)
    return ncclInvalidArgument;
  std::lock_guard hold(comm->mutex);
  const auto found = comm->buffers.find(window);
  if (found == comm->buffers.end())
    return fail(ncclInvalidArgument, "this is no window of the communicator");
  *out = found->second;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclWinGetUserPtr);
#endif

EID_NCCL ncclMemAlloc(void **out, size_t bytes) {
  if (out == nullptr || bytes == 0)
    return ncclInvalidArgument;
  if (context() != kSuccess)
    return ncclUnhandledCudaError;
  const size_t granules = (bytes + kVmmGranularity - 1) / kVmmGranularity; // it maps whole physical granules
  return result_of(mem_alloc(current_device(), granules * kVmmGranularity, out));
}
EID_NCCL_ALIAS(ncclMemAlloc);
EID_NCCL ncclMemFree(void *pointer) { return pointer == nullptr ? ncclSuccess : result_of(mem_free(pointer)); }
EID_NCCL_ALIAS(ncclMemFree);
