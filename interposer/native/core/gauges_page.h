// `<EIDOLON_DIR>/gauges.page`: what the core last said of the server's devices, for NVML and nvidia-smi. Made by the
// agent before any rank starts; it writes, and shims and nvidia-smi read.
#pragma once
#include <atomic>
#include <cstdint>

#include "vocabulary.h"

namespace eidolon {

// What a device does of which the core has told nothing: round figures, and of power the share of the limit that the
// core takes for an idle device, too (IDLE_POWER in simcore's ledger/power.py; a test holds the two equal).
inline constexpr int64_t kIdlePowerPercent = 12, kIdleClockMhz = 345, kIdleTemperatureC = 35;

// All 0 until the core has told. Rates and shares are means over the last final step.
struct alignas(64) DeviceGauges {
  std::atomic<int64_t> at_ns; // virtual time up to which the energy counts; written first, to be read last
  std::atomic<int64_t> energy_mj;
  std::atomic<int64_t> power_mw;
  std::atomic<int64_t> busy_percent;
  std::atomic<int64_t> memory_percent;
  std::atomic<int64_t> sm_clock_mhz;
  std::atomic<int64_t> temperature_c;
  std::atomic<int64_t> pcie_out_bytes_per_s;
  std::atomic<int64_t> pcie_in_bytes_per_s;
  std::atomic<int64_t> nvlink_out_bytes_per_s;
  std::atomic<int64_t> nvlink_in_bytes_per_s;
};

struct GaugesPage {
  DeviceGauges devices[kMaxDevices];
};

} // namespace eidolon
