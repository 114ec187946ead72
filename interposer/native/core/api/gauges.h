// What NVML shows of a device, as the core last told it.
#pragma once
#include "../gauges_page.h"
#include "status.h"

namespace eidolon {

// The gauges of a device, by its ordinal within the server. All are 0 until the core has told them.
EID_API const DeviceGauges &device_gauges(int server_device);
// The energy that a device has taken since the start of the run, in mJ. It goes on at the last power that is known,
// up to the clock of this process as far as it is known without asking, and never falls.
EID_API int64_t device_energy_mj(int server_device);
EID_API int64_t device_power_mw(int server_device);

} // namespace eidolon
