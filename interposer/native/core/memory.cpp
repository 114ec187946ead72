// Device memory: capacity and its accounts, allocations, what a pointer is; pinned host memory.
//
// Capacity is shared by all processes on a device through ServerPage::used_bytes. Like the driver we charge in units
// of 2 MiB: allocations under 1 MiB are carved from 2 MiB slabs, larger ones are rounded up.
#include "memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>

namespace eidolon {
namespace {

constexpr size_t kSmall = size_t{1} << 20;

// Null core: nobody shares the page, so the process keeps its own sums.
std::atomic<int64_t> *used_word(int device) { // by ordinal within the server
  static std::atomic<int64_t> local[64];
  ServerPage *page = server_page();
  return page != nullptr ? &page->used_bytes[device] : &local[device];
}

Status take_small(Memory *m, int device, size_t bytes, uintptr_t *out) {
  size_t need = round_up(std::max<size_t>(bytes, 1), kSmallAlign);
  uintptr_t at = m->open_slab[device];
  if (at == 0 || m->slabs[at].cursor + need > kUnit) {
    if (Status s = account(device, kUnit, "malloc"); s != kSuccess)
      return s;
    at = m->addresses.take_on(device, kUnit);
    m->slabs[at] = Slab{device};
    m->open_slab[device] = at;
  }
  Slab &slab = m->slabs[at];
  *out = at + slab.cursor;
  slab.cursor += need;
  slab.live++;
  m->allocations[*out] = {bytes, 0, device, Allocation::kSlab, m->next_id++, 0, at};
  return kSuccess;
}

} // namespace

Memory *memory() {
  static Memory *all = new Memory;
  return all;
}

std::map<uintptr_t, Allocation>::iterator allocation_at(Memory *m, uintptr_t at) {
  auto after = m->allocations.upper_bound(at);
  if (after == m->allocations.begin())
    return m->allocations.end();
  auto found = std::prev(after);
  return at < found->first + std::max<size_t>(found->second.bytes, 1) ? found : m->allocations.end();
}

Status account(int device, int64_t bytes, signatures::MemoryName what) {
  std::atomic<int64_t> *used = used_word(server_device(device));
  int64_t before = used->fetch_add(bytes);
  if (bytes > 0 && before + bytes > static_cast<int64_t>(config().gpu.memory_bytes)) {
    used->fetch_sub(bytes);
    return kOutOfMemory;
  }
  Memory *m = memory();
  int64_t mine = __atomic_add_fetch(&m->mine[device], bytes, __ATOMIC_RELAXED);
  if (RingHeader *h = ring_header()) {
    h->used_bytes[server_device(device)].store(mine);
    int before_device = current_device();
    if (before_device != device)
      set_current_device(device); // the record names the device through the calling thread
    emit({.kind = Kind::kMemory, .sig = signature(what, signatures::Memory{}), .value = static_cast<uint64_t>(mine)});
    if (before_device != device)
      set_current_device(before_device);
  }
  return kSuccess;
}

void release_accounts() {
  for (int d = 0; d < device_count(); ++d) {
    int64_t mine = __atomic_exchange_n(&memory()->mine[d], 0, __ATOMIC_RELAXED);
    if (mine == 0)
      continue;
    used_word(server_device(d))->fetch_sub(mine);
    if (RingHeader *h = ring_header())
      h->used_bytes[server_device(d)].store(0);
  }
}

bool memory_range_of(const void *pointer, uintptr_t *begin, uintptr_t *end) {
  Memory *m = memory();
  std::shared_lock hold(m->mutex);
  auto found = allocation_at(m, reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end())
    return false;
  *begin = found->first;
  *end = found->first + found->second.bytes;
  return true;
}

bool is_device(const void *pointer) { return memory()->addresses.contains(reinterpret_cast<uintptr_t>(pointer)); }

void allocation_refused(int device, size_t bytes) {
  int before = current_device();
  set_current_device(device);
  emit({.kind = Kind::kOutOfMemory, .value = bytes});
  set_current_device(before);
}

Status mem_alloc(int device, size_t bytes, void **out) {
  *out = nullptr;
  if (device < 0 || device >= device_count())
    return kInvalidDevice;
  if (Status s = ensure_context(device); s != kSuccess)
    return s;
  if (bytes == 0)
    return kSuccess;
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  uintptr_t at = 0;
  Status status = kSuccess;
  if (bytes < kSmall) {
    status = take_small(m, device, bytes, &at);
  } else {
    size_t charged = round_up(bytes, kUnit);
    status = account(device, static_cast<int64_t>(charged), "malloc");
    if (status == kSuccess) {
      at = m->addresses.take_on(device, charged);
      m->allocations[at] = {bytes, charged, device, Allocation::kPlain, m->next_id++};
    }
  }
  hold.unlock();
  if (status != kSuccess)
    allocation_refused(device, bytes);
  *out = reinterpret_cast<void *>(at);
  return status;
}

Status mem_free(void *pointer) {
  if (pointer == nullptr)
    return kSuccess;
  if (PointerInfo info = pointer_info(pointer); info.type == PointerInfo::kManaged && info.base == pointer) {
    device_synchronize(current_device(), EID_CALL("cudaFree"));
    return host_free(pointer);
  }
  Memory *m = memory();
  int device;
  {
    std::shared_lock hold(m->mutex);
    auto found = m->allocations.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == m->allocations.end() || found->second.kind == Allocation::kMapping)
      return kInvalidValue;
    device = found->second.device;
  }
  device_synchronize(device, EID_CALL("cudaFree"));
  std::unique_lock hold(m->mutex);
  auto found = m->allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end())
    return kInvalidValue; // freed twice at the same time
  Allocation a = found->second;
  uintptr_t at = found->first;
  m->allocations.erase(found);
  value_forget(at, at + a.bytes);
  if (a.kind == Allocation::kSlab) {
    Slab &slab = m->slabs[a.slab];
    if (--slab.live == 0) {
      account(device, -static_cast<int64_t>(kUnit), "malloc");
      m->addresses.give_on(device, a.slab, kUnit);
      if (m->open_slab[device] == a.slab)
        m->open_slab[device] = 0;
      m->slabs.erase(a.slab);
    }
  } else if (a.kind == Allocation::kPlain) {
    account(device, -static_cast<int64_t>(a.charged), "malloc");
    m->addresses.give_on(device, at, a.charged);
  } else {
    m->addresses.give(at, round_up(a.bytes, kUnit));
  }
  return kSuccess;
}

Status server_memory(int device, size_t *free_bytes, size_t *total_bytes) {
  const size_t total = config().gpu.memory_bytes;
  const int64_t used = used_word(device)->load();
  if (total_bytes != nullptr)
    *total_bytes = total;
  if (free_bytes != nullptr)
    *free_bytes = used < static_cast<int64_t>(total) ? total - static_cast<size_t>(std::max<int64_t>(used, 0)) : 0;
  return kSuccess;
}

Status mem_info(int device, size_t *free_bytes, size_t *total_bytes) {
  if (device < 0 || device >= device_count())
    return kInvalidDevice;
  return server_memory(server_device(device), free_bytes, total_bytes);
}

size_t server_memory_used(int device) {
  for (int d = 0; d < device_count(); ++d)
    if (server_device(d) == device)
      return static_cast<size_t>(__atomic_load_n(&memory()->mine[d], __ATOMIC_RELAXED));
  return 0;
}

// ---- pinned host memory -------------------------------------------------------------------------------------------

Status host_alloc(size_t bytes, void **out) {
  *out = nullptr;
  if (bytes == 0)
    return kSuccess;
  size_t mapped = round_up(bytes, 4096);
  void *at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return kOutOfMemory;
  std::unique_lock hold(memory()->mutex);
  memory()->host[reinterpret_cast<uintptr_t>(at)] = {bytes, false};
  *out = at;
  return kSuccess;
}

Status host_free(void *pointer) {
  if (pointer == nullptr)
    return kSuccess;
  size_t bytes;
  {
    std::unique_lock hold(memory()->mutex);
    auto found = memory()->host.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == memory()->host.end() || found->second.registered)
      return kInvalidValue;
    bytes = found->second.bytes;
    memory()->host.erase(found);
  }
  munmap(pointer, round_up(bytes, 4096));
  return kSuccess;
}

Status managed_alloc(size_t bytes, void **out) {
  Status status = host_alloc(bytes, out);
  if (status == kSuccess && *out != nullptr) {
    std::unique_lock hold(memory()->mutex);
    memory()->host[reinterpret_cast<uintptr_t>(*out)].managed = true;
  }
  return status;
}

Status host_register(void *pointer, size_t bytes) {
  if (pointer == nullptr || bytes == 0)
    return kInvalidValue;
  std::unique_lock hold(memory()->mutex);
  if (!memory()->host.emplace(reinterpret_cast<uintptr_t>(pointer), HostRange{bytes, true}).second)
    return 712; // cudaErrorHostMemoryAlreadyRegistered
  return kSuccess;
}

Status host_unregister(void *pointer) {
  std::unique_lock hold(memory()->mutex);
  auto found = memory()->host.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == memory()->host.end())
    return 713; // cudaErrorHostMemoryNotRegistered
  if (!found->second.registered)
    return kInvalidValue; // allocated, not registered
  memory()->host.erase(found);
  return kSuccess;
}

PointerInfo pointer_info(const void *pointer) {
  Memory *m = memory();
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  std::shared_lock hold(m->mutex);
  if (is_device(pointer)) {
    if (auto found = allocation_at(m, at); found != m->allocations.end())
      return {PointerInfo::kDevice, found->second.device,        reinterpret_cast<void *>(found->first),
              found->second.bytes,  const_cast<void *>(pointer), nullptr,
              found->second.id};
  } else if (auto after = m->host.upper_bound(at); after != m->host.begin()) {
    auto found = std::prev(after);
    if (at < found->first + found->second.bytes)
      return {found->second.managed ? PointerInfo::kManaged : PointerInfo::kHost,
              current_device(),
              reinterpret_cast<void *>(found->first),
              found->second.bytes,
              const_cast<void *>(pointer),
              const_cast<void *>(pointer),
              found->first};
  }
  return {PointerInfo::kUnregistered, -1, nullptr, 0, nullptr, const_cast<void *>(pointer), 0};
}

} // namespace eidolon
