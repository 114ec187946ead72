// The end times of keys whose nodes are gone.
//
// The shim never reuses a recording, so a run makes ever more of them, and a handle to an old one may still be asked
// for its time. The latest keys are kept in memory. Older keys are in blocks sorted by key, in an unlinked temporary
// file; memory holds 32 bytes for each block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "arithmetic.h"

namespace eidolon {

class GoneKeys {
public:
  void add(std::uint64_t key, Time end) {
    recent_[key] = end;
    if (recent_.size() >= kBlock) {
      spill();
    }
  }

  // The time of a key, or kNever for one that was never here.
  [[nodiscard]] Time find(std::uint64_t key) const {
    if (const auto at = recent_.find(key); at != recent_.end()) {
      return at->second;
    }
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (key < block->least || key > block->greatest) {
        continue;
      }
      const std::vector<Item> items = read(*block);
      const auto at = std::lower_bound(items.begin(), items.end(), key,
                                       [](const Item &item, std::uint64_t wanted) { return item.key < wanted; });
      if (at != items.end() && at->key == key) {
        return at->end;
      }
    }
    return kNever;
  }

  [[nodiscard]] std::size_t bytes() const { return recent_.size() * 48 + blocks_.capacity() * sizeof(Block); }

  template <typename Archive> void archive(Archive &ar) {
    std::vector<std::vector<Item>> contents;
    if constexpr (!Archive::kReading) {
      for (const Block &block : blocks_) {
        contents.push_back(read(block));
      }
    }
    ar(recent_, contents);
    if constexpr (Archive::kReading) {
      blocks_.clear();
      file_.reset();
      for (const std::vector<Item> &items : contents) {
        write(items);
      }
    }
  }

private:
  struct Item {
    std::uint64_t key;
    Time end;
  };
  struct Block {
    std::uint64_t least;
    std::uint64_t greatest;
    std::int64_t offset;
    std::uint64_t count;
  };
  struct Close {
    void operator()(std::FILE *file) const { std::fclose(file); }
  };
  static constexpr std::size_t kBlock = 1 << 16;

  void spill() {
    std::vector<Item> items;
    items.reserve(recent_.size());
    for (const auto &[key, end] : recent_) {
      items.push_back({key, end});
    }
    std::sort(items.begin(), items.end(), [](const Item &a, const Item &b) { return a.key < b.key; });
    write(items);
    recent_.clear();
  }

  void write(const std::vector<Item> &items) {
    if (!file_) {
      file_.reset(std::tmpfile());
    }
    // NOLINTNEXTLINE(clang-analyzer-unix.Stream): closed by `Close`
    if (!file_ || std::fseek(file_.get(), 0, SEEK_END) != 0) {
      throw std::runtime_error("no temporary file for the times of old events");
    }
    const std::int64_t offset = std::ftell(file_.get());
    if (std::fwrite(items.data(), sizeof(Item), items.size(), file_.get()) != items.size()) {
      throw std::runtime_error("the temporary file for the times of old events cannot be written");
    }
    blocks_.push_back({items.front().key, items.back().key, offset, items.size()});
  }

  [[nodiscard]] std::vector<Item> read(const Block &block) const {
    std::vector<Item> items(block.count);
    if (std::fseek(file_.get(), static_cast<long>(block.offset), SEEK_SET) != 0 ||
        std::fread(items.data(), sizeof(Item), items.size(), file_.get()) != items.size()) {
      throw std::runtime_error("the temporary file for the times of old events cannot be read");
    }
    return items;
  }

  std::unordered_map<std::uint64_t, Time> recent_;
  std::vector<Block> blocks_;
  std::unique_ptr<std::FILE, Close> file_;
};

} // namespace eidolon
