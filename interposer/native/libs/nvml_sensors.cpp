// NVML: utilisation, power, energy, clocks, temperature and throughput. They follow the simulated work: the core tells
// them at most five times a second, as means over the last final step (gauges_page.h). They are in virtual
// time, and to read them takes none. Thresholds, and what a device does before the core has told of it, are stated
// constants.
#include "nvml_device.h"

#include <ctime>

using namespace eidolon;
using namespace eidolon::nvml;

namespace {

constexpr unsigned kSlowdownC = 90, kShutdownC = 95;
constexpr unsigned kLeastPowerPercent = 29; // of the limit, that a limit can be set to: 200 W of an H100's 700 W
constexpr unsigned kPcieLanes = 16;

unsigned clock_mhz(int device, nvmlClockType_t type, bool maximum) {
  if (type == NVML_CLOCK_MEM)
    return static_cast<unsigned>(config().gpu.memory_clock_khz) / 1000;
  if (maximum)
    return static_cast<unsigned>(config().gpu.clock_khz) / 1000;
  const auto told = static_cast<unsigned>(device_gauges(device).sm_clock_mhz.load());
  return told != 0 ? told : static_cast<unsigned>(kIdleClockMhz);
}

unsigned power_limit_mw(int) { return static_cast<unsigned>(config().gpu.power_limit_mw); }

unsigned temperature_c(int device) {
  const auto told = static_cast<unsigned>(device_gauges(device).temperature_c.load());
  return told != 0 ? told : static_cast<unsigned>(kIdleTemperatureC);
}

unsigned pcie_generation(int) { return config().gpu.cc_major >= 9 ? 5 : 4; }

void field_value(int device, nvmlFieldValue_t *field) {
  field->nvmlReturn = NVML_SUCCESS;
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
  switch (field->fieldId) {
  case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    field->value.ullVal = static_cast<unsigned long long>(device_energy_mj(device));
    break;
  case NVML_FI_DEV_POWER_AVERAGE:
  case NVML_FI_DEV_POWER_INSTANT:
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = static_cast<unsigned>(device_power_mw(device));
    break;
  case NVML_FI_DEV_MEMORY_TEMP:
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = temperature_c(device);
    break;
  case NVML_FI_DEV_NVLINK_LINK_COUNT:
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = static_cast<unsigned>(config().gpu.nvlinks);
    break;
  default:
    field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  }
}

} // namespace

extern "C" {

// ---- utilisation ---------------------------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *out) {
  return answer(handle, out, [](int device) {
    const DeviceGauges &gauges = device_gauges(device);
    return nvmlUtilization_t{static_cast<unsigned>(gauges.busy_percent.load()),
                             static_cast<unsigned>(gauges.memory_percent.load())};
  });
}
EID_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t handle, nvmlPcieUtilCounter_t counter, unsigned *out) {
  if (counter != NVML_PCIE_UTIL_TX_BYTES && counter != NVML_PCIE_UTIL_RX_BYTES)
    return NVML_ERROR_INVALID_ARGUMENT;
  return answer(handle, out, [counter](int device) { // in KB/s
    const DeviceGauges &gauges = device_gauges(device);
    return (counter == NVML_PCIE_UTIL_TX_BYTES ? gauges.pcie_out_bytes_per_s : gauges.pcie_in_bytes_per_s).load() /
           1000;
  });
}
EID_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, pcie_generation);
}
EID_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, pcie_generation);
}
EID_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int) { return kPcieLanes; });
}
EID_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int) { return kPcieLanes; });
}

// ---- power and energy ----------------------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *out) {
  return answer(handle, out, [](int device) { return device_power_mw(device); });
}
EID_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *out) {
  return answer(handle, out, [](int device) { return device_energy_mj(device); });
}
EID_API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t handle, nvmlEnableState_t *out) {
  return answer(handle, out, [](int) { return NVML_FEATURE_ENABLED; });
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
EID_API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned *least,
                                                                  unsigned *greatest) {
  if (nvmlReturn_t status =
          answer(handle, least, [](int device) { return power_limit_mw(device) / 100 * kLeastPowerPercent; }))
    return status;
  return answer(handle, greatest, power_limit_mw);
}
EID_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *fields) {
  int device;
  if (nvmlReturn_t status = resolve(handle, &device))
    return status;
  if (!fields || count < 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; i++) {
    fields[i].timestamp = static_cast<long long>(std::time(nullptr)) * 1'000'000;
    fields[i].latencyUsec = 0;
    field_value(device, &fields[i]);
  }
  return NVML_SUCCESS;
}

// ---- temperature ---------------------------------------------------------------------------------------------------

EID_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t, unsigned *out) {
  return answer(handle, out, temperature_c);
}
EID_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t handle, nvmlTemperatureThresholds_t which,
                                                       unsigned *out) {
  return answer(handle, out,
                [which](int) { return which == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? kShutdownC : kSlowdownC; });
}

// ---- clocks --------------------------------------------------------------------------------------------------------

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

} // extern "C"
