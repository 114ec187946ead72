#include "intervals.h"

namespace eidolon {

void mark_unknown(Intervals &known, uintptr_t begin, uintptr_t end) {
  auto next = known.lower_bound(begin);
  if (next != known.begin()) {
    auto before = std::prev(next);
    if (before->second.end > begin) {
      Piece tail = before->second;
      before->second.end = begin;
      if (tail.end > end)
        next = known.emplace(end, tail).first;
    }
  }
  while (next != known.end() && next->first < end) {
    Piece tail = next->second;
    next = known.erase(next);
    if (tail.end > end)
      known.emplace(end, tail);
  }
}

void mark_known(Intervals &known, uintptr_t begin, uintptr_t end, Origin origin) {
  mark_unknown(known, begin, end);
  auto next = known.lower_bound(begin);
  if (next != known.end() && next->first == end && next->second.origin == origin) {
    end = next->second.end;
    next = known.erase(next);
  }
  if (next != known.begin()) {
    auto before = std::prev(next);
    if (before->second.end == begin && before->second.origin == origin) {
      before->second.end = end;
      return;
    }
  }
  known.emplace_hint(next, begin, Piece{end, origin});
}

} // namespace eidolon
