// The fake NCCL: communicators, the calls of a group, and how both reach the simulation core.
//
// A communicator is a name that all its members compute alike (the unique id and the path of splits), its hash, and
// position counters: the nth call of each member is the same collective; sends and receives are counted per peer and
// direction. Calls inside a group are collected per thread and issued at its end.
//
// NCCL launches one kernel for all calls of a group on one communicator. It goes to the stream of the first call; it
// waits for the other streams, and they wait for it. Each launch also waits for the communicator's launch before it,
// whatever its stream: profiler traces show that kernels of one communicator never run side by side. Splits that share
// the parent's resources (splitShare) take turns with the parent. Other children are on their own.
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
// The factor of a custom reduction (ncclRedOpCreatePreMulSum). A factor on the device is read when the reduction is
// issued.
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
  std::string members; // in a folded run: the ranks of the run that its members are, as the hook has written them
  uint64_t id = 0;
  int rank = 0, size = 0, device = 0;
  // Device memory for channels and buffers (nccl.comm_bytes), and for sends to peers (nccl.peer_bytes). 0 means none.
  uint64_t memory = 0, peer_memory = 0;
  std::atomic<uint64_t> children{0};
  std::mutex mutex;                           // guards what follows
  std::vector<eidolon::nccl::Scale> scales;   // custom reductions, by their number behind NCCL's own
  std::unordered_map<void *, void *> buffers; // registrations and windows: handle to buffer
  std::atomic<bool> grows{false};             // a unique id for more members was given out
  // Counters live for ever: captured collectives take positions when their graph is replayed.
  std::atomic<uint64_t> *position = nullptr;
  std::atomic<uint64_t> *peers = nullptr; // first the sends to each peer, then the receives from each
  eidolon::Turn *turn = nullptr;          // of its launches; it is never freed either
  std::atomic<int> error{ncclSuccess};
  std::atomic<bool> finalized{false}, suspended{false};
};

namespace eidolon::nccl {

inline constexpr int kNone = -1; // the value of a signature's attribute that does not apply
// No member gets more than this from one payload, so that a message to a rank holds it, and its inbox too.
inline constexpr size_t kLargestResult = 1 << 20;

// The bytes of an element: 1, 2, 4 or 8.
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
// Whether calls may still be made on the communicator.
inline bool usable(const ncclComm *comm) {
  return valid(comm) && comm->error == ncclSuccess && !comm->finalized && !comm->suspended;
}

// One collective, ready to be issued.
struct Call {
  ncclComm *comm;
  signatures::CollectiveName name;
  signatures::Collective attributes; // without the factor of a custom reduction, which is read when it is issued
  int custom = kNone;                // place of that factor in the communicator
  Collective launch;                 // on the caller's stream; its signature is made when it is issued
};

// Registered memory or a window. Its address is the handle. Registration changes no time here, so NCCL's figures for
// memory that is not registered hold for both.
struct Registration {
  void *buffer;
};

// A communicator whose members are still to be told.
struct Joining {
  ncclComm *comm;
  // For a split: the parent's place and this member's choice. To shrink or to make a communicator needs no exchange of
  // choices.
  bool split = false;
  ncclComm *parent = nullptr;
  uint64_t position = 0;
  int color = 0, key = 0;
  ncclComm_t *out = nullptr;
};

// Inside a group these are kept until its end. Otherwise they are done now.
ncclResult_t submit(const Call &call);
ncclResult_t submit(const Joining &joining);
// Makes the communicators. Those of one thread are announced together.
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

// What NCCL_ALGO or NCCL_PROTO allows, as bits by the place in a list of the vocabulary. The text has names with commas
// between them. A `^` in front means all but those named, and a `function:` in front is ignored. 0 means that any is
// allowed.
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

// Takes the memory for sends to peers, once. The caller holds the communicator's mutex.
ncclResult_t connect_peers(ncclComm *comm);

// Sets the text that ncclGetLastError gives, and returns `result`.
ncclResult_t fail(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));

} // namespace eidolon::nccl

#define EID_NCCL extern "C" EID_API ncclResult_t
// Exports the same function for the profiling interface, under its name with a p in front.
#define EID_NCCL_ALIAS(name) extern "C" EID_API decltype(name) p##name __attribute__((alias(#name)))
