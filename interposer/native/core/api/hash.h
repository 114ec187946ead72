// Numbers that every process makes alike of the same text or numbers (FNV-1a).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace eidolon {

class Hash {
public:
  void add(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      hash_ = (hash_ ^ static_cast<const unsigned char *>(data)[i]) * 0x100000001b3;
  }
  uint64_t get() const { return hash_; }

private:
  uint64_t hash_ = 0xcbf29ce484222325;
};
// 63 bits, so that signed and unsigned readers agree.
inline uint64_t hash_of(const std::string &text) {
  Hash hash;
  hash.add(text.data(), text.size());
  return hash.get() >> 1;
}

} // namespace eidolon
