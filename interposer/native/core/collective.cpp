// Collectives: their records, their payloads, and the turns that those of one communicator take.
#include <vector>

#include "internal.h"

namespace eidolon {
struct Turn {
  std::mutex mutex;
  uint64_t lane = 0; // the stream that had it last
  uint64_t key = 0;  // recorded behind what had it; 0: nothing yet
};

Turn *turn_create() {
  static std::mutex mutex;
  static auto *all = new std::vector<Turn *>; // stay reachable
  std::lock_guard hold(mutex);
  return all->emplace_back(new Turn);
}

namespace {

void take_turn(Turn *turn, Stream *lane, uint8_t flags) {
  std::lock_guard hold(turn->mutex);
  if (turn->key != 0 && turn->lane != lane->id)
    emit({.kind = Kind::kStreamWait, .flags = flags, .stream = lane, .value = turn->key});
  turn->lane = lane->id;
}

void pass_turn(Turn *turn, Stream *lane, uint8_t flags) {
  std::lock_guard hold(turn->mutex);
  turn->key = next_event_key();
  emit({.kind = Kind::kEventRecord, .flags = flags, .stream = lane, .value = turn->key});
}

} // namespace

Status launch_collective(const Collective &c) {
  auto issue = [=](Stream *lane, uint8_t flags, uint16_t call) {
    // Nobody learns anything from a reduction of which one part is unknown, so its bytes stay at home.
    const bool moves =
        c.small && c.send_bytes + c.receive_bytes > 0 && !(c.reduces && value_nothing_known(c.send, c.send_bytes));
    order_with_default(lane);
    if (c.turn != nullptr)
      take_turn(c.turn, lane, flags);
    const uint8_t plain = flags;
    if (c.group_more)
      flags |= kGroupMore;
    if (moves)
      flags |= kPayload;
    uint64_t seq = emit({.kind = Kind::kCollective,
                         .flags = flags,
                         .call = call,
                         .stream = lane,
                         .sig = c.sig,
                         .value = c.position->fetch_add(1)});
    lane->last_seq = seq + 1;
    if (c.turn != nullptr && !c.group_more)
      pass_turn(c.turn, lane, plain);
    progress_launched(lane->device);
    if (ring_header() == nullptr) { // null core: every other rank is taken to have sent what this one did
      const size_t part = moves ? c.send_bytes : 0;
      if (part == 0 || c.receive_bytes % part != 0) {
        value_unknown(c.receive, c.receive_bytes);
        return;
      }
      for (size_t at = 0; at < c.receive_bytes; at += part)
        if (char *to = static_cast<char *>(c.receive) + at; to != c.send)
          value_copy(to, c.send, part);
      return;
    }
    if (moves && c.send_bytes != 0)
      value_send(seq, c.send, c.send_bytes);
    if (moves && c.receive_bytes != 0)
      value_receive(seq, c.receive, c.receive_bytes);
    else if (c.receive_bytes != 0)
      value_unknown(c.receive, c.receive_bytes);
  };
  if (capture_node(c.stream, NodeType::kKernel, [=](Stream *lane, uint8_t flags) { issue(lane, flags, 0); }))
    return kSuccess;
  if (c.watched)
    progress_collective(c.stream);
  count_library_call();
  issue(c.stream, 0, c.call);
  return kSuccess;
}

} // namespace eidolon
