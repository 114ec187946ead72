// The agent's end of a ring reads what it did not write: whatever is in the file, it ends in a batch or in a RingError,
// and nothing outside of the file is touched (which the sanitizers see: `make sanitize`).
#include "../agent/ring.h"

#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "harness.h"

using namespace eidolon;
using eidolon::agent::Layout;
using eidolon::agent::Ring;
using eidolon::agent::RingError;

namespace {

constexpr uint64_t kFixed = sizeof(RingHeader) + kReplySlots * sizeof(ReplySlot);
constexpr Layout kLayout{kFixed, 16, kFixed + 16 * sizeof(EventRecord), 1024, kFixed + 16 * sizeof(EventRecord) + 1024,
                         256};
constexpr uint64_t kBytes = kLayout.inbox_offset + kLayout.inbox_capacity;
constexpr uint32_t kSignatures = 1 << 22; // the bound of ring.py: the ring keeps a byte for each id up to the highest
constexpr std::string_view kKinds = "\x01\x02\x07";

// A file that holds a few records, a signature, a payload, and a pad where the definitions wrap.
class File {
public:
  File() : memory(new (std::align_val_t{64}) char[kBytes]{}) {
    header().head = 5;
    for (uint32_t seq = 0; seq < 5; ++seq) {
      const EventRecord record{.seq = seq,
                               .kind = 1,
                               .flags = 0,
                               .thread = 0,
                               .host_ns = 0,
                               .call = 1,
                               .device = 0,
                               .stream = 0,
                               .sig = 1,
                               .value = 0};
      memcpy(memory + kLayout.records_offset + seq * sizeof record, &record, sizeof record);
    }
    define(MessageType::kSignature, std::string("\1\0\0\0call\nf\n", 11));
    define(MessageType::kPayload, std::string(8, '\2').replace(1, 7, 7, '\0') + "bytes");
  }
  ~File() { ::operator delete[](memory, std::align_val_t{64}); }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  RingHeader &header() { return *reinterpret_cast<RingHeader *>(memory); }
  void define(MessageType type, const std::string &body) {
    const MessageHead head{static_cast<uint32_t>(body.size()), static_cast<uint16_t>(type), 0};
    char *at = memory + kLayout.defs_offset + header().defs_head;
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, body.data(), body.size());
    header().defs_head += (sizeof head + body.size() + 7) & ~uint64_t{7};
  }

  char *memory;
};

Ring open(File &file) {
  return {file.memory, kLayout, kKinds, [](const std::string &body) {
            uint32_t id = 0;
            if (body.size() < sizeof id)
              throw RingError("a short signature");
            memcpy(&id, body.data(), sizeof id);
            if (id == 0 || id >= kSignatures)
              throw RingError("a signature id out of bounds");
            return body.substr(sizeof id);
          }};
}

// Everything that an agent does with a ring.
void use(File &file) {
  Ring ring = open(file);
  for (const uint64_t limit : {128, 1 << 20})
    while (const auto batch = ring.batch(limit, 1)) {
      ring.sent(&*batch);
      ring.taken(ring.messages());
    }
  for (int i = 0; i < 8; ++i)
    ring.deliver(7, std::string(static_cast<size_t>(20 * i), 'x'), 1);
  ring.reply(255, 4, 5, 6, 0);
  ring.publish_clock(9);
}

void whole_ring() {
  File file;
  Ring ring = open(file);
  CHECK(ring.has_news());
  const auto batch = ring.batch(1 << 20, 3);
  CHECK(batch.has_value());
  CHECK(batch->first_seq == 0 && batch->count == 5);
  CHECK(batch->definitions_end == file.header().defs_head);
  CHECK(batch->bytes.substr(0, 4) == "\x08\x03\x18\x05"); // EventBatch.session = 3, EventBatch.count = 5
  const std::string alone = eidolon::agent::pack({&*batch}), both = eidolon::agent::pack({&*batch, &*batch});
  CHECK(alone.substr(0, 1) == "\x1a" && alone.substr(3) == batch->bytes);    // AgentMessage.batch
  CHECK(both.substr(0, 1) == "\x32" && both.size() == 2 * alone.size() + 3); // AgentMessage.batches
  ring.sent(&*batch);
  CHECK(!ring.has_news() && !ring.settled() && file.header().tail == 0);
  ring.taken(1);
  CHECK(ring.settled() && file.header().tail == 5 && file.header().defs_tail == file.header().defs_head);
  ring.release();
  bool refused = false;
  try {
    ring.has_news();
  } catch (const RingError &) {
    refused = true;
  }
  CHECK(refused);
}

void corrupted_rings() {
  std::mt19937_64 random(1);
  const std::vector<uint64_t> numbers{0,          1,          7,          8,         16,    1024, kBytes,
                                      1ull << 31, 1ull << 32, 1ull << 63, ~0ull - 7, ~0ull, 5};
  const std::initializer_list<size_t> fields{offsetof(RingHeader, head),        offsetof(RingHeader, defs_head),
                                             offsetof(RingHeader, inbox_tail),  offsetof(RingHeader, tail),
                                             offsetof(RingHeader, defs_tail),   offsetof(RingHeader, inbox_head),
                                             offsetof(RingHeader, space_wanted)};
  const std::vector<size_t> counters(fields);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    File file;
    for (uint64_t n = random() % 3; n != ~0ull; --n) {
      if (random() % 2 == 0) {
        const uint64_t value = numbers[random() % numbers.size()];
        memcpy(file.memory + counters[random() % counters.size()], &value, sizeof value);
      } else {
        file.memory[kFixed + random() % (kBytes - kFixed)] = static_cast<char>(random());
      }
    }
    try {
      use(file);
    } catch (const RingError &) {
      ++refused;
    }
  }
  CHECK(refused > 1'000 && refused < 20'000);
}

} // namespace

int main() {
  whole_ring();
  corrupted_rings();
  return test::result();
}
