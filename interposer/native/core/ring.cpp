// The ring: this rank's end of the shared memory described in abi.h.
//
// Records are written under one mutex: the order in which threads take it is the rank-wide order. A record is visible
// once `head` is stored; a definition is visible before any record that names it. A full ring holds the writer until
// the agent made room. The agent polls; only a thread that is about to block rings the server's bell, and pays for a
// system call only if the agent sleeps.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "futex.h"
#include "internal.h"

namespace eidolon {
namespace {

constexpr int64_t kSliceUs = 20'000; // how often a waiting thread looks around

struct RingState {
  std::mutex mutex; // the rank-wide order
  RingHeader *header = nullptr;
  ReplySlot *slots = nullptr;
  EventRecord *records = nullptr;
  char *defs = nullptr;
  char *inbox = nullptr;
  uint64_t record_mask = 0, defs_mask = 0, inbox_mask = 0;
  ServerPage *page = nullptr;
  std::mutex inbox_mutex;
};
RingState *state() {
  static RingState *ring = new RingState; // never destroyed: threads may outlive exit handlers
  return ring;
}

struct Key {
  uint64_t a, b;
  bool operator==(const Key &) const = default;
};
struct KeyHash {
  size_t operator()(const Key &key) const { return key.a; }
};
struct Signatures {
  std::mutex mutex;
  std::unordered_map<Key, uint32_t, KeyHash> ids;
  std::vector<std::pair<uint32_t, std::string>> texts; // all, to be sent when the ring is made
  size_t sent = 0;
  uint32_t next_call = 1, next = kCallIds;
};
Signatures &interned() {
  static Signatures &all = *new Signatures;
  return all;
}

int64_t nanoseconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void ring_bell(ServerPage *page) {
  page->bell.fetch_add(1);
  if (page->listening.load() != 0)
    futex_wake(&page->bell);
}

// Ends the process if the agent said so, or has been silent for too long.
void check_alive(RingState *r) {
  switch (static_cast<ReplyStatus>(r->header->fatal_status.load(std::memory_order_acquire))) {
  case ReplyStatus::kOk:
    break;
  case ReplyStatus::kStop:
    fflush(nullptr);
    release_accounts();
    ring_close();
    _exit(0);
  case ReplyStatus::kFailed:
  default:
    fatal("%.1000s", r->header->fatal);
  }
  uint64_t beat = r->page->heartbeat_ns.load();
  int64_t silent_ns = nanoseconds(CLOCK_MONOTONIC) - static_cast<int64_t>(beat);
  if (beat != 0 && silent_ns > config().reply_timeout_ns)
    fatal("no sign of life from the agent for %lld s", static_cast<long long>(silent_ns / 1'000'000'000));
}

// Waits until `bytes` fit between head and tail of a ring of `capacity`.
void wait_for_room(RingState *r, const std::atomic<uint64_t> &head, const std::atomic<uint64_t> &tail,
                   uint64_t capacity, uint64_t need) {
  RingHeader *h = r->header;
  std::optional<RealWait> waits;
  while (head.load(std::memory_order_relaxed) + need - tail.load(std::memory_order_acquire) > capacity) {
    if (!waits)
      waits.emplace(h->room_wait_ns);
    uint32_t seen = h->space_bell.load();
    h->space_wanted.store(1);
    ring_bell(r->page);
    if (head.load(std::memory_order_relaxed) + need - tail.load(std::memory_order_acquire) <= capacity)
      break;
    futex_wait(&h->space_bell, seen, kSliceUs);
    check_alive(r);
  }
  h->space_wanted.store(0);
}

// Appends one message to the definitions. Caller holds the mutex.
void append_definition(RingState *r, MessageType type, const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  RingHeader *h = r->header;
  uint64_t body = a_bytes + b_bytes, total = (sizeof(MessageHead) + body + 7) & ~uint64_t{7};
  if (total > h->defs_capacity / 2)
    fatal("a definition of %zu bytes does not fit the ring (%zu)", static_cast<size_t>(body),
          static_cast<size_t>(h->defs_capacity));
  uint64_t head = h->defs_head.load(std::memory_order_relaxed), at = head & r->defs_mask;
  uint64_t to_end = h->defs_capacity - at, pad = to_end < total ? to_end : 0;
  wait_for_room(r, h->defs_head, h->defs_tail, h->defs_capacity, pad + total);
  if (pad != 0) {
    MessageHead filler{static_cast<uint32_t>(pad - sizeof(MessageHead)), static_cast<uint16_t>(MessageType::kPad), 0};
    memcpy(r->defs + at, &filler, sizeof filler);
    at = 0;
  }
  MessageHead mine{static_cast<uint32_t>(body), static_cast<uint16_t>(type), 0};
  memcpy(r->defs + at, &mine, sizeof mine);
  if (a_bytes != 0)
    memcpy(r->defs + at + sizeof mine, a, a_bytes);
  if (b_bytes != 0)
    memcpy(r->defs + at + sizeof mine + a_bytes, b, b_bytes);
  h->defs_head.store(head + pad + total, std::memory_order_release);
}

// Sends the definitions made since the last call. Caller holds the ring's mutex.
void send_signatures(RingState *r) {
  Signatures &s = interned();
  for (;;) {
    std::pair<uint32_t, std::string> next;
    {
      std::lock_guard hold(s.mutex);
      if (s.sent == s.texts.size())
        return;
      next = s.texts[s.sent++];
    }
    append_definition(r, MessageType::kSignature, &next.first, sizeof next.first, next.second.data(),
                      next.second.size());
  }
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}
uint64_t mix(uint64_t hash, const char *text) {
  for (; *text != 0; ++text)
    hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001B3ULL;
  return mix(hash, 0x51ED);
}

uint64_t capacity_setting(ConfKey key) {
  const auto wanted = static_cast<uint64_t>(setting_number(key));
  if (wanted < 1024 || (wanted & (wanted - 1)) != 0)
    fatal("server.conf: %s=%s: a power of two of at least 1024 is allowed", key.text(), setting(key));
  return wanted;
}

ServerPage *map_server_page() {
  std::string path = std::string(config().dir) + "/server.page";
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    fatal("no agent: %s: %s", path.c_str(), strerror(errno));
  void *mapped = mmap(nullptr, sizeof(ServerPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED)
    fatal("cannot map %s: %s", path.c_str(), strerror(errno));
  auto *page = static_cast<ServerPage *>(mapped);
  if (memcmp(page->magic, "EIDSERV1", 8) != 0 || page->abi_version != kAbiVersion)
    fatal("%s is of ABI version %u, this shim is of %u: agent and shim must be of one release", path.c_str(),
          page->abi_version, kAbiVersion);
  return page;
}

int environment_number(const char *name) {
  const char *text = getenv(name);
  return text != nullptr && *text != 0 ? atoi(text) : -1;
}

} // namespace

RingHeader *ring_header() { return state()->header; }

ServerPage *server_page() {
  if (!config().active || config().null_core)
    return nullptr;
  static ServerPage *const page = map_server_page();
  return page;
}

bool ring_create() {
  RingState *r = state();
  const uint64_t records = capacity_setting("ring.records"), defs = capacity_setting("ring.defs_bytes"),
                 inbox = capacity_setting("ring.inbox_bytes");
  const uint64_t slots_at = sizeof(RingHeader),
                 records_at = (slots_at + kReplySlots * sizeof(ReplySlot) + 4095) & ~uint64_t{4095},
                 defs_at = records_at + records * sizeof(EventRecord), inbox_at = defs_at + defs,
                 total = inbox_at + inbox;
  r->page = server_page();
  static std::atomic<int> count{0};
  std::string path = std::string(config().dir) + "/ranks/" + std::to_string(getpid()) + "-" +
                     std::to_string(count.fetch_add(1)) + ".ring",
              temporary = path + ".tmp";
  int fd = open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0)
    fatal("cannot create %s: %s", temporary.c_str(), strerror(errno));
  if (ftruncate(fd, static_cast<off_t>(total)) != 0)
    fatal("cannot size %s to %zu bytes: %s", temporary.c_str(), static_cast<size_t>(total), strerror(errno));
  void *mapped = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED)
    fatal("cannot map %s: %s", temporary.c_str(), strerror(errno));
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  if (fcntl(fd, F_SETLK, &lock) != 0) // held until this process ends: the rank's sign of life; fd stays open
    fatal("cannot lock %s: %s", temporary.c_str(), strerror(errno));
  char *base = static_cast<char *>(mapped);
  auto *h = reinterpret_cast<RingHeader *>(base);
  memcpy(h->magic, kRingMagic, sizeof h->magic);
  h->abi_version = kAbiVersion;
  h->record_bytes = sizeof(EventRecord);
  h->record_capacity = records;
  h->records_offset = records_at;
  h->defs_capacity = defs;
  h->defs_offset = defs_at;
  h->inbox_capacity = inbox;
  h->inbox_offset = inbox_at;
  h->pid = getpid();
  h->rank = environment_number("RANK");
  h->local_rank = environment_number("LOCAL_RANK");
  h->world = environment_number("WORLD_SIZE");
  h->epoch_ns = nanoseconds(CLOCK_REALTIME);
  r->slots = reinterpret_cast<ReplySlot *>(base + slots_at);
  r->records = reinterpret_cast<EventRecord *>(base + records_at);
  r->defs = base + defs_at;
  r->inbox = base + inbox_at;
  r->record_mask = records - 1;
  r->defs_mask = defs - 1;
  r->inbox_mask = inbox - 1;
  {
    std::lock_guard hold(r->mutex);
    r->header = h;
    interned().sent = 0;
    send_signatures(r);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0)
    fatal("cannot rename %s: %s", temporary.c_str(), strerror(errno));
  ring_bell(r->page);
  return true;
}

void ring_abandon_in_child() {
  // The mapping and the lock are the parent's. The mutexes may have been held by a thread that does not exist here.
  RingState *r = state();
  new (&r->mutex) std::mutex;
  new (&r->inbox_mutex) std::mutex;
  new (&interned().mutex) std::mutex;
  r->header = nullptr;
}

void ring_close() {
  if (RingHeader *h = ring_header()) {
    h->closed.store(1);
    ring_bell(state()->page);
  }
}

uint64_t ring_emit(const Event &event, uint8_t flags, int slot) {
  RingState *r = state();
  RingHeader *h = r->header;
  if (h == nullptr)
    return 0;
  uint32_t host_ns = 0;
  Thread &thread = this_thread();
  if ((flags & (kForeground | kInGraph)) == kForeground) {
    int64_t spent_ns = 0;
    if (!config().measured_host)
      spent_ns = take_interpreter_ns();
    else if (thread.cpu_mark_ns != 0)
      spent_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - thread.cpu_mark_ns;
    host_ns = static_cast<uint32_t>(std::min<int64_t>(spent_ns, UINT32_MAX));
  }
  uint64_t seq;
  {
    std::lock_guard hold(r->mutex);
    send_signatures(r);
    wait_for_room(r, h->head, h->tail, h->record_capacity, 1);
    seq = h->head.load(std::memory_order_relaxed);
    EventRecord &record = r->records[seq & r->record_mask];
    record.seq = static_cast<uint32_t>(seq);
    record.kind = static_cast<uint8_t>(event.kind);
    record.flags = flags;
    record.thread = static_cast<uint16_t>(slot);
    record.host_ns = host_ns;
    record.call = event.call;
    record.device =
        static_cast<uint16_t>(server_device(event.stream != nullptr ? event.stream->device : current_device()));
    record.stream = event.stream != nullptr ? event.stream->id : 0;
    record.sig = event.sig;
    record.value = event.value;
    h->head.store(seq + 1, std::memory_order_release);
  }
  if ((flags & kBlocking) != 0)
    ring_bell(r->page);
  if (h->fatal_status.load(std::memory_order_relaxed) != 0)
    check_alive(r);
  if (config().measured_host && (flags & kForeground) != 0)
    thread.cpu_mark_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  return seq;
}

bool ring_answered(int slot, uint64_t seq) {
  return state()->slots[slot].reply_seq.load(std::memory_order_acquire) == static_cast<uint32_t>(seq + 1);
}

void ring_await_answer(int slot, uint64_t seq, int64_t limit_us) {
  std::atomic<uint32_t> &word = state()->slots[slot].reply_seq;
  if (const uint32_t seen = word.load(std::memory_order_acquire); seen != static_cast<uint32_t>(seq + 1))
    futex_wait(&word, seen, limit_us);
}

RealWait::RealWait(std::atomic<uint64_t> &sum) : sum_(sum), began_ns_(nanoseconds(CLOCK_MONOTONIC)) {}

RealWait::~RealWait() {
  sum_.fetch_add(static_cast<uint64_t>(nanoseconds(CLOCK_MONOTONIC) - began_ns_), std::memory_order_relaxed);
}

Reply ring_wait(int slot, uint64_t seq, bool foreground) {
  RingState *r = state();
  ReplySlot &mine = r->slots[slot];
  std::optional<RealWait> waits; // none where the answer is there already
  for (;;) {
    uint32_t seen = mine.reply_seq.load(std::memory_order_acquire);
    if (seen == static_cast<uint32_t>(seq + 1))
      break;
    if (foreground && !waits)
      waits.emplace(r->header->answer_wait_ns);
    futex_wait(&mine.reply_seq, seen, kSliceUs);
    ring_drain_inbox(); // the agent must never wait for us to read it
    if (!ring_answered(slot, seq))
      check_alive(r);
  }
  ring_drain_inbox();
  if (config().measured_host)
    this_thread().cpu_mark_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  if (mine.status != static_cast<int32_t>(ReplyStatus::kOk))
    check_alive(r);
  return {kSuccess, mine.clock_ns, mine.value, seq};
}

void ring_payload(uint64_t seq, const void *data, size_t bytes) {
  RingState *r = state();
  if (r->header == nullptr)
    return;
  std::lock_guard hold(r->mutex);
  append_definition(r, MessageType::kPayload, &seq, sizeof seq, data, bytes);
}

void ring_drain_inbox() {
  RingState *r = state();
  RingHeader *h = r->header;
  if (h == nullptr || h->inbox_head.load(std::memory_order_acquire) == h->inbox_tail.load(std::memory_order_relaxed))
    return;
  std::lock_guard hold(r->inbox_mutex);
  uint64_t tail = h->inbox_tail.load(std::memory_order_relaxed);
  while (tail != h->inbox_head.load(std::memory_order_acquire)) {
    MessageHead head;
    memcpy(&head, r->inbox + (tail & r->inbox_mask), sizeof head);
    const char *body = r->inbox + (tail & r->inbox_mask) + sizeof head;
    if (head.type == static_cast<uint16_t>(MessageType::kPayload) && head.bytes >= 8) {
      uint64_t seq;
      memcpy(&seq, body, sizeof seq);
      value_arrived(seq, body + sizeof seq, head.bytes - sizeof seq);
    }
    tail += (sizeof head + head.bytes + 7) & ~uint64_t{7};
    h->inbox_tail.store(tail, std::memory_order_release);
  }
}

bool ring_wait_inbox(int timeout_ms) {
  RingState *r = state();
  uint32_t seen = r->header->inbox_bell.load();
  if (r->header->inbox_head.load() == r->header->inbox_tail.load())
    futex_wait(&r->header->inbox_bell, seen, timeout_ms * 1000);
  check_alive(r);
  bool any = r->header->inbox_head.load() != r->header->inbox_tail.load();
  ring_drain_inbox();
  return any;
}

uint64_t ring_next_seq() {
  RingHeader *h = ring_header();
  return h != nullptr ? h->head.load(std::memory_order_relaxed) : 0;
}

uint32_t intern(const char *kind, const char *name, const Attribute *attributes, size_t n) {
  Key key{mix(0xE1D0, kind), mix(0x1057, kind)};
  key.a = mix(key.a, name);
  key.b = mix(key.b ^ 0xABCD, name);
  for (size_t i = 0; i < n; ++i) {
    key.a = mix(key.a, static_cast<uint64_t>(attributes[i].value));
    key.b = mix(key.b, static_cast<uint64_t>(attributes[i].value) ^ (i * 0x632BE59BD9B4E019ULL));
  }
  Signatures &s = interned();
  std::lock_guard hold(s.mutex);
  auto [found, fresh] = s.ids.try_emplace(key, 0);
  if (!fresh)
    return found->second;
  const bool call = strcmp(kind, signatures::Call::kKind) == 0;
  if (call && s.next_call >= kCallIds)
    fatal("more than %u API calls have names", kCallIds - 1);
  found->second = call ? s.next_call++ : s.next++;
  std::string clean = name;
  std::replace_if(clean.begin(), clean.end(), [](char c) { return c == '\n' || c == '\r'; }, ' '); // separates fields
  std::string text = std::string(kind) + '\n' + clean + '\n';
  for (size_t i = 0; i < n; ++i)
    text += std::string(attributes[i].key) + '=' + std::to_string(attributes[i].value) + '\n';
  s.texts.emplace_back(found->second, std::move(text));
  return found->second;
}

uint16_t call_id(const char *name) { return static_cast<uint16_t>(signature(name, signatures::Call{})); }

// ---- reply slots of host callbacks --------------------------------------------------------------------------------

namespace {
struct CallbackSlots {
  std::mutex mutex;
  std::condition_variable given;
  bool taken[kReplySlots - kMaxThreads] = {};
};
CallbackSlots *callback_slots() {
  static CallbackSlots *all = new CallbackSlots;
  return all;
}
} // namespace

int callback_slot_take() {
  CallbackSlots *s = callback_slots();
  std::unique_lock hold(s->mutex);
  for (;;) {
    if (bool *free = std::find(std::begin(s->taken), std::end(s->taken), false); free != std::end(s->taken)) {
      *free = true;
      return kMaxThreads + static_cast<int>(free - s->taken);
    }
    s->given.wait_for(hold, std::chrono::microseconds(kSliceUs)); // the callback thread gives one back once it has run
    check_alive(state());
  }
}

void callback_slot_give(int slot) {
  CallbackSlots *s = callback_slots();
  {
    std::lock_guard hold(s->mutex);
    s->taken[slot - kMaxThreads] = false;
  }
  s->given.notify_one();
}

} // namespace eidolon
