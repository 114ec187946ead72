// What the files of device memory share: its tables, and what is done with them. `memory` allocates and accounts,
// `pools` does so in stream order, `virtual_memory` maps physical memory and other processes' at addresses.
//
// What an address belongs to is looked up, not computed from it, so that a virtual range can be mapped on any device.
#pragma once

#include <unistd.h>

#include <map>
#include <shared_mutex>
#include <string>

#include "addresses.h"
#include "internal.h"

namespace eidolon {

inline constexpr size_t kUnit = kVmmGranularity, kSmallAlign = 512;

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
  PhysicalOrigin origin;
  bool shared = false; // other processes know it, or one of them made it
  [[nodiscard]] bool imported() const { return origin.pid != getpid(); }
  [[nodiscard]] std::string name() const {
    return std::to_string(origin.pid) + "-physical" + std::to_string(origin.number);
  }
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

struct Memory {
  std::shared_mutex mutex;
  Addresses addresses;
  std::map<uintptr_t, Allocation> allocations; // by start
  std::map<uintptr_t, Slab> slabs;
  std::map<int, uintptr_t> open_slab; // per device, the one with room
  std::map<uintptr_t, size_t> reservations;
  std::map<uint64_t, Physical> physical;
  std::map<uintptr_t, HostRange> host;
  Pool pools[kMaxDevices];
  uint64_t next_id = 1, next_handle = 1;
  int64_t mine[64] = {}; // this rank's bytes per device
};
Memory *memory();

inline size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The allocation that contains an address. Caller holds the mutex.
std::map<uintptr_t, Allocation>::iterator allocation_at(Memory *m, uintptr_t at);
// Says that an allocation was refused. Caller does not hold the mutex.
void allocation_refused(int device, size_t bytes);

} // namespace eidolon
