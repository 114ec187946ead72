// Stream-ordered pools: frees go to the pool's cache; what exceeds the release threshold goes back at a synchronise
// in CUDA, here at the free itself (the threshold that frameworks set is "never").
#include <algorithm>

#include "memory.h"

namespace eidolon {

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
      allocation_refused(device, bytes);
      return kOutOfMemory;
    }
    at = m->addresses.take_on(device, charged);
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
    m->addresses.give_on(a.device, at, a.charged);
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
    m->addresses.give_on(device, last->second, last->first);
    pool.cached.erase(last);
  }
}

} // namespace eidolon
