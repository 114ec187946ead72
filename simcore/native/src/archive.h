// Turns state into bytes (a snapshot) and back, by one description per type.
//
// A class lists its members once, in `template <typename Archive> void archive(Archive &ar) { ar(a_, b_, c_); }`;
// writing and reading walk the same list. Types without padding or pointers are copied as they lie in memory, because
// only the build that wrote a snapshot reads it. The engine puts a format number in front.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace eidolon {

template <bool Reading> class Archive {
public:
  static constexpr bool kReading = Reading;

  Archive() = default;
  explicit Archive(std::string_view input) : input_(input) {}

  template <typename... Ts> void operator()(Ts &...values) { (one(values), ...); }

  [[nodiscard]] std::string take() { return std::move(output_); }
  [[nodiscard]] bool exhausted() const { return at_ == input_.size(); }

private:
  template <typename T> struct IsVector : std::false_type {};
  template <typename T> struct IsVector<std::vector<T>> : std::true_type {};
  template <typename T> struct IsMap : std::false_type {};
  template <typename K, typename V> struct IsMap<std::map<K, V>> : std::true_type {};
  template <typename K, typename V> struct IsMap<std::unordered_map<K, V>> : std::true_type {};

  template <typename T> void one(T &value) {
    if constexpr (requires { value.archive(*this); }) {
      value.archive(*this);
    } else if constexpr (IsVector<T>::value) {
      std::uint64_t count = value.size();
      raw(&count, sizeof count);
      if constexpr (Reading) {
        limit(count);
        value = T(count); // `resize` is not used, since GCC 13 takes the growth of an empty vector for an overflow
      }
      if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
        raw(value.data(), count * sizeof(typename T::value_type));
      } else {
        for (auto &element : value) {
          one(element);
        }
      }
    } else if constexpr (IsMap<T>::value) {
      std::uint64_t count = value.size();
      raw(&count, sizeof count);
      if constexpr (Reading) {
        limit(count);
        value.clear();
        for (std::uint64_t i = 0; i < count; ++i) {
          typename T::key_type key{};
          one(key);
          one(value[key]);
        }
      } else {
        for (auto &[key, element] : value) {
          typename T::key_type copy = key;
          one(copy);
          one(element);
        }
      }
    } else {
      static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
      raw(&value, sizeof value);
    }
  }

  void limit(std::uint64_t count) const {
    if (count > input_.size()) {
      throw std::invalid_argument("snapshot is damaged: a count exceeds its size");
    }
  }
  void raw(void *data, std::size_t size) {
    if (size == 0) {
      return;
    }
    if constexpr (Reading) {
      if (size > input_.size() - at_) {
        throw std::invalid_argument("snapshot is cut short");
      }
      std::memcpy(data, input_.data() + at_, size);
      at_ += size;
    } else {
      output_.append(static_cast<const char *>(data), size);
    }
  }

  std::string_view input_;
  std::size_t at_ = 0;
  std::string output_;
};

using Writer = Archive<false>;
using Reader = Archive<true>;

} // namespace eidolon
