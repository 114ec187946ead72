#include "api/gauges.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "internal.h"

namespace eidolon {
namespace {

// nullptr: no agent, or one that has made no such page.
const GaugesPage *map_page() {
  if (!config().active || config().null_core)
    return nullptr;
  const std::string path = std::string(config().dir) + "/gauges.page";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void *at = MAP_FAILED;
  if (fd >= 0 && lseek(fd, 0, SEEK_END) == static_cast<off_t>(sizeof(GaugesPage)))
    at = mmap(nullptr, sizeof(GaugesPage), PROT_READ, MAP_SHARED, fd, 0);
  if (fd >= 0)
    close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<const GaugesPage *>(at);
}

// This rank's clock as far as it is known without asking, which would take time; 0 without a ring.
int64_t known_clock_ns() {
  const RingHeader *h = ring_header();
  return h != nullptr ? h->clock_ns.load() : 0;
}

} // namespace

const DeviceGauges &device_gauges(int device) {
  static const DeviceGauges nothing{};
  static const GaugesPage *const page = map_page();
  return page != nullptr && device >= 0 && device < kMaxDevices ? page->devices[device] : nothing;
}

int64_t device_power_mw(int device) {
  const int64_t told = device_gauges(device).power_mw.load();
  return told != 0 ? told : config().gpu.power_limit_mw * kIdlePowerPercent / 100;
}

int64_t device_energy_mj(int device) {
  static std::atomic<int64_t> highest[kMaxDevices];
  const DeviceGauges &gauges = device_gauges(device);
  const int64_t counted_mj = gauges.energy_mj.load(), power_mw = device_power_mw(device);
  const int64_t later_ns = std::max<int64_t>(0, known_clock_ns() - gauges.at_ns.load());
  const int64_t now_mj = counted_mj + static_cast<int64_t>(static_cast<double>(power_mw) * 1e-9 * later_ns);
  std::atomic<int64_t> &most = highest[std::clamp(device, 0, kMaxDevices - 1)];
  int64_t before = most.load();
  while (before < now_mj && !most.compare_exchange_weak(before, now_mj)) {
  }
  return std::max(before, now_mj);
}

} // namespace eidolon
