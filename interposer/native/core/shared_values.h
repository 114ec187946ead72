// What is known of memory that several processes share (CUDA IPC).
//
// Each process keeps a table of what is known at its own addresses (values.cpp). For memory that a process has exported
// there is also a file, EIDOLON_DIR/ipc/NAME, which holds the same by offset: the intervals, and their bytes. Whoever
// works on values locks the files of what it shares, takes over what another process has changed since it last did so,
// and at the end leaves there what it has changed itself. So a value is seen by all, as it is on a device, and what a
// process writes without knowing it is unknown to all. A payload that is on its way is unknown to the others until it
// has come.
//
// A process that ends has no lock any more. One that is stopped while it has the lock is waited for `kLongestWaitS`;
// from then on this process knows nothing of that memory, and shares nothing of it.
#pragma once

#include <string>
#include <vector>

#include "intervals.h"

namespace eidolon {

// What one process shares. Its caller holds the mutex of the values.
class SharedValues {
public:
  [[nodiscard]] bool empty() const { return all_.empty(); }
  // Exports what is known of [at, +bytes) under a name, unless that is done already.
  void share(const Intervals &known, const std::string &name, uintptr_t at, size_t bytes);
  // Has [at, +bytes) hold what another process has exported under a name. If there is no such thing (any more), all of
  // it is unknown.
  void join(const std::string &name, uintptr_t at, size_t bytes);
  // The memory is freed or closed: it is shared no more. What was exported is unknown to the others from now on.
  void leave(uintptr_t begin, uintptr_t end);

  // Between the two, other processes do nothing to what is shared. Pairs may lie in each other.
  void begin(Intervals &known);
  void end(const Intervals &known);
  // The table of what is known was changed there, between the two.
  void changed(uintptr_t begin, uintptr_t end);

private:
  struct Region {
    std::string name;
    uintptr_t at;
    size_t bytes;
    int file;
    bool exported;
    uint64_t seen = 0; // number of the last change that this process has taken over or made
    std::vector<Span> changes{};
    [[nodiscard]] Span span() const { return {at, at + bytes}; }
  };
  static bool take_over(Region &region, Intervals &known);
  static void publish(Region &region, const Intervals &known);
  void close(Region &region);

  std::vector<Region> all_; // by name: every process locks in the same order
  int depth_ = 0;           // of pairs of begin and end
};

} // namespace eidolon
