// Memory pools, for the runtime and the driver.
//
// The core keeps one pool of stream-ordered memory per device. A pool handle is an object that names its device: the
// default pool of each, and those that were created. Created pools take from their device's one pool and answer with
// its sums. They differ from real pools only in how often memory is given back, which follows the threshold that was
// set last.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>

#include "cuda_header.h"
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
// Returns nullptr for a handle that is no pool.
inline PoolHandle *pool_of(const void *handle) {
  Pools &all = pools();
  auto *pool = static_cast<PoolHandle *>(const_cast<void *>(handle));
  for (int d = 0; d < device_count(); ++d)
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

// The attributes are those of CUmemPool_attribute. The policies of reuse are int, and all others are u64. Returns
// nullptr for another attribute.
inline std::atomic<int> *reuse_policy(PoolHandle *pool, int attribute) {
  constexpr int kFirst = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                kLast = CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  return attribute >= kFirst && attribute <= kLast ? &pool->reuse[attribute - kFirst] : nullptr;
}
inline Status pool_get(PoolHandle *pool, int attribute, void *value) {
  if (const std::atomic<int> *policy = reuse_policy(pool, attribute)) {
    int flag = policy->load();
    std::memcpy(value, &flag, sizeof flag);
    return kSuccess;
  }
  const PoolInfo info = pool_info(pool->device);
  uint64_t number;
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    number = info.release_threshold;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    number = info.reserved_current;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    number = info.reserved_high;
    break;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    number = info.used_current;
    break;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    number = info.used_high;
    break;
  default:
    return kInvalidValue;
  }
  std::memcpy(value, &number, sizeof number);
  return kSuccess;
}
inline Status pool_set(PoolHandle *pool, int attribute, const void *value) {
  if (std::atomic<int> *policy = reuse_policy(pool, attribute)) {
    int flag;
    std::memcpy(&flag, value, sizeof flag);
    policy->store(flag != 0);
    return kSuccess;
  }
  uint64_t number;
  std::memcpy(&number, value, sizeof number);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool_set_threshold(pool->device, number);
    return kSuccess;
  }
  const bool used = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH,
             reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
  if ((used || reserved) && number == 0) { // a peak can only be reset
    pool_reset_high(pool->device, used, reserved);
    return kSuccess;
  }
  return kInvalidValue;
}

} // namespace eidolon
