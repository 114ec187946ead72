// Virtual memory management and IPC: addresses at which something is mapped, be it physical memory of a device or what
// another process has allocated.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "memory.h"

namespace eidolon {

Status vmm_reserve(size_t bytes, size_t alignment, void *, void **out) {
  if (bytes == 0 || bytes % kUnit != 0)
    return kInvalidValue;
  std::unique_lock hold(memory()->mutex);
  uintptr_t at = memory()->addresses.take(bytes, std::max(alignment, kUnit));
  if (at == 0)
    return kOutOfMemory;
  memory()->reservations[at] = bytes;
  *out = reinterpret_cast<void *>(at);
  return kSuccess;
}

Status vmm_unreserve(void *pointer, size_t bytes) {
  std::unique_lock hold(memory()->mutex);
  auto found = memory()->reservations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == memory()->reservations.end() || found->second != bytes)
    return kInvalidValue;
  memory()->reservations.erase(found);
  memory()->addresses.give(reinterpret_cast<uintptr_t>(pointer), bytes);
  return kSuccess;
}

Status vmm_create(int device, size_t bytes, uint64_t *handle) {
  if (bytes == 0 || bytes % kUnit != 0)
    return kInvalidValue;
  if (Status s = ensure_context(device); s != kSuccess)
    return s;
  if (account(device, static_cast<int64_t>(bytes), "vmm") != kSuccess) {
    allocation_refused(device, bytes);
    return kOutOfMemory;
  }
  std::unique_lock hold(memory()->mutex);
  *handle = memory()->next_handle++;
  memory()->physical[*handle] = {bytes, device, 1, {getpid(), server_device(device), *handle}};
  return kSuccess;
}

// Caller holds the mutex.
static void drop_reference(Memory *m, std::map<uint64_t, Physical>::iterator physical) {
  if (--physical->second.references == 0) {
    if (!physical->second.imported())
      account(physical->second.device, -static_cast<int64_t>(physical->second.bytes), "vmm");
    m->physical.erase(physical);
  }
}

Status vmm_release(uint64_t handle) {
  std::unique_lock hold(memory()->mutex);
  auto found = memory()->physical.find(handle);
  if (found == memory()->physical.end())
    return kInvalidValue;
  drop_reference(memory(), found);
  return kSuccess;
}

Status vmm_retain(void *pointer, uint64_t *handle) {
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  auto found = allocation_at(m, reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end() || found->second.kind != Allocation::kMapping)
    return kInvalidValue;
  *handle = found->second.handle;
  m->physical[*handle].references++;
  return kSuccess;
}

Status vmm_map(void *pointer, size_t bytes, size_t offset, uint64_t handle) {
  Memory *m = memory();
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  std::unique_lock hold(m->mutex);
  auto physical = m->physical.find(handle);
  auto after = m->reservations.upper_bound(at);
  if (physical == m->physical.end() || offset + bytes > physical->second.bytes || after == m->reservations.begin())
    return kInvalidValue;
  auto inside = std::prev(after);
  if (at + bytes > inside->first + inside->second || allocation_at(m, at) != m->allocations.end())
    return kInvalidValue;
  physical->second.references++;
  m->allocations[at] = {bytes, 0, physical->second.device, Allocation::kMapping, m->next_id++, handle};
  if (physical->second.imported())
    value_join(physical->second.name().c_str(), pointer, bytes);
  else if (physical->second.shared)
    value_share(physical->second.name().c_str(), pointer, bytes);
  return kSuccess;
}

Status vmm_unmap(void *pointer, size_t bytes) {
  Memory *m = memory();
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer), end = at + bytes;
  std::unique_lock hold(m->mutex);
  auto first = m->allocations.find(at);
  if (first == m->allocations.end() || first->second.kind != Allocation::kMapping)
    return kInvalidValue;
  for (auto next = first; next != m->allocations.end() && next->first < end;) {
    if (next->second.kind != Allocation::kMapping || next->first + next->second.bytes > end)
      return kInvalidValue;
    value_forget(next->first, next->first + next->second.bytes);
    drop_reference(m, m->physical.find(next->second.handle));
    next = m->allocations.erase(next);
  }
  return kSuccess;
}

Status vmm_set_access(void *pointer, size_t bytes) {
  Memory *m = memory();
  std::shared_lock hold(m->mutex);
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer), end = at + bytes;
  while (at < end) { // every byte must be mapped
    auto found = allocation_at(m, at);
    if (found == m->allocations.end())
      return kInvalidValue;
    at = found->first + found->second.bytes;
  }
  return kSuccess;
}

// ---- physical memory of several processes
// -----------------------------------------------------------------------------

namespace {
// What the file of an export holds.
struct Exported {
  char magic[8]; // "EIDPHYS1"
  PhysicalOrigin origin;
  uint64_t bytes;
};
constexpr char kExportMagic[8] = {'E', 'I', 'D', 'P', 'H', 'Y', 'S', '1'};
} // namespace

Status vmm_export(uint64_t handle, int *file) {
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  auto physical = m->physical.find(handle);
  if (physical == m->physical.end())
    return kInvalidValue;
  const int made = memfd_create("eidolon-memory", MFD_CLOEXEC);
  if (made < 0)
    return kOutOfMemory;
  Exported exported{{}, physical->second.origin, physical->second.bytes};
  memcpy(exported.magic, kExportMagic, sizeof kExportMagic);
  if (write(made, &exported, sizeof exported) != sizeof exported) {
    close(made);
    return kOutOfMemory;
  }
  if (!physical->second.shared && !physical->second.imported()) {
    physical->second.shared = true;
    for (const auto &[at, allocation] : m->allocations)
      if (allocation.kind == Allocation::kMapping && allocation.handle == handle)
        value_share(physical->second.name().c_str(), reinterpret_cast<void *>(at), allocation.bytes);
  }
  *file = made;
  return kSuccess;
}

Status vmm_import(int file, uint64_t *handle, int *device) {
  Exported exported;
  if (pread(file, &exported, sizeof exported, 0) != sizeof exported ||
      memcmp(exported.magic, kExportMagic, sizeof kExportMagic) != 0)
    return kInvalidValue;
  for (*device = 0; *device < device_count(); ++*device)
    if (server_device(*device) == exported.origin.server_device)
      break;
  if (*device == device_count())
    return kInvalidDevice;
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  if (exported.origin.pid == getpid()) {
    auto own = m->physical.find(exported.origin.number);
    if (own == m->physical.end())
      return kInvalidValue;
    own->second.references++;
    *handle = own->first;
    return kSuccess;
  }
  *handle = m->next_handle++;
  m->physical[*handle] = {exported.bytes, *device, 1, exported.origin, true};
  return kSuccess;
}

PhysicalOrigin vmm_origin(const void *pointer) {
  Memory *m = memory();
  std::shared_lock hold(m->mutex);
  auto found = allocation_at(m, reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end() || found->second.kind != Allocation::kMapping)
    return {};
  return m->physical.at(found->second.handle).origin;
}

// ---- IPC ----------------------------------------------------------------------------------------------------------

namespace {
struct IpcHandle {
  char magic[8]; // "EIDIPCM1"
  int32_t pid, device;
  uint64_t bytes, id;
  [[nodiscard]] std::string name() const { return std::to_string(pid) + "-" + std::to_string(id); }
};
} // namespace

Status ipc_get(void *pointer, unsigned char out[kIpcHandleBytes]) {
  PointerInfo info = pointer_info(pointer);
  if (info.type != PointerInfo::kDevice)
    return kInvalidValue;
  IpcHandle handle{{'E', 'I', 'D', 'I', 'P', 'C', 'M', '1'}, getpid(), info.device, info.bytes, info.buffer_id};
  value_share(handle.name().c_str(), info.base, info.bytes);
  memset(out, 0, kIpcHandleBytes);
  memcpy(out, &handle, sizeof handle);
  return kSuccess;
}

Status ipc_open(const unsigned char bytes[kIpcHandleBytes], void **out) {
  IpcHandle handle;
  memcpy(&handle, bytes, sizeof handle);
  if (memcmp(handle.magic, "EIDIPCM1", 8) != 0 || handle.device < 0 || handle.device >= device_count())
    return kInvalidValue;
  if (handle.pid == getpid())
    return 201; // cudaErrorDeviceUninitialized: the driver refuses a handle of the same process
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  uintptr_t at = m->addresses.take(round_up(handle.bytes, kUnit), kUnit);
  if (at == 0)
    return kOutOfMemory;
  m->allocations[at] = {handle.bytes, 0, handle.device, Allocation::kAlias, m->next_id++};
  *out = reinterpret_cast<void *>(at);
  value_join(handle.name().c_str(), *out, handle.bytes);
  return kSuccess;
}

Status ipc_close(void *pointer) {
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  auto found = m->allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end() || found->second.kind != Allocation::kAlias)
    return kInvalidValue;
  value_forget(found->first, found->first + found->second.bytes);
  m->addresses.give(found->first, round_up(found->second.bytes, kUnit));
  m->allocations.erase(found);
  return kSuccess;
}

} // namespace eidolon
