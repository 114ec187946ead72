// The agent's end of the ring, for tests in which a rank and its agent are one process.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core.h"
#include "harness.h"

namespace test {

using namespace eidolon;

inline std::string directory; // EIDOLON_DIR

inline void *map_file(const std::string &path, size_t bytes) {
  int fd = open(path.c_str(), O_RDWR);
  if (fd < 0)
    return nullptr;
  void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : at;
}

inline void wake(std::atomic<uint32_t> *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0); }

// The ring of this process, mapped once more; null while there is none.
inline RingHeader *map_ring() {
  RingHeader *header = nullptr;
  std::string ranks = directory + "/ranks";
  DIR *dir = opendir(ranks.c_str());
  while (dirent *entry = dir != nullptr ? readdir(dir) : nullptr)
    if (std::string name = entry->d_name; name.ends_with(".ring")) {
      std::string path = ranks + "/" + name;
      auto *head = static_cast<RingHeader *>(map_file(path, sizeof(RingHeader)));
      size_t bytes = head->inbox_offset + head->inbox_capacity;
      munmap(head, sizeof(RingHeader));
      header = static_cast<RingHeader *>(map_file(path, bytes));
    }
  if (dir != nullptr)
    closedir(dir);
  return header;
}

// The least an agent does: read records in order, answer blocking ones, echo payloads of collectives back.
struct Agent {
  ServerPage *page = nullptr;
  RingHeader *header = nullptr;
  std::atomic<bool> stop{false}, holds_payloads{false};
  uint64_t records = 0, kernels = 0, out_of_order = 0, undefined = 0, payloads = 0, graph_nodes = 0;
  uint32_t highest_sig = 0;
  std::mutex ordering_mutex;
  std::vector<EventRecord> ordering; // collectives, recordings, waits
  std::thread thread;

  // What was read so far.
  std::vector<EventRecord> ordered() {
    std::lock_guard hold(ordering_mutex);
    return ordering;
  }

  void make_page() {
    std::string path = directory + "/server.page";
    int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(ServerPage)) != 0)
      perror("server.page");
    close(fd);
    page = static_cast<ServerPage *>(map_file(path, sizeof(ServerPage)));
    memcpy(page->magic, "EIDSERV1", 8);
    page->abi_version = kAbiVersion;
    beat();
    thread = std::thread([this] { run(); });
  }

  void beat() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    page->heartbeat_ns.store(static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec));
  }

  void find_ring() { header = map_ring(); }

  char *base() { return reinterpret_cast<char *>(header); }

  void put_payload(uint64_t seq, const char *data, size_t bytes) {
    uint64_t head = header->inbox_head.load(), at = head & (header->inbox_capacity - 1);
    MessageHead message{static_cast<uint32_t>(8 + bytes), static_cast<uint16_t>(MessageType::kPayload), 0};
    memcpy(base() + header->inbox_offset + at, &message, sizeof message);
    memcpy(base() + header->inbox_offset + at + 8, &seq, 8);
    memcpy(base() + header->inbox_offset + at + 16, data, bytes);
    header->inbox_head.store(head + ((16 + bytes + 7) & ~size_t{7}), std::memory_order_release);
    header->inbox_bell.fetch_add(1);
    wake(&header->inbox_bell);
  }

  void read_definitions(uint64_t until) {
    uint64_t tail = header->defs_tail.load();
    while (tail < until) {
      char *at = base() + header->defs_offset + (tail & (header->defs_capacity - 1));
      MessageHead head;
      memcpy(&head, at, sizeof head);
      if (head.type == static_cast<uint16_t>(MessageType::kSignature)) {
        uint32_t id;
        memcpy(&id, at + 8, 4);
        highest_sig = std::max(highest_sig, id);
      } else if (head.type == static_cast<uint16_t>(MessageType::kPayload)) {
        uint64_t seq;
        memcpy(&seq, at + 8, 8);
        payloads++;
        while (holds_payloads.load())
          usleep(1000);
        put_payload(seq, at + 16, head.bytes - 8);
      }
      tail += (sizeof head + head.bytes + 7) & ~uint64_t{7};
    }
    header->defs_tail.store(tail, std::memory_order_release);
  }

  void run() {
    while (!stop.load()) {
      beat();
      if (header == nullptr)
        find_ring();
      if (header == nullptr) {
        usleep(1000);
        continue;
      }
      uint64_t head = header->head.load(std::memory_order_acquire), tail = header->tail.load();
      read_definitions(header->defs_head.load(std::memory_order_acquire));
      auto *ring = reinterpret_cast<EventRecord *>(base() + header->records_offset);
      auto *slots = reinterpret_cast<ReplySlot *>(base() + sizeof(RingHeader));
      for (uint64_t seq = tail; seq < head; ++seq) {
        const EventRecord &r = ring[seq & (header->record_capacity - 1)];
        records++;
        out_of_order += r.seq != static_cast<uint32_t>(seq);
        undefined += r.sig > highest_sig || (r.sig != 0 && r.sig < 1024);
        if (const auto kind = static_cast<Kind>(r.kind);
            kind == Kind::kCollective || kind == Kind::kEventRecord || kind == Kind::kStreamWait) {
          std::lock_guard hold(ordering_mutex);
          ordering.push_back(r);
        }
        kernels += r.kind == static_cast<uint8_t>(Kind::kKernel);
        graph_nodes += r.kind == static_cast<uint8_t>(Kind::kKernel) && (r.flags & kInGraph) != 0;
        if ((r.flags & kBlocking) != 0) {
          ReplySlot &slot = slots[r.thread];
          slot.clock_ns = static_cast<int64_t>(seq) * 1000;
          slot.value = r.kind == static_cast<uint8_t>(Kind::kEventTime) ? static_cast<int64_t>(seq) * 1'000'000 : 1;
          slot.status = 0;
          slot.reply_seq.store(static_cast<uint32_t>(seq + 1), std::memory_order_release);
          wake(&slot.reply_seq);
        }
      }
      header->tail.store(head, std::memory_order_release);
      if (header->space_wanted.load() != 0) {
        header->space_bell.fetch_add(1);
        wake(&header->space_bell);
      }
      uint32_t bell = page->bell.load();
      page->listening.store(1);
      if (header->head.load() == head) {
        timespec limit{0, 2'000'000};
        syscall(SYS_futex, &page->bell, FUTEX_WAIT, bell, &limit, nullptr, 0);
      }
      page->listening.store(0);
    }
  }
};

} // namespace test
