// Driver: devices and their attributes. Nothing here creates a context.
#include "cuda_driver.h"

#include <cstdio>
#include <cstring>

#include "device_attributes.h"
#include "device_state.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

Status check_device(CUdevice device) {
  if (Status status = initialised())
    return status;
  return valid_device(device) ? kSuccess : kInvalidDevice;
}

int attribute(int number, CUdevice device) {
  int value = 0;
  device_attribute(number, device, &value);
  return value;
}

} // namespace

extern "C" {

CUresult cuDeviceGetCount(int *count) {
  if (count == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  *count = device_count();
  return result(kSuccess);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (device == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(ordinal))
    return result(status);
  *device = ordinal;
  return result(kSuccess);
}

CUresult cuDeviceGetName(char *out, int size, CUdevice device) {
  if (out == nullptr || size <= 0)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  std::snprintf(out, static_cast<size_t>(size), "%s", config().gpu.name);
  return result(kSuccess);
}

CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  device_uuid(device, out->bytes);
  return result(kSuccess);
}
#undef cuDeviceGetUuid
EID_EXPORT CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) { return cuDeviceGetUuid_v2(out, device); }

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  if (bytes == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  *bytes = config().gpu.memory_bytes;
  return result(kSuccess);
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute number, CUdevice device) {
  if (value == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  return result(device_attribute(number, device, value) ? kSuccess : kInvalidValue);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  if (major == nullptr || minor == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  *major = config().gpu.cc_major;
  *minor = config().gpu.cc_minor;
  return result(kSuccess);
}

CUresult cuDeviceGetProperties(CUdevprop *out, CUdevice device) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  *out = {};
  out->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
  for (int i = 0; i < 3; ++i) {
    out->maxThreadsDim[i] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i, device);
    out->maxGridSize[i] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i, device);
  }
  out->sharedMemPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device);
  out->totalConstantMemory = attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, device);
  out->SIMDWidth = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  out->memPitch = attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH, device);
  out->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
  out->clockRate = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
  out->textureAlign = attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device);
  return result(kSuccess);
}

CUresult cuDeviceGetPCIBusId(char *out, int size, CUdevice device) {
  if (out == nullptr || size < 13)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  device_pci(device, out, static_cast<size_t>(size));
  return result(kSuccess);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
  if (device == nullptr || id == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  return result(device_of_pci(id, device) ? kSuccess : kInvalidValue);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  if (can == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  if (Status status = check_device(peer))
    return result(status);
  *can = device != peer ? 1 : 0;
  return result(kSuccess);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute number, CUdevice source, CUdevice target) {
  if (value == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(source))
    return result(status);
  if (Status status = check_device(target))
    return result(status);
  return result(peer_attribute(number, source, target, value));
}

// Multiprocessors are not partitioned among contexts (MPS).
CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType, CUdevice device) {
  if (supported == nullptr)
    return result(kInvalidValue);
  if (Status status = check_device(device))
    return result(status);
  *supported = 0;
  return result(kSuccess);
}

} // extern "C"
