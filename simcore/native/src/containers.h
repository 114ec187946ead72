// Two containers that the standard library lacks.
//
// `Ring` is a queue whose elements keep their number for life. History is appended at the back, undone at the back and
// dropped at the front, and others refer to an element by its number. `IndexedHeap` is a priority queue over small
// numbers whose keys change.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "check.h"

namespace eidolon {

template <typename T> class Ring {
public:
  [[nodiscard]] std::uint64_t first() const { return first_; }
  [[nodiscard]] std::uint64_t end() const { return end_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end_ - first_); }
  [[nodiscard]] bool empty() const { return first_ == end_; }
  [[nodiscard]] std::size_t bytes() const { return slots_.size() * sizeof(T); }

  T &operator[](std::uint64_t number) {
    EIDOLON_CHECK(number >= first_ && number < end_, "ring element exists");
    return slots_[number & mask_];
  }
  const T &operator[](std::uint64_t number) const {
    EIDOLON_CHECK(number >= first_ && number < end_, "ring element exists");
    return slots_[number & mask_];
  }
  T &front() { return (*this)[first_]; }
  T &back() { return (*this)[end_ - 1]; }
  const T &back() const { return (*this)[end_ - 1]; }

  T &push_back(T value) {
    if (size() == slots_.size()) {
      resize(slots_.empty() ? 8 : slots_.size() * 2);
    }
    T &slot = slots_[end_++ & mask_];
    slot = std::move(value);
    return slot;
  }
  void pop_back() {
    --end_;
    release(slots_[end_ & mask_]);
  }
  // Gives memory back once three quarters of it are unused, so that a burst does not hold it until the end.
  void pop_front() {
    release(slots_[first_ & mask_]);
    ++first_;
    if (slots_.size() > 1024 && size() * 8 < slots_.size()) {
      resize(slots_.size() / 4);
    }
  }

  template <typename Archive> void archive(Archive &ar) {
    std::uint64_t first = first_;
    std::uint64_t count = size();
    ar(first, count);
    if constexpr (Archive::kReading) {
      *this = Ring{};
      first_ = end_ = first;
      for (std::uint64_t i = 0; i < count; ++i) {
        T value{};
        ar(value);
        push_back(std::move(value));
      }
    } else {
      for (std::uint64_t i = first_; i < end_; ++i) {
        ar((*this)[i]);
      }
    }
  }

private:
  static void release(T &slot) {
    if constexpr (!std::is_trivially_destructible_v<T>) {
      slot = T{};
    }
  }
  void resize(std::size_t capacity) {
    std::vector<T> slots(capacity);
    for (std::uint64_t i = first_; i < end_; ++i) {
      slots[i & (capacity - 1)] = std::move(slots_[i & mask_]);
    }
    slots_ = std::move(slots);
    mask_ = capacity - 1;
  }

  std::vector<T> slots_;
  std::uint64_t mask_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t end_ = 0;
};

// The smallest time comes first. The order among equal times is not defined, so callers must not depend on it.
class IndexedHeap {
public:
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] Time top_time() const { return items_.empty() ? kNever : items_.front().time; }
  [[nodiscard]] std::uint32_t top() const { return items_.front().id; }
  [[nodiscard]] bool contains(std::uint32_t id) const { return id < where_.size() && where_[id] != kAbsent; }

  void set(std::uint32_t id, Time time) {
    if (id >= where_.size()) {
      where_.resize(std::bit_ceil(static_cast<std::size_t>(id) + 1), kAbsent);
    }
    std::uint32_t at = where_[id];
    if (at == kAbsent) {
      at = static_cast<std::uint32_t>(items_.size());
      items_.push_back({time, id});
      where_[id] = at;
      rise(at);
      return;
    }
    const Time before = items_[at].time;
    if (time == before) {
      return;
    }
    items_[at].time = time;
    if (time < before) {
      rise(at);
    } else {
      sink(at);
    }
  }

  void erase(std::uint32_t id) {
    if (!contains(id)) {
      return;
    }
    const std::uint32_t at = where_[id];
    where_[id] = kAbsent;
    const Item last = items_.back();
    items_.pop_back();
    if (at < items_.size()) {
      items_[at] = last;
      where_[last.id] = at;
      rise(at);
      sink(where_[last.id]);
    }
  }

  template <typename Archive> void archive(Archive &ar) { ar(items_, where_); }

private:
  struct Item {
    Time time;
    std::uint32_t id;
  };
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};
  static constexpr std::uint32_t kWays = 4;

  void place(std::uint32_t at, const Item &item) {
    items_[at] = item;
    where_[item.id] = at;
  }
  void rise(std::uint32_t at) {
    const Item item = items_[at];
    while (at > 0) {
      const std::uint32_t parent = (at - 1) / kWays;
      if (items_[parent].time <= item.time) {
        break;
      }
      place(at, items_[parent]);
      at = parent;
    }
    place(at, item);
  }
  void sink(std::uint32_t at) {
    const Item item = items_[at];
    const auto size = static_cast<std::uint32_t>(items_.size());
    for (;;) {
      const std::uint32_t begin = at * kWays + 1;
      if (begin >= size) {
        break;
      }
      std::uint32_t least = begin;
      const std::uint32_t end = begin + kWays < size ? begin + kWays : size;
      for (std::uint32_t child = begin + 1; child < end; ++child) {
        if (items_[child].time < items_[least].time) {
          least = child;
        }
      }
      if (items_[least].time >= item.time) {
        break;
      }
      place(at, items_[least]);
      at = least;
    }
    place(at, item);
  }

  std::vector<Item> items_;
  std::vector<std::uint32_t> where_;
};

} // namespace eidolon
