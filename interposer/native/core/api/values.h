// The minimum value layer: which device bytes are known.
//
// Device bytes are known (the host or a small NCCL payload wrote them) or unknown (anything else); unknown ones read as
// 0. A known value is true, or follows from a stated default: where programs steer by a number that depends on large
// tensors, the plugin puts a default there (torch/defaults.h), and what is computed from it on is marked as well.
#pragma once
#include <span>

#include "../vocabulary.h"
#include "status.h"

namespace eidolon {

// Marks [pointer, +bytes) unknown: an operation wrote it. If the thread's next operation is captured, each replay of it
// does so again.
EID_API void value_unknown(void *pointer, size_t bytes);
// As value_unknown, for a kernel whose result is known (a fill with a number from the host) or stated.
EID_API void value_computed(void *pointer, size_t bytes, const void *data, Origin origin = Origin::kNothing);
// What the known bytes of a range follow from: kNothing, or the greatest of their defaults.
EID_API Origin value_origin(const void *pointer, size_t bytes);
// Waits, in real time only, until no payload is outstanding for these bytes.
EID_API void value_settle(const void *pointer, size_t bytes);
// Known range that contains pointer: its remaining length, 0 if unknown or still to come.
EID_API size_t value_known(const void *pointer, size_t bytes);
// What is known of a range now. kComing: some of it depends on a payload that NCCL still has to bring.
enum class Knowledge : uint8_t { kUnknown, kComing, kKnown };
EID_API Knowledge value_knowledge(const void *pointer, size_t bytes);
// Copies device bytes to host memory, zeros for unknown; returns the number of unknown bytes.
EID_API size_t value_read(const void *pointer, size_t bytes, void *out);
EID_API void value_write(void *pointer, size_t bytes, const void *data);
// The calling thread's next read of an unknown 1-, 4- or 8-byte value gets this number (an operator that reads its own
// answer from the device was computed before it ran); -1: no more.
EID_API void value_expect(int64_t value);

struct ByteRange {
  const void *pointer;
  size_t bytes;
};
// What an operation does to values, where that takes more than one write: it reads some ranges and writes others.
class ValueWork {
public:
  virtual ~ValueWork() = default;
  // Called once, in stream order with payloads, on any thread. The functions of this file then see and change bytes as
  // they are at that place in the order. It throws nothing and waits for nothing.
  virtual void run() = 0;
};
// Does the work at once, or, where a range depends on a payload, once that has come. Ranges may lie in host memory:
// work that reads it runs after work that writes it. Owns the work from then on.
EID_API void value_work(ValueWork *work, std::span<const ByteRange> reads, std::span<const ByteRange> writes);

} // namespace eidolon
