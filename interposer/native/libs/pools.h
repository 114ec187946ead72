// Memory pools, for both libraries.
//
// The core keeps one pool of stream-ordered memory per device. A pool handle is an object that names its device: the
// default pool of each, and those that were created. Created pools take from their device's one pool and answer with
// its sums: what differs is only how often memory is given back, by the threshold set last.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>

#include "status.h"

namespace eidolon {

struct PoolHandle {
  int device;
  bool created;
  std::atomic<int> reuse[3] = {1, 1, 1}; // follow event dependencies, opportunistic, internal dependencies
};

struct Pools {
  std::mutex mutex;
  PoolHandle defaults[kMaxDevices] = {};
  std::atomic<PoolHandle *> current[kMaxDevices] = {}; // what cudaMallocAsync uses; nullptr: the default
  std::set<const PoolHandle *> created;
};
inline Pools &pools() {
  static Pools &all = []() -> Pools & {
    auto *made = new Pools;
    for (int d = 0; d < kMaxDevices; ++d)
      made->defaults[d].device = d;
    return *made;
  }();
  return all;
}

inline PoolHandle *default_pool(int device) { return &pools().defaults[device]; }
inline PoolHandle *current_pool(int device) {
  PoolHandle *set = pools().current[device].load();
  return set != nullptr ? set : default_pool(device);
}
// nullptr for a handle that is no pool.
inline PoolHandle *pool_of(const void *handle) {
  Pools &all = pools();
  auto *pool = static_cast<PoolHandle *>(const_cast<void *>(handle));
  for (int d = 0; d < config().devices; ++d)
    if (pool == &all.defaults[d])
      return pool;
  std::lock_guard hold(all.mutex);
  return all.created.contains(pool) ? pool : nullptr;
}
inline PoolHandle *create_pool(int device) {
  auto *pool = new PoolHandle{device, true};
  Pools &all = pools();
  std::lock_guard hold(all.mutex);
  all.created.insert(pool);
  return pool;
}
inline Status destroy_pool(PoolHandle *pool) {
  if (!pool->created)
    return kInvalidValue;
  Pools &all = pools();
  if (all.current[pool->device].load() == pool)
    all.current[pool->device].store(nullptr);
  std::lock_guard hold(all.mutex);
  all.created.erase(pool);
  delete pool;
  return kSuccess;
}

// Attributes: 1 to 3 are reuse policies (int), 4 the release threshold, 5 to 8 reserved and used, now and at most
// (u64).
inline Status pool_get(PoolHandle *pool, int attribute, void *value) {
  if (attribute >= 1 && attribute <= 3) {
    int flag = pool->reuse[attribute - 1].load();
    std::memcpy(value, &flag, sizeof flag);
    return kSuccess;
  }
  PoolInfo info = pool_info(pool->device);
  const uint64_t values[] = {info.release_threshold, info.reserved_current, info.reserved_high, info.used_current,
                             info.used_high};
  if (attribute < 4 || attribute > 8)
    return kInvalidValue;
  std::memcpy(value, &values[attribute - 4], sizeof(uint64_t));
  return kSuccess;
}
inline Status pool_set(PoolHandle *pool, int attribute, const void *value) {
  if (attribute >= 1 && attribute <= 3) {
    int flag;
    std::memcpy(&flag, value, sizeof flag);
    pool->reuse[attribute - 1].store(flag != 0);
    return kSuccess;
  }
  uint64_t number;
  std::memcpy(&number, value, sizeof number);
  if (attribute == 4) {
    pool_set_threshold(pool->device, number);
    return kSuccess;
  }
  if ((attribute == 6 || attribute == 8) && number == 0) { // a peak can only be reset
    pool_reset_high(pool->device, attribute == 8, attribute == 6);
    return kSuccess;
  }
  return kInvalidValue;
}

} // namespace eidolon
