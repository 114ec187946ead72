#include "shared_values.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "internal.h"

namespace eidolon {
namespace {

constexpr int kLongestWaitS = 10;
constexpr size_t kMost = 4096; // intervals in a file; those beyond are unknown to the others

struct Head {
  uint64_t change; // number of the last change
  uint64_t count;
};
struct Entry {
  uint64_t begin, end; // offsets
  uint64_t origin;
};
constexpr off_t kEntries = 64, kData = 128 << 10;
static_assert(kEntries + kMost * sizeof(Entry) <= kData);

std::string path_of(const std::string &name) { return std::string(config().dir) + "/ipc/" + name; }

bool read_all(int file, void *out, size_t bytes, off_t at) {
  return pread(file, out, bytes, at) == static_cast<ssize_t>(bytes);
}
bool write_all(int file, const void *data, size_t bytes, off_t at) {
  return pwrite(file, data, bytes, at) == static_cast<ssize_t>(bytes);
}

// False if another process holds it for too long.
bool lock(int file) {
  for (int tries = 0; tries < kLongestWaitS * 1000; ++tries) {
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
      return true;
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return false;
}

} // namespace

void SharedValues::share(const Intervals &known, const std::string &name, uintptr_t at, size_t bytes) {
  if (std::any_of(all_.begin(), all_.end(), [&](const Region &r) { return r.exported && r.at == at; }))
    return;
  mkdir(path_of("").c_str(), 0700);
  unlink(path_of(name).c_str()); // of a process that was killed and had the same number
  const int file = open(path_of(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    fprintf(stderr, "eidolon: %s: %s: other processes do not see the values of the memory that is exported\n",
            path_of(name).c_str(), strerror(errno));
    return;
  }
  Region region{.name = name, .at = at, .bytes = bytes, .file = file, .exported = true};
  region.changes.push_back(region.span());
  publish(region, known);
  const auto place = std::find_if(all_.begin(), all_.end(), [&](const Region &r) { return r.name > name; });
  all_.insert(place, std::move(region));
}

void SharedValues::join(const std::string &name, uintptr_t at, size_t bytes) {
  const auto same = std::find_if(all_.begin(), all_.end(), [&](const Region &r) { return r.name == name; });
  // A lock belongs to what `open` gave: two ranges of this process with the same memory have one.
  const int file =
      same != all_.end() ? fcntl(same->file, F_DUPFD_CLOEXEC, 0) : open(path_of(name).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    return;
  const auto place = std::find_if(all_.begin(), all_.end(), [&](const Region &r) { return r.name > name; });
  all_.insert(place, {.name = name, .at = at, .bytes = bytes, .file = file, .exported = false});
}

void SharedValues::close(Region &region) {
  if (region.exported) {
    region.changes.push_back(region.span());
    publish(region, {});
    unlink(path_of(region.name).c_str());
  }
  ::close(region.file);
}

void SharedValues::leave(uintptr_t begin, uintptr_t end) {
  for (auto region = all_.begin(); region != all_.end();) {
    if (region->at < begin || region->at + region->bytes > end) {
      ++region;
      continue;
    }
    close(*region);
    region = all_.erase(region);
  }
}

void SharedValues::begin(Intervals &known) {
  if (depth_++ != 0)
    return;
  for (auto region = all_.begin(); region != all_.end();) {
    if (lock(region->file) && take_over(*region, known)) {
      ++region;
      continue;
    }
    fprintf(stderr,
            "eidolon: %s is damaged, or another process has held it for %d s: its memory is unknown from now on\n",
            path_of(region->name).c_str(), kLongestWaitS);
    mark_unknown(known, region->at, region->at + region->bytes);
    ::close(region->file);
    region = all_.erase(region);
  }
}

void SharedValues::end(const Intervals &known) {
  if (--depth_ != 0)
    return;
  for (Region &region : all_)
    publish(region, known);
  for (const Region &region : all_)
    flock(region.file, LOCK_UN);
}

void SharedValues::changed(uintptr_t begin, uintptr_t end) {
  for (Region &region : all_)
    if (region.span().meets({begin, end}))
      region.changes.push_back({std::max(begin, region.at), std::min(end, region.at + region.bytes)});
}

// Takes over what another process has changed. False if the file is not as it should be.
bool SharedValues::take_over(Region &region, Intervals &known) {
  Head head;
  if (!read_all(region.file, &head, sizeof head, 0) || head.count > kMost)
    return false;
  if (head.change == region.seen)
    return true;
  std::vector<Entry> entries(head.count);
  if (!read_all(region.file, entries.data(), entries.size() * sizeof(Entry), kEntries))
    return false;
  mark_unknown(known, region.at, region.at + region.bytes);
  for (const Entry &entry : entries) {
    if (entry.begin >= entry.end || entry.end > region.bytes)
      return false;
    char *to = reinterpret_cast<char *>(region.at + entry.begin);
    if (read_all(region.file, to, entry.end - entry.begin, kData + static_cast<off_t>(entry.begin)))
      mark_known(known, region.at + entry.begin, region.at + entry.end, static_cast<Origin>(entry.origin));
  }
  region.seen = head.change;
  return true;
}

// Leaves what this process has changed: the bytes where they changed, and the whole table.
void SharedValues::publish(Region &region, const Intervals &known) {
  if (region.changes.empty())
    return;
  std::vector<Span> lost; // the disk is full
  for (const Span &change : region.changes)
    pieces(known, change, [&](uintptr_t begin, uintptr_t end, const Piece *piece) {
      const off_t at = kData + static_cast<off_t>(begin - region.at);
      if (piece != nullptr && !write_all(region.file, reinterpret_cast<const void *>(begin), end - begin, at))
        lost.push_back({begin, end});
    });
  region.changes.clear();
  std::vector<Entry> entries;
  pieces(known, region.span(), [&](uintptr_t begin, uintptr_t end, const Piece *piece) {
    const bool gone = std::any_of(lost.begin(), lost.end(), [&](const Span &s) { return s.meets({begin, end}); });
    if (piece != nullptr && !gone && entries.size() < kMost)
      entries.push_back({begin - region.at, end - region.at, static_cast<uint64_t>(piece->origin)});
  });
  const Head head{++region.seen, entries.size()};
  if (!write_all(region.file, entries.data(), entries.size() * sizeof(Entry), kEntries) ||
      !write_all(region.file, &head, sizeof head, 0)) {
    const Head nothing{region.seen, 0};
    write_all(region.file, &nothing, sizeof nothing, 0);
  }
}

} // namespace eidolon
