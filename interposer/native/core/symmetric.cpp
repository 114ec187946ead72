// Kernels of symmetric memory: torch's own, which reach into the memory of their peers and wait for them.
//
// torch.distributed._symmetric_memory has each rank of a group map the physical memory of all others
// (virtual_memory.cpp), part of which are signal pads. A kernel that works on it takes the addresses of all pads, in
// the order of the ranks, and waits at the pads until every peer has come. So a launch is one member's part in a
// collective, and is told to the core as one. Its communicator is the group, which the physical memory behind the pads
// names: every member finds the same. Nobody has to wait for its making.
//
// Signals between two ranks have no such order, and what multicast objects would do is not known (cuda_vmm.cpp refuses
// them). Kernels that need one of these end the run.
#include <atomic>
#include <cstring>
#include <map>

#include "internal.h"
#include "symmetric.h"

namespace eidolon {
namespace {

struct Group {
  int64_t id;
  std::atomic<uint64_t> position{0};
};

// A kernel's arguments by place, and the number of bytes that integers have among them.
struct Places {
  int pads, rank, integer_bytes;
};
Places places_of(Symmetric what) {
  switch (what) {
  case Symmetric::kBarrier: // (pads, channel, rank, size, ...)
    return {0, 2, 4};
  case Symmetric::kOneShot: // (buffers, output, input, offset, count, pads, rank, size)
    return {5, 6, 8};
  case Symmetric::kTwoShotInPlace: // (buffers, offset, count, pads, rank, size)
    return {3, 4, 8};
  default: // (buffers, output, offset, count, pads, rank, size, ...)
    return {4, 5, 8};
  }
}

template <class T> T argument(const Launch &launch, int place) {
  T value;
  memcpy(&value, launch.arguments[place], sizeof value);
  return value;
}

int64_t integer(const Launch &launch, int place, int bytes) {
  return bytes == 4 ? argument<int32_t>(launch, place) : argument<int64_t>(launch, place);
}

// Pointers that a kernel finds in device memory.
std::vector<char *> pointers_at(const void *array, size_t count, const char *kernel) {
  std::vector<char *> out(count);
  if (value_read(array, count * sizeof(char *), out.data()) != 0)
    fatal("%s: the addresses of its peers' memory are not known", kernel);
  return out;
}

Group *group_of(const std::vector<char *> &pads, const char *kernel) {
  static std::mutex mutex;
  static auto *all = new std::map<std::string, Group *>; // stay reachable
  std::string name;
  for (const char *pad : pads) {
    const PhysicalOrigin origin = vmm_origin(pad);
    if (origin.pid == 0)
      fatal("%s: %p is no memory that ranks share", kernel, static_cast<const void *>(pad));
    name += (name.empty() ? "" : ",") + std::to_string(origin.pid) + ":" + std::to_string(origin.server_device) + ":" +
            std::to_string(origin.number);
  }
  std::lock_guard hold(mutex);
  Group *&group = (*all)[name];
  if (group == nullptr) {
    group = new Group{static_cast<int64_t>(hash_of(name))};
    signature(name.c_str(), signatures::Symmetric{.id = group->id});
  }
  return group;
}

} // namespace

Symmetric symmetric_kernel(const char *name) {
  if (strstr(name, "PPjm") == nullptr && strstr(name, "PPji") == nullptr)
    return Symmetric::kNo; // no parameter is an array of signal pads
  if (strstr(name, "symmetric_memory14barrier_kernel") != nullptr)
    return Symmetric::kBarrier;
  if (strstr(name, "26one_shot_all_reduce_kernelI") != nullptr)
    return Symmetric::kOneShot;
  if (strstr(name, "34two_shot_all_reduce_kernel_inplaceI") != nullptr)
    return Symmetric::kTwoShotInPlace;
  // Its template: <T, alignment, size, scatters, splits the last dimension>.
  if (strstr(name, "26two_shot_all_reduce_kernelI") != nullptr)
    return strstr(name, "ELb1ELb1EEE") != nullptr   ? Symmetric::kScatterLast
           : strstr(name, "ELb1ELb0EEE") != nullptr ? Symmetric::kScatter
                                                    : Symmetric::kTwoShot;
  for (const char *other : {"put_signal_kernel", "wait_signal_kernel", "multimem_"})
    if (strstr(name, other) != nullptr)
      return Symmetric::kNotModelled;
  return Symmetric::kNo;
}

Status launch_symmetric(Symmetric what, const Launch &launch) {
  if (what == Symmetric::kNotModelled || launch.arguments == nullptr)
    fatal("%s: signals between two ranks and multicast are not modelled in symmetric memory", launch.name);
  const Places at = places_of(what);
  const auto size = static_cast<size_t>(integer(launch, at.rank + 1, at.integer_bytes));
  const auto rank = static_cast<size_t>(integer(launch, at.rank, at.integer_bytes));
  if (size == 0 || size > kMaxDevices || rank >= size)
    fatal("%s: rank %zu of %zu", launch.name, rank, size);
  Group *group = group_of(pointers_at(argument<const void *>(launch, at.pads), size, launch.name), launch.name);
  Collective collective{.sig = 0,
                        .position = &group->position,
                        .stream = launch.stream,
                        .call = launch.call,
                        .group_more = false,
                        .watched = false,
                        .small = false,
                        .send = nullptr,
                        .send_bytes = 0,
                        .receive = nullptr,
                        .receive_bytes = 0};
  signatures::Collective fields = {.comm = group->id,
                                   .count = 0,
                                   .dtype = 0,
                                   .bytes = 0,
                                   .root = -1,
                                   .peer = -1,
                                   .redop = -1,
                                   .scale = -1,
                                   .shots = 1};
  if (what == Symmetric::kBarrier) {
    collective.sig = signature("barrier", fields);
    return launch_collective(collective);
  }
  constexpr int kFloat32 = 7, kBfloat16 = 9; // ncclDataType_t; torch has no others here
  const bool half = strstr(launch.name, "8BFloat16") != nullptr;
  const size_t element = half ? 2 : 4, count = argument<uint64_t>(launch, at.pads - 1), bytes = count * element;
  const bool scatters = what == Symmetric::kScatter || what == Symmetric::kScatterLast;
  char *buffer = pointers_at(argument<const void *>(launch, 0), size, launch.name)[rank] +
                 argument<uint64_t>(launch, at.pads - 2) * element;
  const auto input = what == Symmetric::kOneShot ? argument<char *>(launch, 2) : nullptr;
  collective.reduces = true;
  collective.send = input != nullptr ? input : buffer;
  collective.send_bytes = bytes;
  collective.receive = what == Symmetric::kTwoShotInPlace ? buffer : argument<char *>(launch, 1);
  collective.receive_bytes = scatters ? bytes / size : bytes;
  collective.small = bytes <= config().payload_limit && what != Symmetric::kScatterLast; // that one is no plain part
  if (collective.send != collective.receive && what != Symmetric::kOneShot)
    value_unknown(buffer, bytes); // it keeps the sums there
  fields.count = static_cast<int64_t>(scatters ? count / size : count);
  fields.dtype = half ? kBfloat16 : kFloat32;
  fields.bytes = static_cast<int64_t>(bytes);
  fields.redop = 0;
  fields.shots = what == Symmetric::kOneShot || scatters ? 1 : 2;
  collective.sig = scatters ? signature("reduce_scatter", fields) : signature("all_reduce", fields);
  return launch_collective(collective);
}

} // namespace eidolon
