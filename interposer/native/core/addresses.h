// Where device memory lies. All emulated device addresses come from one large reservation of this process; pages are
// committed only where bytes are really written (the value layer) and given back when the memory is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "abi.h"

namespace eidolon {

// Free and taken ranges of the reservation. The caller holds the mutex of Memory.
class Addresses {
public:
  // Takes a range from the highest hole that fits; 0 if none does.
  uintptr_t take(size_t bytes, size_t alignment);
  void give(uintptr_t start, size_t bytes);
  // Takes a range for an allocation on a device, where the driver would put it; fatal if there is none.
  uintptr_t take_on(int device, size_t bytes);
  void give_on(int device, uintptr_t start, size_t bytes);
  // Of the reservation, taken or not. Needs no mutex.
  [[nodiscard]] bool contains(uintptr_t at) const;

private:
  struct Chunks {                      // of one device
    std::map<uintptr_t, size_t> sizes; // by start
    std::map<uintptr_t, size_t> holes; // free ranges within them
  };
  void reserve();

  uintptr_t arena_ = 0;
  std::map<uintptr_t, size_t> holes_;
  Chunks chunks_[kMaxDevices];
};

} // namespace eidolon
