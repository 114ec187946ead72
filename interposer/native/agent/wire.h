// The encoding of Protocol Buffers (https://protobuf.dev/programming-guides/encoding), as far as a batch needs it:
// numbers that are not negative, and bytes. Protobuf's own C++ library would be a build of its own, larger than the
// agent, for these three functions; messages that are not sent for every few records are made by its Python library.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace eidolon::agent::wire {

inline void put_varint(std::string &out, uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// The head of a field of bytes, or of a message; so many bytes have to follow.
inline void put_length(std::string &out, uint32_t field, uint64_t bytes) {
  put_varint(out, field << 3 | 2);
  put_varint(out, bytes);
}

inline void put_bytes(std::string &out, uint32_t field, std::string_view bytes) {
  put_length(out, field, bytes.size());
  out += bytes;
}

// A field of a number; 0 is what a field has that is not there.
inline void put_number(std::string &out, uint32_t field, uint64_t value) {
  if (value == 0)
    return;
  put_varint(out, field << 3);
  put_varint(out, value);
}

} // namespace eidolon::agent::wire
