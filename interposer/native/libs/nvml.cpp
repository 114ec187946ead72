// NVML answers from the shim's own state, so that it agrees with what CUDA says. It has the same devices, UUIDs, PCI
// addresses and memory in use. NVML never creates a context and takes no virtual time.
// What its sensors say is in nvml_sensors.cpp.
#include "nvml_device.h"

#include <fcntl.h>
#include <unistd.h>

using namespace eidolon;
using namespace eidolon::nvml;

namespace {

constexpr char kDriverVersion[] = "580.159.04";
constexpr char kNvmlVersion[] = "13.580.159.04";
constexpr int kCudaVersion = 13000;

nvmlReturn_t initialise() {
  if (!config().active)
    return NVML_ERROR_DRIVER_NOT_LOADED;
  users.fetch_add(1);
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
  std::snprintf(text, sizeof text, "%013d", config().server * kMaxDevices + device);
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

} // extern "C"
