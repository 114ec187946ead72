// NVML: device memory, and the processes that hold it.
#include "nvml_device.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

using namespace eidolon;
using namespace eidolon::nvml;

namespace {

struct Process {
  unsigned pid;
  unsigned long long bytes;
};

// Reads from another rank's ring file how many bytes it holds on a device. This process's own file must not be opened
// here: to close a file drops this process's record locks on it, and the lock on its own ring says that this rank
// lives.
unsigned long long ring_bytes(const char *path, int device) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return 0;
  unsigned long long bytes = 0;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  bool alive = fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  void *map = alive ? mmap(nullptr, sizeof(RingHeader), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  if (map != MAP_FAILED) {
    auto *ring = static_cast<RingHeader *>(map);
    if (lseek(file, 0, SEEK_END) >= static_cast<off_t>(sizeof(RingHeader)) &&
        std::memcmp(ring->magic, kRingMagic, sizeof kRingMagic) == 0)
      bytes = static_cast<unsigned long long>(ring->used_bytes[device].load());
    munmap(map, sizeof(RingHeader));
  }
  close(file);
  return bytes;
}

// Lists the processes that hold memory on a device, this one first, then the other ranks of the server.
unsigned processes_on(int device, Process *out, unsigned capacity) {
  unsigned count = 0;
  auto add = [&](unsigned pid, unsigned long long bytes) {
    if (bytes != 0 && count < capacity)
      out[count] = {pid, bytes};
    count += bytes != 0;
  };
  add(static_cast<unsigned>(getpid()), server_memory_used(device));
  char path[1024];
  std::snprintf(path, sizeof path, "%s/ranks", config().dir);
  DIR *ranks = opendir(path);
  while (dirent *entry = ranks ? readdir(ranks) : nullptr) { // <pid>-<n>.ring
    char *end = nullptr;
    unsigned long pid = std::strtoul(entry->d_name, &end, 10);
    if (pid == 0 || *end != '-' || pid == static_cast<unsigned long>(getpid()))
      continue;
    std::snprintf(path, sizeof path, "%s/ranks/%s", config().dir, entry->d_name);
    add(static_cast<unsigned>(pid), ring_bytes(path, device));
  }
  if (ranks)
    closedir(ranks);
  return count;
}

// NVML's protocol: *count is the caller's capacity on entry and the number of processes on return.
template <class Info> nvmlReturn_t list_processes(nvmlDevice_t handle, unsigned *count, Info *infos, bool compute) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  Process found[256];
  unsigned capacity = *count;
  unsigned present = compute ? processes_on(device, found, 256) : 0;
  *count = present;
  if (present > capacity)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  if (present && !infos)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < present && i < 256; i++) {
    infos[i] = {};
    infos[i].pid = found[i].pid;
    infos[i].usedGpuMemory = found[i].bytes;
    if constexpr (requires { infos[i].gpuInstanceId; })
      infos[i].gpuInstanceId = infos[i].computeInstanceId = 0xFFFFFFFFu; // no MIG
  }
  return NVML_SUCCESS;
}

} // namespace

extern "C" {

EID_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  out->total = config().gpu.memory_bytes;
  out->used = used_bytes(device);
  out->free = out->total - out->used;
  return NVML_SUCCESS;
}
// The emulated capacity is the total that CUDA reports, and nothing is reserved beside it.
EID_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (out->version != nvmlMemory_v2)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  out->total = config().gpu.memory_bytes;
  out->reserved = 0;
  out->used = used_bytes(device);
  out->free = out->total - out->used;
  return NVML_SUCCESS;
}

EID_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned *count,
                                                          nvmlProcessInfo_v1_t *infos) {
  return list_processes(handle, count, infos, true);
}
EID_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                             nvmlProcessInfo_v2_t *infos) {
  return list_processes(handle, count, infos, true);
}
EID_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                             nvmlProcessInfo_t *infos) {
  return list_processes(handle, count, infos, true);
}
EID_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                              nvmlProcessInfo_t *infos) {
  return list_processes(handle, count, infos, false);
}
EID_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                                nvmlProcessInfo_t *infos) {
  return list_processes(handle, count, infos, false);
}

} // extern "C"
