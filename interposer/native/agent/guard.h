// Keeps this process alive while it reads and writes files that other processes may make shorter.
//
// Touching a mapped page that its file no longer has, or for which its file system has no memory left, raises SIGBUS.
// No check beforehand helps: the file may shrink between the check and the access. So a handler puts an empty page of
// this process's own in that place, notes it, and lets the access go on, as libwayland's server does for the pools of
// its clients. Whoever owns the mapping then finds it `lost`: what it reads there is zeros, and what it writes there
// nobody sees.
//
// A SIGBUS from anywhere else goes to the handler that was there before.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace eidolon::agent {

class Guard {
public:
  // `begin` is the start of a mapping: a multiple of the size of a page. The guard ends before the mapping does.
  Guard(uintptr_t begin, size_t bytes);
  ~Guard() { release(); }
  Guard(const Guard &) = delete;
  Guard &operator=(const Guard &) = delete;

  bool lost() const { return place_ != nullptr ? place_->lost.load() : lost_; } // a page had to be replaced
  void release();

  // A mapping that the handler knows. Places are reused, never freed: the handler may look at them at any moment.
  struct Place {
    std::atomic<uintptr_t> begin{0}; // 0: free
    std::atomic<size_t> bytes{0};
    std::atomic<bool> lost{false};
    Place *next = nullptr;
  };

private:
  Place *place_;
  bool lost_ = false;
};

} // namespace eidolon::agent
