// NVML: how devices reach each other, and which CPUs are near them.
#include "nvml_device.h"

#include <sched.h>

using namespace eidolon;
using namespace eidolon::nvml;

namespace {

constexpr unsigned kSwitchesPerServer = 4, kFirstSwitchBus = 0x80;

bool has_link(unsigned link) { return link < static_cast<unsigned>(config().gpu.nvlinks); }

// The NVLink domain of a server is the server itself, since no multi-node fabric is emulated. From Hopper on, GPUs
// register with the switches of their server, and their cluster has no name. (Two H200 of one server say so.)
template <class Info> nvmlReturn_t fabric_info(nvmlDevice_t handle, Info *out) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  std::memset(out->clusterUuid, 0, sizeof out->clusterUuid);
  out->status = NVML_SUCCESS;
  out->cliqueId = 0;
  const bool registers = config().gpu.cc_major >= 9 && config().gpu.nvlinks > 0;
  out->state = registers ? NVML_GPU_FABRIC_STATE_COMPLETED : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

} // namespace

extern "C" {

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

// Every link of a device ends at a switch, so all GPUs of a server reach each other at the same speed.
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
  fill_pci(out, static_cast<uint8_t>(kFirstSwitchBus + link % kSwitchesPerServer), false);
  return NVML_SUCCESS;
}
EID_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t handle, unsigned link, nvmlNvLinkCapability_t,
                                                   unsigned *out) {
  if (!has_link(link))
    return config().gpu.nvlinks ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
  return answer(handle, out, [](int) { return 1; });
}
EID_API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t handle, nvmlGpuFabricInfo_t *out) {
  return fabric_info(handle, out);
}
EID_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfoV_t *out) {
  if (!out)
    return NVML_ERROR_INVALID_ARGUMENT;
  constexpr unsigned kSizeBits = 24; // a version is the size of the structure, with its number above that
  const unsigned bytes = out->version & ((1U << kSizeBits) - 1), number = out->version >> kSizeBits;
  if (number < 2 || number > 3 || bytes < sizeof(nvmlGpuFabricInfo_v2_t))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  std::memset(reinterpret_cast<char *>(out) + sizeof out->version, 0, bytes - sizeof out->version);
  return fabric_info(handle, reinterpret_cast<nvmlGpuFabricInfo_v2_t *>(out));
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
