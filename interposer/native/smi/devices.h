// What the emulated nvidia-smi knows: the server's devices from server.conf, their memory from server.page, and
// from gauges.page what the core last said of their work. A device of which it has said nothing is idle.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi.h"
#include "gauges_page.h"

namespace smi {

constexpr char kDriver[] = "580.159.04"; // as the shim's NVML says
constexpr char kCuda[] = "13.0";
constexpr int kNoDriver = 9, kBadUse = 2, kNotFound = 6; // the real tool's exit codes
constexpr double kMib = 1048576.0;

struct Conf {
  char name[96] = "NVIDIA H100 80GB HBM3";
  char cc[16] = "9.0";
  long server = 0, devices = 1;
  long long memory = 85'017'493'504;
  long clock_khz = 1'980'000, memory_clock_khz = 2'619'000, nvlinks = 18, power_limit_mw = 700'000;
};

inline const eidolon::ServerPage *page = nullptr;
inline const eidolon::GaugesPage *work = nullptr;
inline Conf conf;

// server.conf: "key=value" lines.
inline bool read_conf(const char *directory) {
  char path[4096], line[512];
  std::snprintf(path, sizeof path, "%s/server.conf", directory);
  FILE *file = std::fopen(path, "re");
  if (!file)
    return false;
  while (std::fgets(line, sizeof line, file)) {
    line[std::strcspn(line, "\n")] = 0;
    char *value = std::strchr(line, '=');
    if (!value)
      continue;
    *value++ = 0;
    auto is = [&line](eidolon::ConfKey key) { return std::strcmp(line, key.text()) == 0; };
    if (is("gpu.name"))
      std::snprintf(conf.name, sizeof conf.name, "%.95s", value);
    else if (is("gpu.cc"))
      std::snprintf(conf.cc, sizeof conf.cc, "%.15s", value);
    else if (is("server"))
      conf.server = std::atol(value);
    else if (is("devices"))
      conf.devices = std::atol(value);
    else if (is("gpu.memory_bytes"))
      conf.memory = std::atoll(value);
    else if (is("gpu.clock_khz"))
      conf.clock_khz = std::atol(value);
    else if (is("gpu.memory_clock_khz"))
      conf.memory_clock_khz = std::atol(value);
    else if (is("gpu.nvlinks"))
      conf.nvlinks = std::atol(value);
    else if (is("gpu.power_limit_mw"))
      conf.power_limit_mw = std::atol(value);
  }
  std::fclose(file);
  return conf.devices >= 0 && conf.devices <= eidolon::kMaxDevices;
}

// A file of the directory in memory, to be read; nullptr if it is not there or not of this size.
template <class Page> const Page *map_page(const char *directory, const char *name) {
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%s", directory, name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return nullptr;
  const bool whole = lseek(fd, 0, SEEK_END) == static_cast<off_t>(sizeof(Page));
  void *at = whole ? mmap(nullptr, sizeof(Page), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<const Page *>(at);
}

inline bool map_pages(const char *directory) {
  page = map_page<eidolon::ServerPage>(directory, "server.page");
  work = map_page<eidolon::GaugesPage>(directory, "gauges.page");
  return page != nullptr && work != nullptr;
}

// Those that are asked for: from `first` on, up to but not including `end`.
struct Devices {
  long first, end;
};

// ---- what a device does ----

inline const eidolon::DeviceGauges &gauges(long device) { return work->devices[device]; }
inline long told_or(const std::atomic<int64_t> &gauge, long idle) {
  const int64_t told = gauge.load();
  return told != 0 ? static_cast<long>(told) : idle;
}
inline long busy_percent(long device) { return static_cast<long>(gauges(device).busy_percent.load()); }
inline long memory_percent(long device) { return static_cast<long>(gauges(device).memory_percent.load()); }
inline long temperature_c(long device) { return told_or(gauges(device).temperature_c, eidolon::kIdleTemperatureC); }
inline long clock_mhz(long device) { return told_or(gauges(device).sm_clock_mhz, eidolon::kIdleClockMhz); }
inline double watts(long device) {
  return static_cast<double>(told_or(gauges(device).power_mw, conf.power_limit_mw * eidolon::kIdlePowerPercent / 100)) /
         1e3;
}
inline double limit_watts() { return static_cast<double>(conf.power_limit_mw) / 1e3; }
inline long pcie_generation() { return std::atoi(conf.cc) >= 9 ? 5 : 4; }
// The speed of one NVLink in one direction as the real tool prints it: NVLink 3, 4 and 5.
inline const char *nvlink_speed() {
  const int major = std::atoi(conf.cc);
  return major <= 8 ? "25" : major == 9 ? "26.562" : "53.125";
}

inline double used_mib(long device) { return static_cast<double>(page->used_bytes[device].load()) / kMib; }
inline double total_mib() { return static_cast<double>(conf.memory) / kMib; }

inline void uuid_text(long device, char out[48]) { // as core.h's uuid_of
  unsigned char b[16];
  for (int i = 0; i < 16; ++i)
    b[i] = static_cast<unsigned char>(i * 7 + device + 16 * conf.server);
  std::snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
                b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

} // namespace smi
