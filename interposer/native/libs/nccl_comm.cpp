// NCCL: versions, unique ids, the life of communicators, and their memory.
#include "device_attributes.h"
#include "nccl_internal.h"
#include "wheel_version.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>

namespace eidolon::nccl {
namespace {

thread_local char last_error[256];

// The unique id as text. For one that was made here, only its own bytes are taken.
std::string hex(const ncclUniqueId &id) {
  size_t bytes = sizeof(id.internal);
  while (bytes > 16 && id.internal[bytes - 1] == 0)
    --bytes;
  std::string out;
  for (size_t i = 0; i < bytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(id.internal[i]);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

// In a folded run the core has to know which ranks of the run are members, since some of them are no processes. The
// hook writes their list where a program names NCCL's network, of which nothing else here depends.
std::string members_of(const ncclConfig_t *config) {
  constexpr std::string_view kMark = "eidolon@";
  const char *name = config == nullptr ? nullptr : config->netName;
  return name != nullptr && std::string_view(name).starts_with(kMark) ? name + kMark.size() : "";
}

// The name of a communicator with its members, as signatures have it.
std::string listed(const std::string &name, const std::string &members) {
  return members.empty() ? name : name + "@" + members;
}

ncclComm *make(std::string name, int rank, int size, int device) {
  auto *comm = new (std::nothrow) ncclComm;
  if (comm == nullptr)
    return nullptr;
  comm->name = std::move(name);
  comm->id = hash_of(comm->name);
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  return comm;
}

// Makes position counters, which are never freed but stay reachable.
std::atomic<uint64_t> *counters(size_t count) {
  static std::mutex mutex;
  static auto *all = new std::vector<std::atomic<uint64_t> *>;
  std::lock_guard hold(mutex);
  return all->emplace_back(new std::atomic<uint64_t>[count]());
}

// Takes the device memory that a setting names, as a physical allocation. NCCL's own memory lies outside the addresses
// of cudaMalloc too.
ncclResult_t take(int device, ConfKey key, uint64_t &handle) {
  const auto bytes = static_cast<size_t>(setting_number(key));
  if (bytes == 0 || handle != 0)
    return ncclSuccess;
  if (vmm_create(device, (bytes + kVmmGranularity - 1) / kVmmGranularity * kVmmGranularity, &handle) != kSuccess)
    return fail(ncclUnhandledCudaError, "out of device memory: %s", key.text());
  return ncclSuccess;
}

void give_back(uint64_t &handle) {
  if (handle != 0)
    vmm_release(handle);
  handle = 0;
}

// Takes the memory for channels and buffers. A communicator with one member has no peers and needs none. The first
// communicator on a device also loads NCCL's kernels, which stay.
ncclResult_t take_memory(ncclComm *comm) {
  if (comm->size == 1)
    return ncclSuccess;
  static std::mutex mutex;
  static std::map<int, uint64_t> kernels;
  {
    std::lock_guard hold(mutex);
    if (ncclResult_t result = take(comm->device, "nccl.kernel_bytes", kernels[comm->device]))
      return result;
  }
  return take(comm->device, "nccl.comm_bytes", comm->memory);
}

// Sets up a member once its rank and the size are known.
ncclResult_t complete(ncclComm *comm) {
  comm->position = counters(1 + 2 * static_cast<size_t>(comm->size));
  comm->peers = comm->position + 1;
  if (comm->turn == nullptr)
    comm->turn = turn_create();
  return take_memory(comm);
}

// The signature of a communicator. It has what the environment asks of NCCL, which the core's tuner follows.
uint32_t comm_signature(const ncclComm &comm) {
  const char *nvls = getenv("NCCL_NVLS_ENABLE");
  int version = NCCL_VERSION_CODE;
  ncclGetVersion(&version);
  const signatures::Comm fields = {.id = static_cast<int64_t>(comm.id),
                                   .rank = comm.rank,
                                   .size = comm.size,
                                   .device = server_device(comm.device),
                                   .algorithms = chosen(getenv("NCCL_ALGO"), kNcclAlgorithms),
                                   .protocols = chosen(getenv("NCCL_PROTO"), kNcclProtocols),
                                   .nvls = nvls == nullptr || strcmp(nvls, "0") != 0,
                                   .version = version};
  return signature(listed(comm.name, comm.members).c_str(), fields);
}

uint32_t split_signature(const Joining &j) {
  const std::string name = listed(j.parent->name + "/split" + std::to_string(j.position), j.comm->members);
  const signatures::Split fields = {.parent = static_cast<int64_t>(j.parent->id),
                                    .position = static_cast<int64_t>(j.position),
                                    .color = j.color,
                                    .key = j.key,
                                    .rank = j.parent->rank,
                                    .size = j.parent->size,
                                    .device = server_device(j.parent->device)};
  return signature(name.c_str(), fields);
}

// Asks for this member's place in its new communicator. Without a simulation core there are no peers to ask, and a
// split keeps the parent's members.
void place(Joining &j) {
  DeviceScope scope(j.parent->device);
  const Reply reply =
      ask({.kind = Kind::kCommInit, .call = EID_CALL("ncclCommSplit"), .sig = split_signature(j), .value = 0});
  if (config().null_core || !is_rank()) {
    j.comm->rank = j.parent->rank;
    j.comm->size = j.color < 0 ? 0 : j.parent->size;
    return;
  }
  j.comm->rank = static_cast<int>(reply.value >> 32);
  j.comm->size = reply.value < 0 ? 0 : static_cast<int>(reply.value & 0xFFFFFFFF);
}

void drop(ncclComm *comm) {
  comm->magic = 0;
  for (const auto &[handle, buffer] : comm->buffers)
    delete static_cast<Registration *>(handle);
  give_back(comm->memory);
  give_back(comm->peer_memory);
  delete comm; // its counters stay
}

// Whether more members of the communicator of `all[i]` follow in `all`.
bool more_of_it(const std::vector<Joining> &all, size_t i) {
  return std::any_of(all.begin() + static_cast<ptrdiff_t>(i) + 1, all.end(),
                     [&](const Joining &j) { return j.comm != nullptr && j.comm->id == all[i].comm->id; });
}

} // namespace

ncclResult_t connect_peers(ncclComm *comm) {
  return comm->size == 1 ? ncclSuccess : take(comm->device, "nccl.peer_bytes", comm->peer_memory);
}

ncclResult_t fail(ncclResult_t result, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return result;
}

namespace {

// What the core answers to a member of a new communicator: 0, -2 - r where rank r is on the same device, or -1 where
// that is so for two other ranks. NCCL's ranks refuse to share a device, in these words (init.cc, initTransportsRank).
ncclResult_t made(int64_t answer, const ncclComm &comm) {
  if (answer >= 0)
    return ncclSuccess;
  if (answer == -1)
    return fail(ncclRemoteError, "another rank of the communicator shares its device and has left");
  return fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %llx", comm.rank,
              static_cast<int>(-2 - answer), static_cast<unsigned long long>(pci_number(comm.device)));
}

} // namespace

ncclResult_t join(std::vector<Joining> &all) {
  // Splits come first, since each waits for the choices of the other members. Several splits of one parent in one
  // thread wait side by side.
  std::vector<Joining *> splits;
  for (Joining &j : all)
    if (j.split)
      splits.push_back(&j);
  if (splits.size() == 1)
    place(*splits[0]);
  else if (!splits.empty()) {
    std::vector<std::thread> waiting;
    for (Joining *j : splits)
      waiting.emplace_back([j] { place(*j); });
    for (std::thread &one : waiting)
      one.join();
  }
  for (Joining &j : all) {
    if (!j.split)
      continue;
    if (j.comm->size == 0) { // without a color this member gets no communicator
      drop(j.comm);
      j.comm = nullptr;
      *j.out = nullptr;
      continue;
    }
    j.comm->name = j.parent->name + "/split" + std::to_string(j.position) + "." + std::to_string(j.color);
    j.comm->id = hash_of(j.comm->name);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    ncclComm *comm = all[i].comm;
    if (comm == nullptr)
      continue;
    if (ncclResult_t result = complete(comm))
      return result;
    DeviceScope scope(comm->device);
    const Event event = {.kind = Kind::kCommInit, .call = EID_CALL("ncclCommInitRank"), .sig = comm_signature(*comm)};
    if (more_of_it(all, i)) { // the last member of this process waits for all
      emit(event);
      continue;
    }
    if (ncclResult_t result = made(ask(event).value, *comm)) {
      drop(comm);
      *all[i].out = nullptr;
      return result;
    }
  }
  return ncclSuccess;
}

namespace {

// A configuration that nobody initialised is refused, as NCCL does. What it asks for (blocking or not, CTAs) changes no
// result here, because every call is done when it returns. Communicators that share resources launch one at a time.
bool valid(const ncclConfig_t *config) { return config == nullptr || config->magic == 0xcafebeef; }

ncclResult_t init(ncclComm_t *out, int size, std::string name, int rank, const ncclConfig_t *config) {
  if (!valid(config))
    return fail(ncclInvalidArgument, "the configuration is not initialised (NCCL_CONFIG_INITIALIZER)");
  if (out == nullptr || size < 1 || rank < 0 || rank >= size)
    return fail(ncclInvalidArgument, "rank %d does not exist in a communicator of %d ranks", rank, size);
  if (context() != kSuccess)
    return fail(ncclUnhandledCudaError, "no CUDA context");
  ncclComm *comm = make(std::move(name), rank, size, current_device());
  if (comm == nullptr)
    return ncclSystemError;
  comm->members = members_of(config);
  *out = comm;
  return submit(Joining{.comm = comm, .out = out});
}

} // namespace
} // namespace eidolon::nccl

using namespace eidolon;
using namespace eidolon::nccl;

// ---- the library -------------------------------------------------------------------------------------------------

EID_NCCL ncclGetVersion(int *version) {
  if (version == nullptr)
    return ncclInvalidArgument;
  static const int code = [] {
    int parts[3] = {NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};
    wheel_version("nccl/include/nccl.h", {"NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"}, parts);
    return NCCL_VERSION(parts[0], parts[1], parts[2]);
  }();
  *version = code;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclGetVersion);

EID_NCCL ncclGetUniqueId(ncclUniqueId *id) {
  if (id == nullptr)
    return ncclInvalidArgument;
  std::memset(id, 0, sizeof(*id));
  if (getrandom(id->internal, 16, 0) != 16)
    return ncclSystemError;
  id->internal[15] |= 1; // so that a reader can tell its length
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclGetUniqueId);

extern "C" EID_API const char *ncclGetErrorString(ncclResult_t result) {
  switch (static_cast<int>(result)) {
  case ncclSuccess:
    return "no error";
  case ncclUnhandledCudaError:
    return "unhandled cuda error (emulated device)";
  case ncclSystemError:
    return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
  case ncclInternalError:
    return "internal error";
  case ncclInvalidArgument:
    return "invalid argument (run with NCCL_DEBUG=WARN for details)";
  case ncclInvalidUsage:
    return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  case ncclRemoteError:
    return "remote process exited or there was a network error";
  case ncclInProgress:
    return "NCCL operation in progress";
  case 8: // ncclTimeout, newer than the oldest header
    return "timeout";
  default:
    return "unknown result code";
  }
}
EID_NCCL_ALIAS(ncclGetErrorString);
extern "C" EID_API const char *ncclGetLastError(ncclComm_t) { return last_error; }
EID_NCCL_ALIAS(ncclGetLastError);

// ---- making communicators ----------------------------------------------------------------------------------------

EID_NCCL ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return init(comm, size, hex(id), rank, config);
}
EID_NCCL_ALIAS(ncclCommInitRankConfig);
EID_NCCL ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
  return init(comm, size, hex(id), rank, nullptr);
}
EID_NCCL_ALIAS(ncclCommInitRank);
EID_NCCL ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int ids, ncclUniqueId *id,
                                  ncclConfig_t *config) {
  if (ids < 1 || ids > size || id == nullptr)
    return fail(ncclInvalidArgument, "%d unique ids were given for %d ranks", ids, size);
  return init(comm, size, hex(id[0]), rank, config);
}
EID_NCCL_ALIAS(ncclCommInitRankScalable);

EID_NCCL ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
  if (comms == nullptr || count < 1)
    return ncclInvalidArgument;
  ncclUniqueId id;
  if (ncclResult_t result = ncclGetUniqueId(&id))
    return result;
  std::vector<Joining> all;
  for (int i = 0; i < count; ++i) {
    const int device = devices != nullptr ? devices[i] : i;
    if (!valid_device(device))
      return fail(ncclUnhandledCudaError, "device %d does not exist: there are %d", device, device_count());
    if (std::any_of(all.begin(), all.end(), [&](const Joining &j) { return j.comm->device == device; }))
      return fail(ncclInvalidUsage, "device %d is given twice", device);
    DeviceScope scope(device);
    if (context() != kSuccess)
      return fail(ncclUnhandledCudaError, "no CUDA context on device %d", device);
    comms[i] = make(hex(id), i, count, device);
    if (comms[i] == nullptr)
      return ncclSystemError;
    all.push_back({.comm = comms[i], .out = &comms[i]});
  }
  return join(all);
}
EID_NCCL_ALIAS(ncclCommInitAll);

EID_NCCL ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
  if (!usable(parent) || out == nullptr || color < NCCL_SPLIT_NOCOLOR || !valid(config))
    return fail(ncclInvalidArgument, "the communicator cannot be split with color %d", color);
  ncclComm *comm = make("", 0, 0, parent->device);
  if (comm == nullptr)
    return ncclSystemError;
  if (config != nullptr && config->splitShare == 1)
    comm->turn = parent->turn;
  comm->members = members_of(config);
  *out = color == NCCL_SPLIT_NOCOLOR ? nullptr : comm;
  return submit(Joining{.comm = comm,
                        .split = true,
                        .parent = parent,
                        .position = parent->children.fetch_add(1),
                        .color = color,
                        .key = key,
                        .out = out});
}
EID_NCCL_ALIAS(ncclCommSplit);

// All members that stay know who stays, so no choices are exchanged.
EID_NCCL ncclCommShrink(ncclComm_t parent, int *excluded, int count, ncclComm_t *out, ncclConfig_t *config, int flags) {
  if (!valid(parent) || parent->finalized || out == nullptr || count < 1 || excluded == nullptr || !valid(config) ||
      (flags != 0 && flags != 1)) // 1: NCCL_SHRINK_ABORT; the parent may have been revoked
    return fail(ncclInvalidArgument, "the communicator cannot be shrunk by %d ranks with flags %d", count, flags);
  std::vector<int> gone(excluded, excluded + count);
  std::sort(gone.begin(), gone.end());
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  std::string name = parent->name + "/shrink" + std::to_string(parent->children.fetch_add(1));
  int before = 0;
  for (int rank : gone) {
    if (rank < 0 || rank >= parent->size || rank == parent->rank)
      return fail(ncclInvalidArgument, "rank %d cannot be excluded: it is no other member", rank);
    before += rank < parent->rank;
    name += "-" + std::to_string(rank);
  }
  ncclComm *comm =
      make(std::move(name), parent->rank - before, parent->size - static_cast<int>(gone.size()), parent->device);
  if (comm == nullptr)
    return ncclSystemError;
  *out = comm;
  return submit(Joining{.comm = comm, .out = out});
}
EID_NCCL_ALIAS(ncclCommShrink);

// Growing (since NCCL 2.30). Existing members know the parent. New members know the unique id, which is made of the
// parent's name.
#if NCCL_VERSION_CODE < 23000
EID_NCCL ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
EID_NCCL ncclCommGrow(ncclComm_t parent, int size, const ncclUniqueId *id, int rank, ncclComm_t *out,
                      ncclConfig_t *config);
#endif
static ncclUniqueId growth_of(const ncclComm *parent, uint64_t position) {
  ncclUniqueId id = {};
  const uint64_t words[2] = {parent->id,
                             hash_of(parent->name + "/grow" + std::to_string(position)) | uint64_t{1} << 56};
  std::memcpy(id.internal, words, sizeof words);
  return id;
}
EID_NCCL ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id) {
  if (!usable(comm) || id == nullptr)
    return ncclInvalidArgument;
  if (comm->grows.exchange(true))
    return fail(ncclInvalidUsage, "the unique id that was asked for before is not used yet");
  *id = growth_of(comm, comm->children);
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommGetUniqueId);
EID_NCCL ncclCommGrow(ncclComm_t parent, int size, const ncclUniqueId *id, int rank, ncclComm_t *out,
                      ncclConfig_t *config) {
  if (parent == nullptr)
    return id == nullptr ? ncclInvalidArgument : init(out, size, hex(*id), rank, config);
  if (!usable(parent) || out == nullptr || rank != -1 || size <= parent->size || !valid(config))
    return fail(ncclInvalidArgument,
                "the communicator cannot grow from %d to %d ranks with rank %d given (-1 is allowed)",
                usable(parent) ? parent->size : 0, size, rank);
  parent->grows = false;
  DeviceScope scope(parent->device);
  return init(out, size, hex(growth_of(parent, parent->children.fetch_add(1))), parent->rank, config);
}
EID_NCCL_ALIAS(ncclCommGrow);

// ---- asking and ending -------------------------------------------------------------------------------------------

EID_NCCL ncclCommCount(const ncclComm_t comm, int *count) {
  if (!valid(comm) || count == nullptr)
    return ncclInvalidArgument;
  *count = comm->size;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommCount);
EID_NCCL ncclCommCuDevice(const ncclComm_t comm, int *device) {
  if (!valid(comm) || device == nullptr)
    return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommCuDevice);
EID_NCCL ncclCommUserRank(const ncclComm_t comm, int *rank) {
  if (!valid(comm) || rank == nullptr)
    return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommUserRank);
EID_NCCL ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  if (!valid(comm) || error == nullptr)
    return ncclInvalidArgument;
  *error = static_cast<ncclResult_t>(comm->error.load());
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommGetAsyncError);

EID_NCCL ncclCommFinalize(ncclComm_t comm) {
  if (!valid(comm) || comm->finalized.exchange(true))
    return fail(ncclInvalidArgument, "this is no communicator, or it was finalized before");
  host_cost(EID_CALL("ncclCommFinalize"));
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommFinalize);

static ncclResult_t end(ncclComm_t comm, uint16_t call) {
  if (comm == nullptr)
    return ncclSuccess;
  if (!valid(comm))
    return ncclInvalidArgument;
  {
    DeviceScope scope(comm->device);
    emit({.kind = Kind::kCommDestroy, .call = call, .value = comm->id});
  }
  drop(comm);
  return ncclSuccess;
}
EID_NCCL ncclCommDestroy(ncclComm_t comm) { return end(comm, EID_CALL("ncclCommDestroy")); }
EID_NCCL_ALIAS(ncclCommDestroy);
EID_NCCL ncclCommAbort(ncclComm_t comm) { return end(comm, EID_CALL("ncclCommAbort")); }
EID_NCCL_ALIAS(ncclCommAbort);
#if NCCL_VERSION_CODE >= 22800
EID_NCCL ncclCommRevoke(ncclComm_t comm, int flags) {
  if (!valid(comm) || flags != 0)
    return ncclInvalidArgument;
  comm->error = ncclInvalidUsage; // calls on it fail from now on
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommRevoke);
#endif

// ---- memory of a communicator (2.30) -----------------------------------------------------------------------------

#if NCCL_VERSION_CODE < 23000
typedef enum {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;
EID_NCCL ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
EID_NCCL ncclCommSuspend(ncclComm_t comm, int flags);
EID_NCCL ncclCommResume(ncclComm_t comm);
#endif
EID_NCCL ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value) {
  if (!valid(comm) || value == nullptr)
    return ncclInvalidArgument;
  uint64_t bytes = 0;
  if (comm->memory != 0)
    bytes += static_cast<uint64_t>(setting_number("nccl.comm_bytes"));
  if (comm->peer_memory != 0)
    bytes += static_cast<uint64_t>(setting_number("nccl.peer_bytes"));
  *value = stat == ncclStatGpuMemSuspended ? uint64_t{comm->suspended.load()}
           : stat == ncclStatGpuMemPersist ? 0
                                           : bytes;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommMemStats);
// Gives the communicator's memory back until it is resumed. Calls on it fail in between.
EID_NCCL ncclCommSuspend(ncclComm_t comm, int flags) {
  if (!usable(comm) || flags != 1 || comm->suspended.exchange(true)) // 1: NCCL_SUSPEND_MEM
    return fail(ncclInvalidArgument, "the communicator cannot be suspended with flags %d", flags);
  give_back(comm->memory);
  give_back(comm->peer_memory); // it is taken again by the next send
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommSuspend);
EID_NCCL ncclCommResume(ncclComm_t comm) {
  if (!valid(comm) || !comm->suspended)
    return fail(ncclInvalidArgument, "this is no suspended communicator");
  if (ncclResult_t result = take_memory(comm))
    return result;
  comm->suspended = false;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclCommResume);
