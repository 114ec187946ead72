// NCCL: groups, collectives, sends and receives, custom reductions.
#include "nccl_internal.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

namespace eidolon::nccl {
namespace {

thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local std::vector<Joining> joinings;
thread_local ncclResult_t group_error = ncclSuccess;

// Reads a number of any type from its bytes. Floating-point types are read by the width of their exponent and mantissa.
double number(const char *bytes, ncclDataType_t type) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, bytes_of(type));
  auto floating = [&](int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto mantissa = static_cast<double>(bits & ((uint64_t{1} << mantissa_bits) - 1));
    const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double size = exponent == 0
                            ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                            : std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
    const bool special = exponent == (1 << exponent_bits) - 1 && exponent_bits != 4; // e4m3 has no infinity
    const double value = !special ? size : mantissa == 0 ? HUGE_VAL : std::nan("");
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
  };
  switch (static_cast<int>(type)) {
  case ncclInt8:
    return static_cast<double>(static_cast<int8_t>(bits));
  case ncclInt32:
    return static_cast<double>(static_cast<int32_t>(bits));
  case ncclInt64:
    return static_cast<double>(static_cast<int64_t>(bits));
  case ncclFloat16:
    return floating(5, 10);
  case ncclBfloat16:
    return floating(8, 7);
  case ncclFloat32:
    return floating(8, 23);
  case ncclFloat64:
    return floating(11, 52);
  case 10: // ncclFloat8e4m3, newer than the oldest header
    return floating(4, 3);
  case 11: // ncclFloat8e5m2
    return floating(5, 2);
  default:
    return static_cast<double>(bits);
  }
}

// The bits of a custom reduction's factor. kNone means that it lies on the device and is not known.
int64_t factor_bits(const Call &call) {
  if (call.custom == kNone)
    return kNone;
  Scale scale;
  {
    std::lock_guard hold(call.comm->mutex);
    scale = call.comm->scales[static_cast<size_t>(call.custom)];
  }
  if (scale.on_device != nullptr) {
    char bytes[8];
    if (value_read(scale.on_device, bytes_of(scale.type), bytes) != 0)
      return kNone;
    scale.value = number(bytes, scale.type);
  }
  int64_t bits;
  std::memcpy(&bits, &scale.value, sizeof bits);
  return bits;
}

// Whether a call sends directly to its peers. The other operations follow rings and trees.
bool goes_to_peers(const Call &call) { return call.attributes.peer != kNone || call.name == "all_to_all"; }

ncclResult_t issue(const Call &call, Stream *stream, bool more) {
  DeviceScope scope(call.comm->device);
  if (goes_to_peers(call)) {
    std::lock_guard hold(call.comm->mutex);
    if (ncclResult_t result = connect_peers(call.comm))
      return result;
  }
  signatures::Collective attributes = call.attributes;
  attributes.scale = factor_bits(call);
  Collective collective = call.launch;
  collective.sig = signature(call.name, attributes);
  collective.stream = stream;
  collective.group_more = more;
  return result_of(launch_collective(collective));
}

// Launches the calls of one communicator, in their order, as one launch.
ncclResult_t launch(const std::vector<Call> &run) {
  Stream *stream = run.front().launch.stream;
  DeviceScope scope(run.front().comm->device);
  std::vector<Stream *> others;
  for (const Call &call : run)
    if (Stream *own = call.launch.stream; own != stream && std::find(others.begin(), others.end(), own) == others.end())
      others.push_back(own);
  for (Stream *other : others) {
    if (capture_info(other).id != capture_info(stream).id)
      return fail(ncclInvalidUsage, "some streams of the communicator in this group are captured and some are not");
    if (Status status = stream_follow(stream, other); status != kSuccess)
      return result_of(status);
  }
  for (const Call &call : run)
    if (ncclResult_t result = issue(call, stream, &call != &run.back()))
      return result;
  for (Stream *other : others)
    if (Status status = stream_follow(other, stream); status != kSuccess)
      return result_of(status);
  return ncclSuccess;
}

// Launches the calls of a group, communicator by communicator, in the order in which these first appear.
ncclResult_t issue_all(std::vector<Call> all) {
  while (!all.empty()) {
    const auto rest = std::stable_partition(all.begin(), all.end(),
                                            [first = all.front().comm](const Call &c) { return c.comm == first; });
    if (ncclResult_t result = launch({all.begin(), rest}))
      return result;
    all.erase(all.begin(), rest);
  }
  return ncclSuccess;
}

ncclResult_t finish_group() {
  std::vector<Call> issued = std::move(calls);
  std::vector<Joining> joined = std::move(joinings);
  const ncclResult_t error = group_error;
  calls.clear();
  joinings.clear();
  group_error = ncclSuccess;
  if (error != ncclSuccess)
    return error;
  if (!joined.empty())
    if (ncclResult_t result = join(joined))
      return result;
  return issue_all(std::move(issued));
}

} // namespace

ncclResult_t submit(const Call &call) {
  if (depth > 0) {
    calls.push_back(call);
    return ncclSuccess;
  }
  return issue(call, call.launch.stream, false);
}

ncclResult_t submit(const Joining &joining) {
  if (depth > 0) {
    joinings.push_back(joining);
    return ncclSuccess;
  }
  std::vector<Joining> one = {joining};
  return join(one);
}

namespace {

// A failing call inside a group also fails the group.
ncclResult_t reject(ncclResult_t result, const char *text) {
  if (depth > 0)
    group_error = result;
  return fail(result, "%s", text);
}

bool valid_scale(ncclComm *comm, int at, ncclDataType_t type) {
  std::lock_guard hold(comm->mutex);
  if (static_cast<size_t>(at) >= comm->scales.size())
    return false;
  const Scale &scale = comm->scales[static_cast<size_t>(at)];
  return scale.alive && scale.type == type;
}

struct Buffers {
  const void *send;
  size_t send_count; // elements of this rank, or 0 if it sends none
  void *receive;
  size_t receive_count;
  size_t larger = 0; // elements in the largest buffer of any rank, where this rank's are smaller
};

// Checks and submits one collective. `sent_by_one` is the most that any rank sends, in elements.
ncclResult_t collective(signatures::CollectiveName name, uint16_t id, ncclComm_t comm, cudaStream_t stream,
                        size_t count, ncclDataType_t type, const Buffers &b, size_t sent_by_one, int root = kNone,
                        int peer = kNone, int operation = kNone) {
  if (!valid(comm))
    return reject(ncclInvalidArgument, "this is no communicator");
  if (comm->error != ncclSuccess)
    return reject(ncclInvalidUsage, "the communicator was revoked");
  if (comm->finalized || comm->suspended)
    return reject(ncclInvalidUsage,
                  comm->finalized ? "the communicator is finalized" : "the communicator is suspended");
  if (type < 0 || type >= ncclNumTypes)
    return reject(ncclInvalidArgument, "unknown data type");
  const int custom = operation >= ncclNumOps && operation != INT_MAX ? operation - ncclNumOps : kNone;
  if (operation == INT_MAX || (custom != kNone && !valid_scale(comm, custom, type)))
    return reject(ncclInvalidArgument, "unknown reduction, or one that was made for another type");
  if ((root != kNone && (root < 0 || root >= comm->size)) || (peer != kNone && (peer < 0 || peer >= comm->size)))
    return reject(ncclInvalidArgument, "root or peer is no rank of the communicator");
  if (count == 0)
    return ncclSuccess;
  if ((b.send_count > 0 && b.send == nullptr) || (b.receive_count > 0 && b.receive == nullptr))
    return reject(ncclInvalidArgument, "a buffer is null");
  DeviceScope scope(comm->device);
  Stream *lane = stream_of(stream);
  if (lane == nullptr)
    return reject(ncclInvalidArgument, "this is no stream");
  const size_t element = bytes_of(type), send_bytes = b.send_count * element, receive_bytes = b.receive_count * element;
  const bool pair = peer != kNone;
  if (comm->size == 1 && !pair) { // without peers it is a copy, if the result lies elsewhere
    const size_t bytes = std::min(send_bytes, receive_bytes);
    if (bytes == 0 || b.send == b.receive)
      return ncclSuccess;
    return result_of(copy(b.receive, b.send, bytes, CopyKind::kDeviceToDevice, lane, false, id));
  }
  std::atomic<uint64_t> *position = comm->position;
  if (pair)
    position = &comm->peers[(b.send_count > 0 ? 0 : comm->size) + peer];
  const size_t larger = std::max({send_bytes, receive_bytes, sent_by_one * element, b.larger * element});
  return submit(Call{.comm = comm,
                     .name = name,
                     .attributes = {.comm = static_cast<int64_t>(comm->id),
                                    .count = static_cast<int64_t>(count),
                                    .dtype = type,
                                    .bytes = static_cast<int64_t>(larger),
                                    .root = root,
                                    .peer = peer,
                                    .redop = custom != kNone ? static_cast<int>(ncclNumOps) : operation,
                                    .scale = kNone,
                                    .shots = 0},
                     .custom = custom,
                     .launch = {.sig = 0,
                                .position = position,
                                .turn = comm->turn,
                                .stream = lane,
                                .call = id,
                                .group_more = false,
                                .small = sent_by_one * element <= config().payload_limit && larger <= kLargestResult,
                                .reduces = operation != kNone,
                                .send = b.send_count > 0 ? b.send : nullptr,
                                .send_bytes = send_bytes,
                                .receive = b.receive_count > 0 ? b.receive : nullptr,
                                .receive_bytes = receive_bytes}});
}

// A root, peer or reduction as the caller gave it. A negative one is wrong, and must not look like an absent one.
int given(int value) { return value < 0 ? INT_MAX : value; }
size_t ranks(ncclComm_t comm) { return valid(comm) ? static_cast<size_t>(comm->size) : 0; }
bool is_rank_of(ncclComm_t comm, int root) { return valid(comm) && comm->rank == root; }

} // namespace
} // namespace eidolon::nccl

using namespace eidolon;
using namespace eidolon::nccl;

// ---- groups ------------------------------------------------------------------------------------------------------

EID_NCCL ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclGroupStart);
EID_NCCL ncclGroupEnd() {
  if (depth == 0)
    return fail(ncclInvalidUsage, "ncclGroupEnd was called without ncclGroupStart");
  return --depth > 0 ? ncclSuccess : finish_group();
}
EID_NCCL_ALIAS(ncclGroupEnd);
#if NCCL_VERSION_CODE >= 22200
EID_NCCL ncclGroupSimulateEnd(ncclSimInfo_t *info) {
  unmodelled("nccl", "ncclGroupSimulateEnd");
  if (depth == 0)
    return fail(ncclInvalidUsage, "ncclGroupSimulateEnd was called without ncclGroupStart");
  if (--depth == 0) {
    calls.clear();
    joinings.clear();
    group_error = ncclSuccess;
  }
  if (info != nullptr)
    info->estimatedTime = NCCL_UNDEF_FLOAT;
  return fail(ncclInvalidUsage, "the time of a group cannot be estimated in advance");
}
EID_NCCL_ALIAS(ncclGroupSimulateEnd);
#endif

// ---- collectives -------------------------------------------------------------------------------------------------

EID_NCCL ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                       ncclComm_t comm, cudaStream_t stream) {
  return collective("all_reduce", EID_CALL("ncclAllReduce"), comm, stream, count, type, {send, count, receive, count},
                    count, kNone, kNone, given(operation));
}
EID_NCCL_ALIAS(ncclAllReduce);

EID_NCCL ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root,
                    ncclComm_t comm, cudaStream_t stream) {
  return collective("reduce", EID_CALL("ncclReduce"), comm, stream, count, type,
                    {send, count, receive, is_rank_of(comm, root) ? count : 0}, count, given(root), kNone,
                    given(operation));
}
EID_NCCL_ALIAS(ncclReduce);

EID_NCCL ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  const bool sends = is_rank_of(comm, root);
  const bool receives = !sends || send != receive;
  return collective("broadcast", EID_CALL("ncclBroadcast"), comm, stream, count, type,
                    {send, sends ? count : 0, receive, receives ? count : 0}, count, given(root));
}
EID_NCCL_ALIAS(ncclBroadcast);
EID_NCCL ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
EID_NCCL_ALIAS(ncclBcast);

EID_NCCL ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream) {
  return collective("all_gather", EID_CALL("ncclAllGather"), comm, stream, count, type,
                    {send, count, receive, count * ranks(comm)}, count);
}
EID_NCCL_ALIAS(ncclAllGather);

EID_NCCL ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t all = count * ranks(comm);
  return collective("reduce_scatter", EID_CALL("ncclReduceScatter"), comm, stream, count, type,
                    {send, all, receive, count}, all, kNone, kNone, given(operation));
}
EID_NCCL_ALIAS(ncclReduceScatter);

#if NCCL_VERSION_CODE >= 22800
EID_NCCL ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                      cudaStream_t stream) {
  const size_t all = count * ranks(comm);
  return collective("all_to_all", EID_CALL("ncclAlltoAll"), comm, stream, count, type, {send, all, receive, all}, all);
}
EID_NCCL_ALIAS(ncclAlltoAll);

EID_NCCL ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                    cudaStream_t stream) {
  const size_t all = count * ranks(comm);
  return collective("gather", EID_CALL("ncclGather"), comm, stream, count, type,
                    {send, count, receive, is_rank_of(comm, root) ? all : 0, all}, count, given(root));
}
EID_NCCL_ALIAS(ncclGather);

EID_NCCL ncclScatter(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                     cudaStream_t stream) {
  const size_t all = count * ranks(comm);
  return collective("scatter", EID_CALL("ncclScatter"), comm, stream, count, type,
                    {send, is_rank_of(comm, root) ? all : 0, receive, count}, all, given(root));
}
EID_NCCL_ALIAS(ncclScatter);
#endif

EID_NCCL ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return collective("send", EID_CALL("ncclSend"), comm, stream, count, type, {send, count, nullptr, 0}, count, kNone,
                    given(peer));
}
EID_NCCL_ALIAS(ncclSend);
EID_NCCL ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return collective("recv", EID_CALL("ncclRecv"), comm, stream, count, type, {nullptr, 0, receive, count}, count, kNone,
                    given(peer));
}
EID_NCCL_ALIAS(ncclRecv);

// ---- custom reductions -------------------------------------------------------------------------------------------

EID_NCCL ncclRedOpCreatePreMulSum(ncclRedOp_t *operation, void *scalar, ncclDataType_t type,
                                  ncclScalarResidence_t residence, ncclComm_t comm) {
  if (!valid(comm) || operation == nullptr || scalar == nullptr || type < 0 || type >= ncclNumTypes)
    return ncclInvalidArgument;
  const bool on_device = residence == ncclScalarDevice;
  std::lock_guard hold(comm->mutex);
  *operation = static_cast<ncclRedOp_t>(ncclNumOps + comm->scales.size()); // no number is used twice
  comm->scales.push_back({.alive = true,
                          .type = type,
                          .value = on_device ? 0 : number(static_cast<const char *>(scalar), type),
                          .on_device = on_device ? scalar : nullptr});
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclRedOpCreatePreMulSum);
EID_NCCL ncclRedOpDestroy(ncclRedOp_t operation, ncclComm_t comm) {
  if (!valid(comm) || operation < ncclNumOps)
    return ncclInvalidArgument;
  const auto at = static_cast<size_t>(operation - ncclNumOps);
  std::lock_guard hold(comm->mutex);
  if (at >= comm->scales.size() || !comm->scales[at].alive)
    return ncclInvalidArgument;
  comm->scales[at].alive = false;
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclRedOpDestroy);
