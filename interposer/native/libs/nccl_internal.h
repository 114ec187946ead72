// The fake NCCL: communicators, the calls of a group, and how both reach the simulation core.
//
// A communicator is a name that all its members compute alike (the unique id and the path of splits), its hash, and
// position counters: the nth call of each member is the same collective; sends and receives are counted per peer and
// direction. Calls inside a group are collected per thread and issued at its end.
//
// NCCL launches one kernel for a communicator's calls of a group, on the stream of the first of them; the other streams
// wait for it, and it for them. Each launch waits for the communicator's launch before it, whatever its stream (seen in
// profiler traces: kernels of one communicator never run side by side). Splits that share the parent's resources
// (splitShare) take turns with it; other children are on their own.
#pragma once
#include <nccl.h>
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core.h"
#include "status.h"

namespace eidolon::nccl {
// The factor of a custom reduction (ncclRedOpCreatePreMulSum). On the device it is read when the reduction is issued.
struct Scale {
  bool alive;
  ncclDataType_t type;
  double value;
  const void *on_device;
};
} // namespace eidolon::nccl

struct ncclComm {
  static constexpr uint64_t kAlive = 0x4549444e43434c01;
  uint64_t magic = kAlive;
  std::string name;
  uint64_t id = 0;
  int rank = 0, size = 0, device = 0;
  // Device memory (0: none): channels and buffers, and what sends to peers need (nccl.comm_bytes, nccl.peer_bytes).
  uint64_t memory = 0, peer_memory = 0;
  std::atomic<uint64_t> children{0};
  std::mutex mutex;                           // of what follows
  std::vector<eidolon::nccl::Scale> scales;   // custom reductions, by their number behind NCCL's own
  std::unordered_map<void *, void *> buffers; // registrations and windows: handle to buffer
  std::atomic<bool> grows{false};             // a unique id for more members was given out
  // Counters live for ever: captured collectives take positions when their graph is replayed.
  std::atomic<uint64_t> *position = nullptr;
  std::atomic<uint64_t> *peers = nullptr; // sends to each peer, then receives from each
  eidolon::Turn *turn = nullptr;          // of its launches; likewise
  std::atomic<int> error{ncclSuccess};
  std::atomic<bool> finalized{false}, suspended{false};
};

namespace eidolon::nccl {

inline constexpr int kNone = -1; // of a signature attribute that does not apply
// No member gets more than this from one payload: a message to a rank holds it, and so does its inbox.
inline constexpr size_t kLargestResult = 1 << 20;

// 63 bits, so that signed and unsigned readers agree.
class Hash {
public:
  void add(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      hash_ = (hash_ ^ static_cast<const unsigned char *>(data)[i]) * 0x100000001b3;
  }
  uint64_t get() const { return hash_ >> 1; }

private:
  uint64_t hash_ = 0xcbf29ce484222325;
};
inline uint64_t hash_of(const std::string &text) {
  Hash hash;
  hash.add(text.data(), text.size());
  return hash.get();
}

// Elements are of 1, 2, 4 or 8 bytes.
inline size_t bytes_of(ncclDataType_t type) {
  switch (type) {
  case ncclFloat16:
  case ncclBfloat16:
    return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32:
    return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64:
    return 8;
  default:
    return 1; // 8-bit integers and floats
  }
}

inline bool valid(const ncclComm *comm) { return comm != nullptr && comm->magic == ncclComm::kAlive; }
// Calls may still be made on it.
inline bool usable(const ncclComm *comm) {
  return valid(comm) && comm->error == ncclSuccess && !comm->finalized && !comm->suspended;
}

// One collective, ready to be issued.
struct Call {
  ncclComm *comm;
  Stream *stream;
  signatures::CollectiveName name;
  uint16_t id;
  std::atomic<uint64_t> *position;
  size_t count;
  ncclDataType_t type;
  size_t bytes; // of one rank's larger buffer
  int root = kNone, peer = kNone, operation = kNone;
  int custom = kNone; // place of its factor in the communicator
  bool small;
  const void *send;
  size_t send_bytes;
  void *receive;
  size_t receive_bytes;
};

// A communicator whose members are still to be told.
struct Joining {
  ncclComm *comm;
  // A split: the parent's place and this member's choice. Shrinking and new communicators need no exchange of choices.
  bool split = false;
  ncclComm *parent = nullptr;
  uint64_t position = 0;
  int color = 0, key = 0;
  ncclComm_t *out = nullptr;
};

// In a group: kept until its end. Else done now.
ncclResult_t submit(const Call &call);
ncclResult_t submit(const Joining &joining);
// Does them: several in one thread are told together.
ncclResult_t join(std::vector<Joining> &all);

inline ncclResult_t result_of(Status status) {
  switch (status) {
  case kSuccess:
    return ncclSuccess;
  case kInvalidValue:
  case kInvalidHandle:
    return ncclInvalidArgument;
  default:
    return ncclUnhandledCudaError;
  }
}

// What NCCL_ALGO or NCCL_PROTO allows, as bits by place in a list of the vocabulary: names with commas, `^` for all but
// those named, `function:` in front ignored. 0: any.
template <size_t N> int64_t chosen(const char *text, const char *const (&names)[N]) {
  if (text == nullptr)
    return 0;
  std::string list = text;
  list.erase(0, list.rfind(':') + 1); // npos + 1 is 0
  const bool others = !list.empty() && list[0] == '^';
  int64_t mask = 0;
  for (size_t at = others ? 1 : 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string word = list.substr(at, comma - at);
    for (size_t i = 0; i < N; ++i)
      if (strcasecmp(word.c_str(), names[i]) == 0)
        mask |= int64_t{1} << i;
    at = comma + 1;
  }
  return others ? ((int64_t{1} << N) - 1) & ~mask : mask;
}

// Takes the memory for sends to peers, once; under the communicator's mutex.
ncclResult_t connect_peers(ncclComm *comm);

// The text that ncclGetLastError gives; returns `result`.
ncclResult_t fail(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));

} // namespace eidolon::nccl

#define EID_NCCL extern "C" EID_API ncclResult_t
// The profiling interface: the same function under the name with a p.
#define EID_NCCL_ALIAS(name) extern "C" EID_API decltype(name) p##name __attribute__((alias(#name)))
