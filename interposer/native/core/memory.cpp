// Device memory: addresses, capacity, pools, virtual memory management, pinned host memory.
//
// All emulated device addresses come from one large reservation of this process; pages are committed only where bytes
// are really written (the value layer) and given back when the memory is freed. What an address belongs to is looked
// up, not computed from it, so that a virtual range can be mapped on any device.
//
// Capacity is shared by all processes on a device through ServerPage::used_bytes. Like the driver we charge in units
// of 2 MiB: allocations under 1 MiB are carved from 2 MiB slabs, larger ones are rounded up.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <shared_mutex>

#include "internal.h"

namespace eidolon {
namespace {

constexpr size_t kUnit = kVmmGranularity, kSmall = size_t{1} << 20, kSmallAlign = 512;
constexpr size_t kChunk = size_t{32} << 20;
#ifdef __SANITIZE_THREAD__ // ThreadSanitizer shadows every byte that the program could map
constexpr size_t kArenaBytes = size_t{128} << 30;
#else
constexpr size_t kArenaBytes = size_t{16} << 40;
#endif

struct Allocation {
  size_t bytes;   // as asked for
  size_t charged; // device memory taken; 0 inside a slab, a mapping or an alias
  int device;
  enum { kPlain, kSlab, kMapping, kAlias } kind;
  uint64_t id;
  uint64_t handle = 0; // of a mapping
  uintptr_t slab = 0;
};
struct Slab {
  int device;
  size_t cursor = 0, live = 0;
};
struct Physical {
  size_t bytes;
  int device;
  int references;
};
struct HostRange {
  size_t bytes;
  bool registered;
  bool managed = false;
};
struct Pool {
  PoolInfo info{};
  std::multimap<size_t, uintptr_t> cached; // freed, still reserved
};

struct Chunks {                      // of one device
  std::map<uintptr_t, size_t> sizes; // by start
  std::map<uintptr_t, size_t> holes; // free ranges within them
};

struct Memory {
  std::shared_mutex mutex;
  Chunks chunks[64];
  uintptr_t arena = 0;
  std::map<uintptr_t, size_t> holes;           // free address ranges
  std::map<uintptr_t, Allocation> allocations; // by start
  std::map<uintptr_t, Slab> slabs;
  std::map<int, uintptr_t> open_slab; // per device, the one with room
  std::map<uintptr_t, size_t> reservations;
  std::map<uint64_t, Physical> physical;
  std::map<uintptr_t, HostRange> host;
  Pool pools[64];
  uint64_t next_id = 1, next_handle = 1;
  int64_t mine[64] = {}; // this rank's bytes per device
};
Memory *memory() {
  static Memory *all = new Memory;
  return all;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Null core: nobody shares the page, so the process keeps its own sums.
std::atomic<int64_t> *used_word(int device) { // by ordinal within the server
  static std::atomic<int64_t> local[64];
  ServerPage *page = server_page();
  return page != nullptr ? &page->used_bytes[device] : &local[device];
}

void reserve_arena(Memory *m) {
  if (m->arena != 0)
    return;
  void *at = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    fatal("cannot reserve %zu GiB of address space for device memory (vm.overcommit_memory=2 or ulimit -v?)",
          kArenaBytes >> 30);
  madvise(at, kArenaBytes, MADV_DONTDUMP);
  madvise(at, kArenaBytes, MADV_NOHUGEPAGE);
  m->arena = round_up(reinterpret_cast<uintptr_t>(at), kUnit);
  m->holes[m->arena] = kArenaBytes - kUnit;
}

// Adds a free range to a set of them, joined with its neighbours.
void add_hole(std::map<uintptr_t, size_t> &holes, uintptr_t start, size_t bytes) {
  auto next = holes.lower_bound(start);
  if (next != holes.end() && next->first == start + bytes) {
    bytes += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == start) {
      before->second += bytes;
      return;
    }
  }
  holes[start] = bytes;
}

// Takes `bytes` from the highest hole that fits; 0 if none does.
uintptr_t take_addresses(Memory *m, size_t bytes, size_t alignment) {
  reserve_arena(m);
  for (auto hole = m->holes.end(); hole != m->holes.begin();) {
    --hole;
    const uintptr_t begin = hole->first, end = begin + hole->second;
    if (hole->second < bytes)
      continue;
    const uintptr_t start = (end - bytes) / alignment * alignment;
    if (start < begin)
      continue;
    m->holes.erase(hole);
    if (start > begin)
      m->holes[begin] = start - begin;
    if (start + bytes < end)
      m->holes[start + bytes] = end - start - bytes;
    return start;
  }
  return 0;
}

void give_addresses(Memory *m, uintptr_t start, size_t bytes) { add_hole(m->holes, start, bytes); }

// Where the driver puts an allocation decides which of two equally large cached blocks a framework's allocator takes
// (it breaks the tie by address), hence how its blocks split and how much it reserves. Seen on an H100 (driver 580):
// address space is taken downwards in chunks, the allocation rounded up to 32 MiB; an allocation goes to the lowest
// hole of existing chunks that holds it, otherwise to the start of a new chunk.
uintptr_t take_device(Memory *m, int device, size_t bytes) {
  Chunks &chunks = m->chunks[device];
  for (auto hole = chunks.holes.begin(); hole != chunks.holes.end(); ++hole) {
    if (hole->second < bytes)
      continue;
    const uintptr_t start = hole->first;
    const size_t rest = hole->second - bytes;
    chunks.holes.erase(hole);
    if (rest > 0)
      chunks.holes[start + bytes] = rest;
    return start;
  }
  const size_t size = round_up(bytes, kChunk);
  const uintptr_t start = take_addresses(m, size, kChunk);
  if (start == 0)
    fatal("device addresses are exhausted (%zu GiB)", kArenaBytes >> 30);
  chunks.sizes[start] = size;
  if (size > bytes)
    chunks.holes[start + bytes] = size - bytes;
  return start;
}

void give_device(Memory *m, int device, uintptr_t start, size_t bytes) {
  Chunks &chunks = m->chunks[device];
  const auto chunk = std::prev(chunks.sizes.upper_bound(start));
  // Holes of neighbouring chunks do not join: nothing spans two chunks.
  std::map<uintptr_t, size_t> own(chunks.holes.lower_bound(chunk->first),
                                  chunks.holes.lower_bound(chunk->first + chunk->second));
  chunks.holes.erase(chunks.holes.lower_bound(chunk->first), chunks.holes.lower_bound(chunk->first + chunk->second));
  add_hole(own, start, bytes);
  if (own.begin()->second == chunk->second) {
    give_addresses(m, chunk->first, chunk->second);
    chunks.sizes.erase(chunk);
  } else {
    chunks.holes.merge(own);
  }
}

// The allocation that contains an address. Caller holds the mutex.
std::map<uintptr_t, Allocation>::iterator find(Memory *m, uintptr_t at) {
  auto after = m->allocations.upper_bound(at);
  if (after == m->allocations.begin())
    return m->allocations.end();
  auto found = std::prev(after);
  return at < found->first + std::max<size_t>(found->second.bytes, 1) ? found : m->allocations.end();
}

Status take_small(Memory *m, int device, size_t bytes, uintptr_t *out) {
  size_t need = round_up(std::max<size_t>(bytes, 1), kSmallAlign);
  uintptr_t at = m->open_slab[device];
  if (at == 0 || m->slabs[at].cursor + need > kUnit) {
    if (Status s = account(device, kUnit, "malloc"); s != kSuccess)
      return s;
    at = take_device(m, device, kUnit);
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

Status account(int device, int64_t bytes, const char *what) {
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
    emit({.kind = Kind::kMemory, .sig = signature("memory", what), .value = static_cast<uint64_t>(mine)});
    if (before_device != device)
      set_current_device(before_device);
  }
  return kSuccess;
}

void release_accounts() {
  for (int d = 0; d < config().devices; ++d) {
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
  auto found = find(m, reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end())
    return false;
  *begin = found->first;
  *end = found->first + found->second.bytes;
  return true;
}

bool is_device(const void *pointer) {
  uintptr_t at = reinterpret_cast<uintptr_t>(pointer), arena = memory()->arena;
  return arena != 0 && at >= arena && at < arena + kArenaBytes - kUnit;
}

static void refused(int device, size_t bytes) {
  int before = current_device();
  set_current_device(device);
  emit({.kind = Kind::kOutOfMemory, .value = bytes});
  set_current_device(before);
}

Status mem_alloc(int device, size_t bytes, void **out) {
  *out = nullptr;
  if (device < 0 || device >= config().devices)
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
      at = take_device(m, device, charged);
      m->allocations[at] = {bytes, charged, device, Allocation::kPlain, m->next_id++};
    }
  }
  hold.unlock();
  if (status != kSuccess)
    refused(device, bytes);
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
      give_device(m, device, a.slab, kUnit);
      if (m->open_slab[device] == a.slab)
        m->open_slab[device] = 0;
      m->slabs.erase(a.slab);
    }
  } else if (a.kind == Allocation::kPlain) {
    account(device, -static_cast<int64_t>(a.charged), "malloc");
    give_device(m, device, at, a.charged);
  } else {
    give_addresses(m, at, round_up(a.bytes, kUnit));
  }
  return kSuccess;
}

// Stream-ordered pools: frees go to the pool's cache; what exceeds the release threshold goes back at a synchronise
// in CUDA, here at the free itself (the threshold that frameworks set is "never").
Status mem_alloc_async(int device, size_t bytes, Stream *, void **out) {
  *out = nullptr;
  if (Status s = ensure_context(device); s != kSuccess)
    return s;
  if (bytes == 0)
    return kSuccess;
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  Pool &pool = m->pools[device];
  size_t size = round_up(bytes, kSmallAlign), charged = round_up(size, kUnit);
  uintptr_t at = 0;
  auto cached = pool.cached.lower_bound(charged);
  if (cached != pool.cached.end() && cached->first == charged) {
    at = cached->second;
    pool.cached.erase(cached);
  } else {
    if (account(device, static_cast<int64_t>(charged), "pool") != kSuccess) {
      hold.unlock();
      refused(device, bytes);
      return kOutOfMemory;
    }
    at = take_device(m, device, charged);
    pool.info.reserved_current += charged;
    pool.info.reserved_high = std::max(pool.info.reserved_high, pool.info.reserved_current);
  }
  pool.info.used_current += size;
  pool.info.used_high = std::max(pool.info.used_high, pool.info.used_current);
  m->allocations[at] = {bytes, charged, device, Allocation::kPlain, m->next_id++};
  *out = reinterpret_cast<void *>(at);
  return kSuccess;
}

Status mem_free_async(void *pointer, Stream *) {
  if (pointer == nullptr)
    return kSuccess;
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  auto found = m->allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end() || found->second.kind != Allocation::kPlain)
    return kInvalidValue;
  Allocation a = found->second;
  uintptr_t at = found->first;
  m->allocations.erase(found);
  value_forget(at, at + a.bytes);
  Pool &pool = m->pools[a.device];
  pool.info.used_current -= std::min<uint64_t>(pool.info.used_current, round_up(a.bytes, kSmallAlign));
  if (pool.info.reserved_current - pool.info.used_current <= pool.info.release_threshold) {
    pool.cached.emplace(a.charged, at);
  } else {
    pool.info.reserved_current -= std::min<uint64_t>(pool.info.reserved_current, a.charged);
    account(a.device, -static_cast<int64_t>(a.charged), "pool");
    give_device(m, a.device, at, a.charged);
  }
  return kSuccess;
}

PoolInfo pool_info(int device) {
  std::shared_lock hold(memory()->mutex);
  return memory()->pools[device].info;
}
void pool_set_threshold(int device, uint64_t bytes) {
  std::unique_lock hold(memory()->mutex);
  memory()->pools[device].info.release_threshold = bytes;
}
void pool_reset_high(int device, bool used, bool reserved) {
  std::unique_lock hold(memory()->mutex);
  PoolInfo &info = memory()->pools[device].info;
  if (used)
    info.used_high = info.used_current;
  if (reserved)
    info.reserved_high = info.reserved_current;
}
void pool_trim(int device, size_t keep_bytes) {
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  Pool &pool = m->pools[device];
  while (!pool.cached.empty() && pool.info.reserved_current > keep_bytes) {
    auto last = std::prev(pool.cached.end());
    pool.info.reserved_current -= last->first;
    account(device, -static_cast<int64_t>(last->first), "pool");
    give_device(m, device, last->second, last->first);
    pool.cached.erase(last);
  }
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
  if (device < 0 || device >= config().devices)
    return kInvalidDevice;
  return server_memory(server_device(device), free_bytes, total_bytes);
}

size_t server_memory_used(int device) {
  for (int d = 0; d < config().devices; ++d)
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
    if (auto found = find(m, at); found != m->allocations.end())
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

// ---- virtual memory management ------------------------------------------------------------------------------------

Status vmm_reserve(size_t bytes, size_t alignment, void *, void **out) {
  if (bytes == 0 || bytes % kUnit != 0)
    return kInvalidValue;
  std::unique_lock hold(memory()->mutex);
  uintptr_t at = take_addresses(memory(), bytes, std::max(alignment, kUnit));
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
  give_addresses(memory(), reinterpret_cast<uintptr_t>(pointer), bytes);
  return kSuccess;
}

Status vmm_create(int device, size_t bytes, uint64_t *handle) {
  if (bytes == 0 || bytes % kUnit != 0)
    return kInvalidValue;
  if (Status s = ensure_context(device); s != kSuccess)
    return s;
  if (account(device, static_cast<int64_t>(bytes), "vmm") != kSuccess) {
    refused(device, bytes);
    return kOutOfMemory;
  }
  std::unique_lock hold(memory()->mutex);
  *handle = memory()->next_handle++;
  memory()->physical[*handle] = {bytes, device, 1};
  return kSuccess;
}

// Caller holds the mutex.
static void drop_reference(Memory *m, std::map<uint64_t, Physical>::iterator physical) {
  if (--physical->second.references == 0) {
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
  auto found = find(m, reinterpret_cast<uintptr_t>(pointer));
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
  if (at + bytes > inside->first + inside->second || find(m, at) != m->allocations.end())
    return kInvalidValue;
  physical->second.references++;
  m->allocations[at] = {bytes, 0, physical->second.device, Allocation::kMapping, m->next_id++, handle};
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
    auto found = find(m, at);
    if (found == m->allocations.end())
      return kInvalidValue;
    at = found->first + found->second.bytes;
  }
  return kSuccess;
}

// ---- IPC ----------------------------------------------------------------------------------------------------------

namespace {
struct IpcHandle {
  char magic[8]; // "EIDIPCM1"
  int32_t pid, device;
  uint64_t bytes, id;
};
} // namespace

Status ipc_get(void *pointer, unsigned char out[64]) {
  PointerInfo info = pointer_info(pointer);
  if (info.type != PointerInfo::kDevice)
    return kInvalidValue;
  IpcHandle handle{{'E', 'I', 'D', 'I', 'P', 'C', 'M', '1'}, getpid(), info.device, info.bytes, info.buffer_id};
  memset(out, 0, 64);
  memcpy(out, &handle, sizeof handle);
  return kSuccess;
}

Status ipc_open(const unsigned char bytes[64], void **out) {
  IpcHandle handle;
  memcpy(&handle, bytes, sizeof handle);
  if (memcmp(handle.magic, "EIDIPCM1", 8) != 0 || handle.device < 0 || handle.device >= config().devices)
    return kInvalidValue;
  if (handle.pid == getpid())
    return 201; // cudaErrorDeviceUninitialized: the driver refuses a handle of the same process
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  uintptr_t at = take_addresses(m, round_up(handle.bytes, kUnit), kUnit);
  if (at == 0)
    return kOutOfMemory;
  m->allocations[at] = {handle.bytes, 0, handle.device, Allocation::kAlias, m->next_id++};
  *out = reinterpret_cast<void *>(at);
  return kSuccess;
}

Status ipc_close(void *pointer) {
  Memory *m = memory();
  std::unique_lock hold(m->mutex);
  auto found = m->allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == m->allocations.end() || found->second.kind != Allocation::kAlias)
    return kInvalidValue;
  value_forget(found->first, found->first + found->second.bytes);
  give_addresses(m, found->first, round_up(found->second.bytes, kUnit));
  m->allocations.erase(found);
  return kSuccess;
}

} // namespace eidolon
