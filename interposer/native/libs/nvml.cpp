// NVML from the shim's own state, so that what monitors and frameworks ask of it agrees with what CUDA says: the same
// devices, UUIDs, PCI addresses and memory in use. NVML never creates a context and takes no virtual time.
//
// What a simulated device has no sensor for is a stated constant: temperature, and clocks, power and utilisation that
// only tell "in use" (some process holds memory on the device) from "idle". They follow no simulated load.
#define NVML_NO_UNVERSIONED_FUNC_DEFS // declares the old, unversioned functions under their own names
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nvml.h>

#include "core.h"

using namespace eidolon;

namespace {

constexpr char kDriverVersion[] = "580.159.04";
constexpr char kNvmlVersion[] = "13.580.159.04";
constexpr int kCudaVersion = 13000;
constexpr unsigned kTemperatureC = 45, kSlowdownC = 90, kShutdownC = 95;
constexpr unsigned kIdlePowerDivisor = 10; // an idle device draws a tenth of its limit
constexpr unsigned kIdleClockMhz = 345;
constexpr unsigned kSwitchesPerServer = 4;

std::atomic<int> users{0}; // nvmlInit calls without nvmlShutdown

// A device handle is its ordinal plus one.
nvmlDevice_t handle_of(int device) { return reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(device) + 1); }

// Checks that NVML is initialised and the handle is one of ours.
nvmlReturn_t resolve(nvmlDevice_t handle, int *device) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  auto ordinal = static_cast<int64_t>(reinterpret_cast<uintptr_t>(handle)) - 1;
  if (ordinal < 0 || ordinal >= config().server_devices)
    return NVML_ERROR_INVALID_ARGUMENT;
  *device = static_cast<int>(ordinal);
  return NVML_SUCCESS;
}

nvmlReturn_t initialise() {
  if (!config().active)
    return NVML_ERROR_DRIVER_NOT_LOADED;
  users.fetch_add(1);
  return NVML_SUCCESS;
}

// One value of a device: out = value(device).
template <class T, class F> nvmlReturn_t answer(nvmlDevice_t handle, T *out, F value) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  *out = static_cast<T>(value(device));
  return NVML_SUCCESS;
}

nvmlReturn_t copy_text(char *out, unsigned capacity, const char *text) {
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  size_t length = std::strlen(text);
  if (length >= capacity)
    return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text, length + 1);
  return NVML_SUCCESS;
}

unsigned pci_bus(int device) { return 0x10u + static_cast<unsigned>(device); }

void fill_pci(nvmlPciInfo_t *out, unsigned bus, bool gpu) {
  *out = {};
  out->bus = bus;
  out->pciDeviceId = gpu ? 0x233010DEu : 0x22A310DEu; // device and vendor id of an H100 SXM, of its NVSwitch
  std::snprintf(out->busId, sizeof out->busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0u, bus, 0u);
  std::snprintf(out->busIdLegacy, sizeof out->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, 0u, bus, 0u);
}

size_t used_bytes(int device) {
  size_t free_bytes = 0, total_bytes = 0;
  if (server_memory(device, &free_bytes, &total_bytes) != kSuccess)
    return 0;
  return total_bytes - free_bytes;
}
bool in_use(int device) { return used_bytes(device) != 0; }

unsigned clock_mhz(int device, nvmlClockType_t type, bool maximum) {
  if (type == NVML_CLOCK_MEM)
    return static_cast<unsigned>(config().gpu.memory_clock_khz) / 1000;
  return maximum || in_use(device) ? static_cast<unsigned>(config().gpu.clock_khz) / 1000 : kIdleClockMhz;
}

unsigned power_limit_mw(int) { return static_cast<unsigned>(config().gpu.power_limit_mw); }

bool has_link(unsigned link) { return link < static_cast<unsigned>(config().gpu.nvlinks); }

// ---- processes ---------------------------------------------------------------------------------------------------

struct Process {
  unsigned pid;
  unsigned long long bytes;
};

// A rank's bytes on a device by its ring file. Only other processes' files: closing a file drops this process's record
// locks on it, and the lock on the own ring is what says that this rank lives.
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

// The processes that hold memory on a device: this one first, then the other ranks of the server.
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

// ---- the library and the system ----------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlInit_v2() { return initialise(); }
EID_API nvmlReturn_t nvmlInit() { return initialise(); }
EID_API nvmlReturn_t nvmlInitWithFlags(unsigned) { return initialise(); }
EID_API nvmlReturn_t nvmlShutdown() {
  int before = users.load();
  while (before > 0 && !users.compare_exchange_weak(before, before - 1)) {
  }
  return before > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

EID_API const char *nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
  case NVML_SUCCESS:
    return "Success";
  case NVML_ERROR_UNINITIALIZED:
    return "Uninitialized";
  case NVML_ERROR_INVALID_ARGUMENT:
    return "Invalid Argument";
  case NVML_ERROR_NOT_SUPPORTED:
    return "Not Supported";
  case NVML_ERROR_NOT_FOUND:
    return "Not Found";
  case NVML_ERROR_INSUFFICIENT_SIZE:
    return "Insufficient Size";
  case NVML_ERROR_DRIVER_NOT_LOADED:
    return "Driver Not Loaded";
  case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
    return "Argument Version Mismatch";
  default:
    return "Unknown Error";
  }
}

EID_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
  return users.load() ? copy_text(version, length, kDriverVersion) : NVML_ERROR_UNINITIALIZED;
}
EID_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
  return copy_text(version, length, kNvmlVersion);
}
EID_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
  if (!config().active)
    return NVML_ERROR_DRIVER_NOT_LOADED;
  if (!version)
    return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

EID_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  char text[256];
  std::snprintf(text, sizeof text, "/proc/%u/cmdline", pid);
  int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return NVML_ERROR_NOT_FOUND;
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  text[got > 0 ? got : 0] = 0;
  return copy_text(name, length, text);
}

// ---- finding devices ---------------------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned>(config().server_devices);
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EID_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  if (!out || index >= static_cast<unsigned>(config().server_devices))
    return NVML_ERROR_INVALID_ARGUMENT;
  *out = handle_of(static_cast<int>(index));
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}

EID_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  if (!uuid || !out)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (int device = 0; device < config().server_devices; device++) {
    char text[48];
    uuid_text(config().server, device, text);
    if (std::strcmp(text, uuid) == 0) {
      *out = handle_of(device);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

EID_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out) {
  if (users.load() == 0)
    return NVML_ERROR_UNINITIALIZED;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (!text || !out)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (std::sscanf(text, "%x:%x:%x.%u", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (std::sscanf(text, "%x:%x.%u", &bus, &slot, &function) < 2)
      return NVML_ERROR_INVALID_ARGUMENT;
  }
  int device = static_cast<int>(bus) - static_cast<int>(pci_bus(0));
  if (domain != 0 || slot != 0 || function != 0 || device < 0 || device >= config().server_devices)
    return NVML_ERROR_NOT_FOUND;
  *out = handle_of(device);
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *out) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, out);
}

// ---- what a device is --------------------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  return copy_text(name, length, config().gpu.name);
}
EID_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  char text[48];
  uuid_text(config().server, device, text);
  return copy_text(uuid, length, text);
}
EID_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned length) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  char text[32];
  std::snprintf(text, sizeof text, "%013d", config().server * 64 + device);
  return copy_text(serial, length, text);
}
EID_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int device) { return device; });
}
EID_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int device) { return device; });
}
EID_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  fill_pci(out, pci_bus(device), true);
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!major || !minor)
    return NVML_ERROR_INVALID_ARGUMENT;
  *major = config().gpu.cc_major;
  *minor = config().gpu.cc_minor;
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t handle, nvmlDeviceArchitecture_t *out) {
  return answer(handle, out, [](int) {
    switch (config().gpu.cc_major * 10 + config().gpu.cc_minor) {
    case 70:
      return NVML_DEVICE_ARCH_VOLTA;
    case 75:
      return NVML_DEVICE_ARCH_TURING;
    case 80:
    case 86:
      return NVML_DEVICE_ARCH_AMPERE;
    case 89:
      return NVML_DEVICE_ARCH_ADA;
    case 90:
      return NVML_DEVICE_ARCH_HOPPER;
    default:
      return config().gpu.cc_major >= 10 ? 10 /* Blackwell */ : static_cast<int>(NVML_DEVICE_ARCH_UNKNOWN);
    }
  });
}
EID_API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t handle, nvmlBrandType_t *out) {
  return answer(handle, out, [](int) { return NVML_BRAND_NVIDIA; });
}
EID_API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int) { return config().gpu.sm_count * (config().gpu.cc_major == 8 ? 64 : 128); });
}
EID_API nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int) { return config().gpu.memory_bus_bits; });
}
EID_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, nvmlComputeMode_t *out) {
  return answer(handle, out, [](int) { return NVML_COMPUTEMODE_DEFAULT; });
}
EID_API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, nvmlEnableState_t *out) {
  return answer(handle, out, [](int) { return NVML_FEATURE_ENABLED; });
}
EID_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int) { return 0; });
}
EID_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending) {
  if (nvmlReturn_t status = answer(handle, current, [](int) { return NVML_DEVICE_MIG_DISABLE; }))
    return status;
  return answer(handle, pending, [](int) { return NVML_DEVICE_MIG_DISABLE; });
}

// ---- memory and processes ----------------------------------------------------------------------------------------

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
// The emulated capacity is what CUDA reports as total: nothing is reserved beside it.
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

// ---- sensors: stated constants -----------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *out) {
  return answer(handle, out, [](int device) { return nvmlUtilization_t{in_use(device) ? 100u : 0u, 0}; });
}
EID_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t, unsigned *out) {
  return answer(handle, out, [](int) { return kTemperatureC; });
}
EID_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, nvmlTemperatureThresholds_t which,
                                                       unsigned *out) {
  return answer(handle, out,
                [which](int) { return which == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? kShutdownC : kSlowdownC; });
}
EID_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int device) {
    return in_use(device) ? power_limit_mw(device) : power_limit_mw(device) / kIdlePowerDivisor;
  });
}
EID_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, power_limit_mw);
}
EID_API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, power_limit_mw);
}
EID_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, power_limit_mw);
}
EID_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned *out) {
  return answer(handle, out, [type](int device) { return clock_mhz(device, type, false); });
}
EID_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, nvmlClockType_t type, unsigned *out) {
  return answer(handle, out, [type](int device) { return clock_mhz(device, type, true); });
}
EID_API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t handle, nvmlClockType_t type, unsigned *out) {
  return answer(handle, out, [type](int device) { return clock_mhz(device, type, true); });
}
EID_API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t handle, nvmlClockType_t type, nvmlClockId_t id, unsigned *out) {
  return answer(handle, out, [=](int device) { return clock_mhz(device, type, id != NVML_CLOCK_ID_CURRENT); });
}
EID_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *out) {
  return answer(handle, out, [](int) { return nvmlClocksEventReasonNone; });
}
EID_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long *out) {
  return nvmlDeviceGetCurrentClocksEventReasons(handle, out);
}
EID_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t handle, nvmlPstates_t *out) {
  return answer(handle, out, [](int) { return NVML_PSTATE_0; });
}

// ---- topology ----------------------------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index,
                                            nvmlGpuP2PStatus_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(other, &device))
    return status;
  bool connected = index != NVML_P2P_CAPS_INDEX_NVLINK || config().gpu.nvlinks > 0;
  return answer(one, out, [=](int) { return connected ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED; });
}
EID_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                         nvmlGpuTopologyLevel_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(other, &device))
    return status;
  return answer(one, out, [=](int self) { return self == device ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE; });
}
EID_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, nvmlGpuTopologyLevel_t level,
                                                      unsigned *count, nvmlDevice_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!count)
    return NVML_ERROR_INVALID_ARGUMENT;
  unsigned capacity = *count, found = 0;
  for (int peer = 0; peer < config().server_devices && level >= NVML_TOPOLOGY_NODE; peer++) {
    if (peer == device)
      continue;
    if (found < capacity && out)
      out[found] = handle_of(peer);
    found++;
  }
  *count = found;
  return found > capacity && capacity != 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *out) {
  int device;
  if (nvmlReturn_t status = resolve(other, &device))
    return status;
  return answer(one, out, [=](int self) { return self == device; });
}

// Every link of a device ends at a switch: all GPUs of a server reach each other at the same speed.
EID_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, nvmlEnableState_t *out) {
  if (!has_link(link))
    return config().gpu.nvlinks ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
  return answer(handle, out, [](int) { return NVML_FEATURE_ENABLED; });
}
EID_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t handle, unsigned link,
                                                         nvmlIntNvLinkDeviceType_t *out) {
  if (!has_link(link))
    return config().gpu.nvlinks ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
  return answer(handle, out, [](int) { return NVML_NVLINK_DEVICE_TYPE_SWITCH; });
}
EID_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link, nvmlPciInfo_t *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (!has_link(link))
    return config().gpu.nvlinks ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
  fill_pci(out, 0x80u + link % kSwitchesPerServer, false);
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned link, nvmlNvLinkCapability_t,
                                                   unsigned *out) {
  if (!has_link(link))
    return config().gpu.nvlinks ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
  return answer(handle, out, [](int) { return 1; });
}
// A server's NVLink domain is the server: no multi-node fabric is emulated.
EID_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t, nvmlGpuFabricInfo_t *) {
  return NVML_ERROR_NOT_SUPPORTED;
}
EID_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t, nvmlGpuFabricInfoV_t *) {
  return NVML_ERROR_NOT_SUPPORTED;
}

// Every CPU that this process may use is near every device.
EID_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t handle, unsigned words, unsigned long *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  cpu_set_t allowed;
  if (!out || words == 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  std::memset(out, 0, words * sizeof *out);
  for (unsigned cpu = 0; cpu < words * 64 && cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(cpu, &allowed))
      out[cpu / 64] |= 1ul << (cpu % 64);
  }
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceSetCpuAffinity(nvmlDevice_t handle) {
  int device;
  return resolve(handle, &device); // already bound to them
}
EID_API nvmlReturn_t nvmlDeviceClearCpuAffinity(nvmlDevice_t handle) { return nvmlDeviceSetCpuAffinity(handle); }
} // extern "C"
