#include "addresses.h"

#include <sys/mman.h>

#include <iterator>

#include "memory.h"

namespace eidolon {
namespace {

constexpr size_t kChunk = size_t{32} << 20;
#ifdef __SANITIZE_THREAD__ // ThreadSanitizer shadows every byte that the program could map
constexpr size_t kArenaBytes = size_t{128} << 30;
#else
constexpr size_t kArenaBytes = size_t{16} << 40;
#endif

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

} // namespace

void Addresses::reserve() {
  if (arena_ != 0)
    return;
  void *at = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    fatal("cannot reserve %zu GiB of address space for device memory (vm.overcommit_memory=2 or ulimit -v?)",
          kArenaBytes >> 30);
  madvise(at, kArenaBytes, MADV_DONTDUMP);
  madvise(at, kArenaBytes, MADV_NOHUGEPAGE);
  arena_ = round_up(reinterpret_cast<uintptr_t>(at), kUnit);
  holes_[arena_] = kArenaBytes - kUnit;
}

uintptr_t Addresses::take(size_t bytes, size_t alignment) {
  reserve();
  for (auto hole = holes_.end(); hole != holes_.begin();) {
    --hole;
    const uintptr_t begin = hole->first, end = begin + hole->second;
    if (hole->second < bytes)
      continue;
    const uintptr_t start = (end - bytes) / alignment * alignment;
    if (start < begin)
      continue;
    holes_.erase(hole);
    if (start > begin)
      holes_[begin] = start - begin;
    if (start + bytes < end)
      holes_[start + bytes] = end - start - bytes;
    return start;
  }
  return 0;
}

void Addresses::give(uintptr_t start, size_t bytes) { add_hole(holes_, start, bytes); }

// Where the driver puts an allocation decides which of two equally large cached blocks a framework's allocator takes
// (it breaks the tie by address), hence how its blocks split and how much it reserves. Seen on an H100 (driver 580):
// address space is taken downwards in chunks, the allocation rounded up to 32 MiB; an allocation goes to the lowest
// hole of existing chunks that holds it, otherwise to the start of a new chunk.
uintptr_t Addresses::take_on(int device, size_t bytes) {
  Chunks &chunks = chunks_[device];
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
  const uintptr_t start = take(size, kChunk);
  if (start == 0)
    fatal("device addresses are exhausted (%zu GiB)", kArenaBytes >> 30);
  chunks.sizes[start] = size;
  if (size > bytes)
    chunks.holes[start + bytes] = size - bytes;
  return start;
}

void Addresses::give_on(int device, uintptr_t start, size_t bytes) {
  Chunks &chunks = chunks_[device];
  const auto chunk = std::prev(chunks.sizes.upper_bound(start));
  // Holes of neighbouring chunks do not join: nothing spans two chunks.
  std::map<uintptr_t, size_t> own(chunks.holes.lower_bound(chunk->first),
                                  chunks.holes.lower_bound(chunk->first + chunk->second));
  chunks.holes.erase(chunks.holes.lower_bound(chunk->first), chunks.holes.lower_bound(chunk->first + chunk->second));
  add_hole(own, start, bytes);
  if (own.begin()->second == chunk->second) {
    give(chunk->first, chunk->second);
    chunks.sizes.erase(chunk);
  } else {
    chunks.holes.merge(own);
  }
}

bool Addresses::contains(uintptr_t at) const {
  return arena_ != 0 && at >= arena_ && at < arena_ + kArenaBytes - kUnit;
}

} // namespace eidolon
