// Which bytes are known: a table of intervals, and what is done with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "vocabulary.h"

namespace eidolon {

struct Piece {
  uintptr_t end;
  Origin origin;
};
using Intervals = std::map<uintptr_t, Piece>; // by start; disjoint, and of different origin where they touch

struct Span {
  uintptr_t begin = 0, end = 0;
  [[nodiscard]] bool meets(const Span &other) const { return begin < other.end && other.begin < end; }
};

void mark_unknown(Intervals &known, uintptr_t begin, uintptr_t end);
void mark_known(Intervals &known, uintptr_t begin, uintptr_t end, Origin origin);

// Calls f(begin, end, piece) over a span; piece is nullptr for what is unknown.
template <class F> void pieces(const Intervals &known, Span s, F f) {
  uintptr_t at = s.begin;
  auto next = known.upper_bound(at);
  if (next != known.begin())
    --next;
  while (at < s.end) {
    while (next != known.end() && next->second.end <= at)
      ++next;
    if (next == known.end() || next->first >= s.end) {
      f(at, s.end, nullptr);
      return;
    }
    if (next->first > at)
      f(at, next->first, nullptr);
    at = std::max(at, next->first);
    uintptr_t stop = std::min(next->second.end, s.end);
    f(at, stop, &next->second);
    at = stop;
  }
}

} // namespace eidolon
