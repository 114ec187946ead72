// NCCL: groups, collectives, sends and receives, custom reductions.
#include "nccl_internal.h"

#include <algorithm>
#include <climits>

namespace eidolon::nccl {
namespace {

thread_local int depth = 0;
thread_local std::vector<Call> calls;
thread_local std::vector<Joining> joinings;
thread_local ncclResult_t group_error = ncclSuccess;

ncclResult_t issue(const Call &call, bool more) {
  DeviceScope scope(call.comm->device);
  const Attribute attributes[] = {{"comm", static_cast<int64_t>(call.comm->id)},
                                  {"count", static_cast<int64_t>(call.count)},
                                  {"dtype", call.type},
                                  {"bytes", static_cast<int64_t>(call.bytes)},
                                  {"root", call.root},
                                  {"peer", call.peer},
                                  {"redop", call.operation}};
  const Collective collective = {.sig = signature("collective", call.name, attributes, std::size(attributes)),
                                 .position = call.position,
                                 .stream = call.stream,
                                 .call = call.id,
                                 .group_more = more,
                                 .small = call.small,
                                 .send = call.send,
                                 .send_bytes = call.send_bytes,
                                 .receive = call.receive,
                                 .receive_bytes = call.receive_bytes};
  return result_of(launch_collective(collective));
}

// Runs of one communicator and stream, in the order in which they first appear; inside a run, the order of the calls.
ncclResult_t issue_all(std::vector<Call> all) {
  std::vector<bool> done(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (done[i])
      continue;
    std::vector<size_t> run;
    for (size_t k = i; k < all.size(); ++k)
      if (!done[k] && all[k].comm == all[i].comm && all[k].stream == all[i].stream) {
        run.push_back(k);
        done[k] = true;
      }
    for (size_t k : run)
      if (ncclResult_t result = issue(all[k], k != run.back()))
        return result;
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
  return issue(call, false);
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

struct Buffers {
  const void *send;
  size_t send_count; // elements of this rank; 0: it sends none
  void *receive;
  size_t receive_count;
  size_t larger = 0; // the larger buffer of any rank, where this one's are smaller
};

// Checks and submits one collective. `sent_by_one` is the most that any rank sends, in elements.
ncclResult_t collective(const char *name, uint16_t id, ncclComm_t comm, cudaStream_t stream, size_t count,
                        ncclDataType_t type, const Buffers &b, size_t sent_by_one, int root = kNone, int peer = kNone,
                        int operation = kNone) {
  if (!valid(comm))
    return reject(ncclInvalidArgument, "not a communicator");
  if (comm->error != ncclSuccess)
    return reject(ncclInvalidUsage, "the communicator was revoked");
  if (type < 0 || type >= ncclNumTypes)
    return reject(ncclInvalidArgument, "unknown data type");
  if (operation != kNone && (operation < 0 || operation >= ncclNumOps + comm->custom_operations))
    return reject(ncclInvalidArgument, "unknown reduction");
  if ((root != kNone && (root < 0 || root >= comm->size)) || (peer != kNone && (peer < 0 || peer >= comm->size)))
    return reject(ncclInvalidArgument, "root or peer is no rank of the communicator");
  if (count == 0)
    return ncclSuccess;
  if ((b.send_count > 0 && b.send == nullptr) || (b.receive_count > 0 && b.receive == nullptr))
    return reject(ncclInvalidArgument, "a buffer is null");
  DeviceScope scope(comm->device);
  Stream *lane = stream_of(stream);
  if (lane == nullptr)
    return reject(ncclInvalidArgument, "not a stream");
  const size_t element = bytes_of(type), send_bytes = b.send_count * element, receive_bytes = b.receive_count * element;
  const bool pair = peer != kNone;
  if (comm->size == 1 && !pair) { // alone: a copy, if the result lies elsewhere
    const size_t bytes = std::min(send_bytes, receive_bytes);
    if (bytes == 0 || b.send == b.receive)
      return ncclSuccess;
    return result_of(copy(b.receive, b.send, bytes, 3, lane, false, id));
  }
  std::atomic<uint64_t> *position = comm->position;
  if (pair)
    position = &comm->peers[(b.send_count > 0 ? 0 : comm->size) + peer];
  const bool custom = operation >= ncclNumOps;
  return submit(Call{.comm = comm,
                     .stream = lane,
                     .name = name,
                     .id = id,
                     .position = position,
                     .count = count,
                     .type = type,
                     .bytes = std::max({send_bytes, receive_bytes, sent_by_one * element, b.larger * element}),
                     .root = root,
                     .peer = peer,
                     .operation = custom ? static_cast<int>(ncclNumOps) : operation,
                     .small = !custom && sent_by_one * element <= config().payload_limit,
                     .send = b.send_count > 0 ? b.send : nullptr,
                     .send_bytes = send_bytes,
                     .receive = b.receive_count > 0 ? b.receive : nullptr,
                     .receive_bytes = receive_bytes});
}

// A root, peer or reduction as given: a negative one is wrong, not absent.
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
    return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --depth > 0 ? ncclSuccess : finish_group();
}
EID_NCCL_ALIAS(ncclGroupEnd);
#if NCCL_VERSION_CODE >= 22200
EID_NCCL ncclGroupSimulateEnd(ncclSimInfo_t *info) {
  unmodelled("nccl", "ncclGroupSimulateEnd");
  if (depth == 0)
    return fail(ncclInvalidUsage, "ncclGroupSimulateEnd without ncclGroupStart");
  if (--depth == 0) {
    calls.clear();
    joinings.clear();
    group_error = ncclSuccess;
  }
  if (info != nullptr)
    info->estimatedTime = NCCL_UNDEF_FLOAT;
  return fail(ncclInvalidUsage, "the time of a group is not estimated ahead");
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

EID_NCCL ncclRedOpCreatePreMulSum(ncclRedOp_t *operation, void *scalar, ncclDataType_t, ncclScalarResidence_t,
                                  ncclComm_t comm) {
  if (!valid(comm) || operation == nullptr || scalar == nullptr)
    return ncclInvalidArgument;
  *operation = static_cast<ncclRedOp_t>(ncclNumOps + comm->custom_operations.fetch_add(1));
  return ncclSuccess;
}
EID_NCCL_ALIAS(ncclRedOpCreatePreMulSum);
EID_NCCL ncclRedOpDestroy(ncclRedOp_t operation, ncclComm_t comm) {
  if (!valid(comm) || operation < ncclNumOps || operation >= ncclNumOps + comm->custom_operations)
    return ncclInvalidArgument;
  return ncclSuccess; // its number is not used again
}
EID_NCCL_ALIAS(ncclRedOpDestroy);
