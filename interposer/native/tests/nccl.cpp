// NCCL in one process without a simulation behind it (mode=null): communicators, groups, what collectives
// leave behind.
#include <nccl.h>

#include <vector>

#include "core.h"
#include "harness.h"
#include "nccl_internal.h"

using namespace eidolon;

static void *known(size_t bytes, char value = 7) {
  void *pointer;
  CHECK_EQUAL(mem_alloc(current_device(), bytes, &pointer), kSuccess);
  std::vector<char> data(bytes, value);
  value_write(pointer, bytes, data.data());
  return pointer;
}

static void ids_differ_and_versions_agree() {
  ncclUniqueId a, b;
  CHECK_EQUAL(ncclGetUniqueId(&a), ncclSuccess);
  CHECK_EQUAL(ncclGetUniqueId(&b), ncclSuccess);
  CHECK(memcmp(&a, &b, sizeof(a)) != 0);
  int version, profiled;
  CHECK_EQUAL(ncclGetVersion(&version), ncclSuccess);
  CHECK_EQUAL(pncclGetVersion(&profiled), ncclSuccess);
  CHECK_EQUAL(version, NCCL_VERSION_CODE);
  CHECK_EQUAL(profiled, version);
  CHECK_EQUAL(strcmp(ncclGetErrorString(ncclSuccess), "no error"), 0);
}

static void the_environment_narrows_the_choice() {
  using namespace eidolon::nccl;
  CHECK_EQUAL(chosen(nullptr, kNcclAlgorithms), 0);
  CHECK_EQUAL(chosen("", kNcclAlgorithms), 0);
  CHECK_EQUAL(chosen("Ring", kNcclAlgorithms), 2);
  CHECK_EQUAL(chosen("allreduce:tree,NVLSTree", kNcclAlgorithms), 1 + 8);
  CHECK_EQUAL(chosen("^NVLS,NVLSTree", kNcclAlgorithms), 1 + 2 + 16 + 32);
  CHECK_EQUAL(chosen("nonsense", kNcclProtocols), 0);
  CHECK_EQUAL(chosen("LL128,Simple", kNcclProtocols), 2 + 4);
}

// It is called before all other communicators.
static void the_first_communicator_with_peers_takes_memory_for_nccls_kernels_and_it_stays() {
  auto free_mib = [] {
    size_t now;
    mem_info(0, &now, nullptr);
    return now >> 20;
  };
  const size_t before = free_mib();
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t alone, first, second;
  CHECK_EQUAL(ncclCommInitRank(&alone, 1, id, 0), ncclSuccess);
  CHECK_EQUAL(free_mib(), before);
  CHECK_EQUAL(ncclCommInitRank(&first, 2, id, 0), ncclSuccess);
  CHECK_EQUAL(free_mib(), before - 16 - 8);
  CHECK_EQUAL(ncclCommInitRank(&second, 2, id, 1), ncclSuccess);
  CHECK_EQUAL(free_mib(), before - 16 - 2 * 8);
  for (ncclComm_t each : {alone, first, second})
    CHECK_EQUAL(ncclCommDestroy(each), ncclSuccess);
  CHECK_EQUAL(free_mib(), before - 16);
}

static void a_communicator_knows_its_place() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  CHECK_EQUAL(ncclCommInitRank(&comm, 4, id, 4), ncclInvalidArgument);
  CHECK_EQUAL(ncclCommInitRank(&comm, 4, id, 2), ncclSuccess);
  int value;
  ncclCommCount(comm, &value);
  CHECK_EQUAL(value, 4);
  ncclCommUserRank(comm, &value);
  CHECK_EQUAL(value, 2);
  ncclCommCuDevice(comm, &value);
  CHECK_EQUAL(value, 0);
  ncclResult_t error;
  CHECK_EQUAL(ncclCommGetAsyncError(comm, &error), ncclSuccess);
  CHECK_EQUAL(error, ncclSuccess);
  // Ranks 0 and 3 leave: what was 2 of 4 is 1 of 2.
  int gone[] = {3, 0, 3};
  ncclComm_t smaller;
  CHECK_EQUAL(ncclCommShrink(comm, gone, 3, &smaller, nullptr, 0), ncclSuccess);
  ncclCommCount(smaller, &value);
  CHECK_EQUAL(value, 2);
  ncclCommUserRank(smaller, &value);
  CHECK_EQUAL(value, 1);
  ncclComm_t none = comm;
  CHECK_EQUAL(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr), ncclSuccess);
  CHECK(none == nullptr);
  ncclComm_t child;
  CHECK_EQUAL(ncclCommSplit(comm, 1, 0, &child, nullptr), ncclSuccess);
  ncclCommCount(child, &value);
  CHECK_EQUAL(value, 4); // nobody to ask: the parent's members
  for (ncclComm_t each : {child, smaller, comm}) {
    CHECK_EQUAL(ncclCommFinalize(each), ncclSuccess);
    CHECK_EQUAL(ncclCommDestroy(each), ncclSuccess);
  }
}

static void collectives_leave_what_can_be_known() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm;
  CHECK_EQUAL(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  // Small: as if the others had sent the same.
  auto *send = static_cast<char *>(known(64, 5)), *receive = static_cast<char *>(known(64));
  char back[64];
  auto holds = [&](int at) { return value_read(receive, 64, back) == 0 ? back[at] : -1; };
  CHECK_EQUAL(ncclAllGather(send, receive, 1, ncclFloat64, comm, nullptr), ncclSuccess);
  CHECK(holds(0) == 5 && holds(15) == 5 && holds(16) == 7);
  CHECK_EQUAL(ncclAllReduce(send, receive, 8, ncclFloat32, ncclMax, comm, nullptr), ncclSuccess);
  CHECK(holds(0) == 5 && holds(31) == 5 && holds(32) == 7);
  // Large: forgotten.
  const size_t large = config().payload_limit + 4;
  auto *from = static_cast<char *>(known(large)), *to = static_cast<char *>(known(2 * large));
  CHECK_EQUAL(ncclAllReduce(from, to, large / 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(value_known(to, large), 0);
  CHECK_EQUAL(value_known(to + large, large), large);
  CHECK_EQUAL(ncclAllGather(from, to, large, ncclInt8, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(value_known(to + large, large), 0);
  mem_free(from);
  mem_free(to);
  CHECK_EQUAL(ncclReduce(send, receive + 32, 4, ncclFloat32, ncclSum, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(value_known(receive + 32, 32), 32); // rank 1 is the root
  CHECK_EQUAL(ncclRecv(receive + 32, 8, ncclInt8, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(value_known(receive + 32, 8), 0);
  CHECK_EQUAL(value_known(send, 64), 64);
  // What NCCL refuses.
  CHECK_EQUAL(ncclBroadcast(send, send, 4, ncclFloat32, 2, comm, nullptr), ncclInvalidArgument);
  CHECK_EQUAL(ncclSend(send, 4, ncclFloat32, -1, comm, nullptr), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(send, send, 4, ncclNumTypes, ncclSum, comm, nullptr), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(send, send, 4, ncclFloat32, static_cast<ncclRedOp_t>(5), comm, nullptr),
              ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(nullptr, send, 4, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess); // nothing to do
  ncclRedOp_t scaled;
  float factor = 0.5;
  CHECK_EQUAL(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
  CHECK_EQUAL(ncclAllReduce(send, receive, 4, ncclFloat32, scaled, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(value_known(receive, 16), 16);
  CHECK_EQUAL(ncclAllReduce(send, send, 4, ncclFloat64, scaled, comm, nullptr), ncclInvalidArgument); // made for floats
  ncclRedOp_t on_device;
  CHECK_EQUAL(ncclRedOpCreatePreMulSum(&on_device, send, ncclFloat32, ncclScalarDevice, comm), ncclSuccess);
  CHECK(on_device != scaled);
  CHECK_EQUAL(ncclAllReduce(send, receive, 4, ncclFloat32, on_device, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclRedOpDestroy(scaled, comm), ncclSuccess);
  CHECK_EQUAL(ncclRedOpDestroy(scaled, comm), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(send, send, 4, ncclFloat32, scaled, comm, nullptr), ncclInvalidArgument);
  ncclCommDestroy(comm);
}

static void a_group_is_issued_at_its_end() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm;
  CHECK_EQUAL(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  auto *buffer = static_cast<char *>(known(32));
  CHECK_EQUAL(ncclGroupEnd(), ncclInvalidUsage);
  ncclGroupStart();
  ncclGroupStart();
  CHECK_EQUAL(ncclSend(buffer, 8, ncclInt8, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclRecv(buffer + 8, 8, ncclInt8, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclGroupEnd(), ncclSuccess);
  CHECK_EQUAL(value_known(buffer + 8, 8), 8); // not yet
  CHECK_EQUAL(ncclGroupEnd(), ncclSuccess);
  CHECK_EQUAL(value_known(buffer + 8, 8), 0);
  CHECK_EQUAL(value_known(buffer, 8), 8);
  ncclGroupStart(); // one bad call fails the group, and nothing of it is issued
  CHECK_EQUAL(ncclRecv(buffer, 8, ncclInt8, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclRecv(buffer, 8, ncclInt8, 5, comm, nullptr), ncclInvalidArgument);
  CHECK_EQUAL(ncclGroupEnd(), ncclInvalidArgument);
  CHECK_EQUAL(value_known(buffer, 8), 8);
  ncclCommDestroy(comm);
}

static void a_group_mixes_communicators_collectives_sends_and_splits() {
  ncclUniqueId id, other_id;
  ncclGetUniqueId(&id);
  ncclGetUniqueId(&other_id);
  ncclComm_t comm, other, child = nullptr;
  CHECK_EQUAL(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  CHECK_EQUAL(ncclCommInitRank(&other, 2, other_id, 1), ncclSuccess);
  auto *sum = static_cast<char *>(known(32, 5)), *got = static_cast<char *>(known(32)),
       *all = static_cast<char *>(known(32));
  ncclGroupStart();
  CHECK_EQUAL(ncclAllReduce(sum, sum, 8, ncclFloat32, ncclMax, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclSend(sum, 8, ncclInt8, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclRecv(got, 8, ncclInt8, 1, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclAllGather(sum, all, 16, ncclInt8, other, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclSuccess);
  CHECK_EQUAL(value_known(got, 8), 8); // nothing is done yet
  CHECK_EQUAL(ncclGroupEnd(), ncclSuccess);
  CHECK_EQUAL(value_known(got, 8), 0);
  CHECK_EQUAL(value_known(sum, 32), 32);
  char back[32];
  CHECK_EQUAL(value_read(all, 32, back), 0);
  CHECK(back[0] == 5 && back[31] == 5);
  int members;
  CHECK_EQUAL(ncclCommCount(child, &members), ncclSuccess);
  CHECK_EQUAL(members, 2);
  for (ncclComm_t each : {child, other, comm})
    CHECK_EQUAL(ncclCommDestroy(each), ncclSuccess);
  for (char *each : {sum, got, all})
    mem_free(each);
}

static void one_process_holds_several_devices() {
  ncclComm_t comms[2];
  CHECK_EQUAL(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  CHECK_EQUAL(current_device(), 0);
  int value;
  ncclCommCuDevice(comms[1], &value);
  CHECK_EQUAL(value, 1);
  ncclCommUserRank(comms[1], &value);
  CHECK_EQUAL(value, 1);
  ncclComm_t alone;
  int last = 1;
  CHECK_EQUAL(ncclCommInitAll(&alone, 1, &last), ncclSuccess);
  set_current_device(1);
  void *from = known(16), *to = known(16);
  const char mark = 9;
  value_write(from, 1, &mark);
  CHECK_EQUAL(ncclAllReduce(from, to, 16, ncclInt8, ncclSum, alone, nullptr), ncclSuccess); // alone: a copy
  char read = 0;
  CHECK_EQUAL(value_read(to, 1, &read), 0);
  CHECK_EQUAL(read, mark);
  set_current_device(0);
  for (ncclComm_t each : {comms[0], comms[1], alone})
    CHECK_EQUAL(ncclCommDestroy(each), ncclSuccess);
}

// Declared since 2.30 only.
extern "C" ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId *);
extern "C" ncclResult_t ncclCommGrow(ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *);
extern "C" ncclResult_t ncclCommSuspend(ncclComm_t, int);
extern "C" ncclResult_t ncclCommResume(ncclComm_t);
extern "C" ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t, void **);

static void registered_memory_has_a_handle_and_a_window_knows_its_buffer() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm;
  CHECK_EQUAL(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  void *memory, *handle, *user;
  CHECK_EQUAL(ncclMemAlloc(&memory, 4096), ncclSuccess);
  CHECK_EQUAL(ncclCommRegister(comm, memory, 4096, &handle), ncclSuccess);
  CHECK_EQUAL(ncclCommRegister(comm, &id, 16, &user), ncclInvalidArgument); // not on a device
  CHECK_EQUAL(ncclCommRegister(comm, memory, 0, &user), ncclInvalidArgument);
  CHECK_EQUAL(ncclCommDeregister(comm, handle), ncclSuccess);
  CHECK_EQUAL(ncclCommDeregister(comm, handle), ncclInvalidArgument);
  ncclWindow_t window;
  CHECK_EQUAL(ncclCommWindowRegister(comm, memory, 4096, &window, 64), ncclInvalidArgument);
  CHECK_EQUAL(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
  CHECK_EQUAL(ncclWinGetUserPtr(comm, window, &user), ncclSuccess);
  CHECK(user == memory);
  CHECK_EQUAL(ncclCommWindowDeregister(comm, window), ncclSuccess);
  CHECK_EQUAL(ncclWinGetUserPtr(comm, window, &user), ncclInvalidArgument);
  CHECK_EQUAL(ncclMemFree(memory), ncclSuccess);
  ncclCommDestroy(comm);
}

static void a_communicator_ends_in_order_or_at_once() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclConfig_t nobody = {}, config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm, other;
  CHECK_EQUAL(ncclCommInitRankConfig(&comm, 2, id, 0, &nobody), ncclInvalidArgument);
  CHECK_EQUAL(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclSuccess);
  ncclUniqueId ids[2] = {id, id};
  CHECK_EQUAL(ncclCommInitRankScalable(&other, 2, 0, 3, ids, &config), ncclInvalidArgument);
  CHECK_EQUAL(ncclCommInitRankScalable(&other, 2, 0, 2, ids, &config), ncclSuccess);
  void *buffer = known(16);
  CHECK_EQUAL(ncclCommFinalize(comm), ncclSuccess);
  CHECK_EQUAL(ncclCommFinalize(comm), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage);
  CHECK_EQUAL(ncclCommDestroy(comm), ncclSuccess);
  CHECK_EQUAL(ncclCommRevoke(other, 0), ncclSuccess);
  ncclResult_t error;
  CHECK_EQUAL(ncclCommGetAsyncError(other, &error), ncclSuccess);
  CHECK_EQUAL(error, ncclInvalidUsage);
  CHECK_EQUAL(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, other, nullptr), ncclInvalidUsage);
  int gone[] = {1};
  ncclComm_t rest; // what is left of a revoked one goes on
  CHECK_EQUAL(ncclCommShrink(other, gone, 1, &rest, nullptr, NCCL_SHRINK_ABORT), ncclSuccess);
  CHECK_EQUAL(ncclCommShrink(other, gone, 0, &rest, nullptr, 0), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, rest, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclCommAbort(rest), ncclSuccess);
  CHECK_EQUAL(ncclCommAbort(other), ncclSuccess);
  CHECK_EQUAL(ncclCommAbort(nullptr), ncclSuccess);
  mem_free(buffer);
}

static void a_communicator_grows_by_members_that_know_its_unique_id() {
  ncclUniqueId id, more, again;
  ncclGetUniqueId(&id);
  ncclComm_t root, other, larger, same, joined;
  CHECK_EQUAL(ncclCommInitRank(&root, 2, id, 0), ncclSuccess);
  CHECK_EQUAL(ncclCommInitRank(&other, 2, id, 1), ncclSuccess);
  CHECK_EQUAL(ncclCommGetUniqueId(root, &more), ncclSuccess);
  CHECK_EQUAL(ncclCommGetUniqueId(root, &again), ncclInvalidUsage);
  CHECK_EQUAL(ncclCommGrow(root, 2, &more, -1, &larger, nullptr), ncclInvalidArgument); // not more than before
  CHECK_EQUAL(ncclCommGrow(root, 3, &more, -1, &larger, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclCommGrow(other, 3, nullptr, -1, &same, nullptr), ncclSuccess);
  CHECK_EQUAL(ncclCommGrow(nullptr, 3, &more, 2, &joined, nullptr), ncclSuccess);
  for (ncclComm_t each : {larger, same, joined})
    CHECK(each->name == larger->name && each->size == 3);
  CHECK_EQUAL(joined->rank, 2);
  for (ncclComm_t each : {root, other, larger, same, joined})
    CHECK_EQUAL(ncclCommDestroy(each), ncclSuccess);
}

static void a_communicator_takes_device_memory_until_it_ends_or_is_suspended() {
  void *buffer = known(16);
  size_t before;
  mem_info(0, &before, nullptr);
  auto taken = [&] {
    size_t now;
    mem_info(0, &now, nullptr);
    return (before - now) >> 20;
  };
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm, alone;
  CHECK_EQUAL(ncclCommInitRank(&alone, 1, id, 0), ncclSuccess);
  CHECK_EQUAL(taken(), 0); // no peers, no buffers
  CHECK_EQUAL(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);
  CHECK_EQUAL(taken(), 8);
  CHECK_EQUAL(ncclCommSuspend(comm, 1), ncclSuccess);
  CHECK_EQUAL(taken(), 0);
  CHECK_EQUAL(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage);
  CHECK_EQUAL(ncclCommResume(comm), ncclSuccess);
  CHECK_EQUAL(ncclCommResume(comm), ncclInvalidArgument);
  CHECK_EQUAL(ncclAllReduce(buffer, buffer, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  CHECK_EQUAL(taken(), 8);
  for (int i = 0; i < 2; ++i) { // once, at the first send
    CHECK_EQUAL(ncclSend(buffer, 4, ncclFloat32, 1, comm, nullptr), ncclSuccess);
    CHECK_EQUAL(taken(), 8 + 4);
  }
  CHECK_EQUAL(ncclCommDestroy(comm), ncclSuccess);
  CHECK_EQUAL(ncclCommDestroy(alone), ncclSuccess);
  CHECK_EQUAL(taken(), 0);
  mem_free(buffer);
}

extern "C" ncclResult_t ncclPutSignal(const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
                                      unsigned, ncclComm_t, cudaStream_t);
extern "C" ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);

static void what_reaches_into_another_ranks_memory_is_refused_in_words() {
  char byte = 0;
  CHECK_EQUAL(ncclPutSignal(&byte, 1, ncclInt8, 1, nullptr, 0, 0, 0, 0, nullptr, nullptr), ncclInvalidUsage);
  CHECK(strstr(ncclGetLastError(nullptr), "ncclPutSignal: access to the memory of another rank is not emulated"));
  void *pointer;
  CHECK_EQUAL(pncclGetPeerDevicePointer(nullptr, 0, 1, &pointer), ncclInvalidUsage);
}

static void memory_comes_in_whole_chunks() {
  size_t before, after;
  mem_info(0, &before, nullptr);
  void *pointer;
  CHECK_EQUAL(ncclMemAlloc(&pointer, 100), ncclSuccess);
  mem_info(0, &after, nullptr);
  CHECK_EQUAL(before - after, kVmmGranularity);
  CHECK_EQUAL(ncclMemFree(pointer), ncclSuccess);
  mem_info(0, &after, nullptr);
  CHECK_EQUAL(before, after);
}

int main() {
  test::enter_server("mode=null\ndevices=2\ngpu.memory_bytes=1073741824\ngpu.context_bytes=0\ngpu.cc=9.0\n"
                     "nccl.kernel_bytes=16777216\nnccl.comm_bytes=8388608\nnccl.peer_bytes=4194304\n");
  CHECK_EQUAL(ensure_context(0), kSuccess);
  ids_differ_and_versions_agree();
  the_first_communicator_with_peers_takes_memory_for_nccls_kernels_and_it_stays();
  the_environment_narrows_the_choice();
  a_communicator_knows_its_place();
  collectives_leave_what_can_be_known();
  a_group_is_issued_at_its_end();
  a_group_mixes_communicators_collectives_sends_and_splits();
  one_process_holds_several_devices();
  registered_memory_has_a_handle_and_a_window_knows_its_buffer();
  a_communicator_ends_in_order_or_at_once();
  a_communicator_grows_by_members_that_know_its_unique_id();
  a_communicator_takes_device_memory_until_it_ends_or_is_suspended();
  what_reaches_into_another_ranks_memory_is_refused_in_words();
  memory_comes_in_whole_chunks();
  return test::result();
}
