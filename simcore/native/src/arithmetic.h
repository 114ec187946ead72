// Numbers of the engine: every quantity is an integer.
//
// "Equal to the bit" needs sums that do not depend on their order and progress that does not depend on how often it was
// looked at. Both hold for integers and for no floating-point type:
//
// * Time is int64 nanoseconds. Whatever happens, happens at an integer nanosecond.
// * A level (rate per unit of weight) is an integer number of 2^-16 bytes/s. A link leaves unused what it cannot divide
//   evenly. That is less than one 2^-16 byte/s per flow on it, which is 1e-13 of a level in practice.
// * A volume is rate times time, an integer number of 2^-16 * 1e-9 bytes in 128 bits. Bytes convert without rounding,
// so
//   a flow that is re-rated a thousand times has moved exactly the sum of its pieces. The time at which it ends,
//   ceil(volume left / level), is the same whether the level was constant or re-stated in between.
// * A rate of device work is an integer number of 2^-20 of the reference rate; work left is kept in 2^-20 ns.
//
// The one rounding is that an end is moved up to the next integer nanosecond.
#pragma once

#include <cstdint>
#include <limits>

namespace eidolon {

using Time = std::int64_t;
using Level = std::int64_t;
__extension__ typedef unsigned __int128 Volume;

inline constexpr Time kNever = std::numeric_limits<Time>::max();
inline constexpr Level kUnlimited = std::numeric_limits<Level>::max();
inline constexpr int kLevelBits = 16;
inline constexpr int kRateBits = 20;
inline constexpr std::int64_t kReferenceRate = std::int64_t{1} << kRateBits;
// The products of this file are shown to fit up to 70 TB/s and 2^50 bytes.
inline constexpr std::uint64_t kMaxBytesPerS = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 50;

constexpr Level level_of(std::uint64_t bytes_per_s) { return static_cast<Level>(bytes_per_s << kLevelBits); }

constexpr Volume volume_of(std::uint64_t bytes) { return (Volume{bytes} * 1'000'000'000U) << kLevelBits; }

// The nanoseconds until `left` has moved at `rate`, rounded up. It is kNever where that is beyond the end of time.
inline Time time_to_serve(Volume left, Level rate) {
  const auto divisor = static_cast<std::uint64_t>(rate);
  const Volume quotient = (left + (divisor - 1)) / divisor;
  return quotient > static_cast<Volume>(kNever / 4) ? kNever : static_cast<Time>(quotient);
}

constexpr Time later(Time base, Time delta) { return delta == kNever || base == kNever ? kNever : base + delta; }

} // namespace eidolon
