// nvidia-smi of an emulated server: what scripts ask of it before and during a training run.
//
// It is linked statically, since it runs in the user's image. Like the shim it reads EIDOLON_DIR: the devices from
// server.conf, and the memory in use from server.page. Where there is no value it prints [N/A], as the real tool does
// for what a device lacks.
//
//   nvidia-smi                                the table
//   nvidia-smi -L                             one line a device
//   nvidia-smi --query-gpu=FIELD,.. --format=csv[,noheader][,nounits] [-i INDEX]
//   nvidia-smi topo -m                        links between devices
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "abi.h"

namespace {

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

const eidolon::ServerPage *page = nullptr;
Conf conf;

// server.conf: "key=value" lines.
bool read_conf(const char *directory) {
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

bool map_page(const char *directory) {
  char path[4096];
  std::snprintf(path, sizeof path, "%s/server.page", directory);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  void *at = mmap(nullptr, sizeof(eidolon::ServerPage), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  page = at == MAP_FAILED ? nullptr : static_cast<const eidolon::ServerPage *>(at);
  return page != nullptr;
}

double used_mib(long device) { return static_cast<double>(page->used_bytes[device].load()) / kMib; }
double total_mib() { return static_cast<double>(conf.memory) / kMib; }

void uuid_text(long device, char out[48]) { // as core.h's uuid_of
  unsigned char b[16];
  for (int i = 0; i < 16; ++i)
    b[i] = static_cast<unsigned char>(i * 7 + device + 16 * conf.server);
  std::snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
                b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

// ---- --query-gpu ----

struct Field {
  const char *name;
  const char *unit;
  void (*print)(long device, char *out, size_t size);
};

#define TEXT(format, ...)                                                                                              \
  [](long device, char *out, size_t size) {                                                                            \
    (void)device;                                                                                                      \
    std::snprintf(out, size, format, __VA_ARGS__);                                                                     \
  }

const Field kFields[] = {
    {"index", "", TEXT("%ld", device)},
    {"count", "", TEXT("%ld", conf.devices)},
    {"name", "", TEXT("%s", conf.name)},
    {"gpu_name", "", TEXT("%s", conf.name)},
    {"uuid", "", [](long device, char *out, size_t) { uuid_text(device, out); }},
    {"gpu_uuid", "", [](long device, char *out, size_t) { uuid_text(device, out); }},
    {"driver_version", "", TEXT("%s", kDriver)},
    {"compute_cap", "", TEXT("%s", conf.cc)},
    {"pci.bus_id", "", TEXT("00000000:%02lX:00.0", 0x10 + device)},
    {"gpu_bus_id", "", TEXT("00000000:%02lX:00.0", 0x10 + device)},
    {"memory.total", " MiB", TEXT("%.0f", total_mib())},
    {"memory.used", " MiB", TEXT("%.0f", used_mib(device))},
    {"memory.free", " MiB", TEXT("%.0f", total_mib() - used_mib(device))},
    {"power.limit", " W", TEXT("%.2f", static_cast<double>(conf.power_limit_mw) / 1e3)},
    {"clocks.max.sm", " MHz", TEXT("%ld", conf.clock_khz / 1000)},
    {"clocks.max.memory", " MHz", TEXT("%ld", conf.memory_clock_khz / 1000)},
    {"persistence_mode", "", TEXT("%s", "Enabled")},
    {"compute_mode", "", TEXT("%s", "Default")},
    {"mig.mode.current", "", TEXT("%s", "Disabled")},
    {"timestamp", "",
     [](long, char *out, size_t size) {
       const time_t now = std::time(nullptr);
       std::strftime(out, size, "%Y/%m/%d %H:%M:%S.000", std::localtime(&now));
     }},
    {"utilization.gpu", "", TEXT("%s", "[N/A]")},
    {"utilization.memory", "", TEXT("%s", "[N/A]")},
    {"temperature.gpu", "", TEXT("%s", "[N/A]")},
    {"power.draw", "", TEXT("%s", "[N/A]")},
    {"fan.speed", "", TEXT("%s", "[N/A]")},
    {"pstate", "", TEXT("%s", "P0")},
};

const Field *field_of(const char *name) {
  for (const Field &field : kFields)
    if (std::strcmp(field.name, name) == 0)
      return &field;
  return nullptr;
}

int query(const char *names, bool header, bool units, long only) {
  const Field *asked[64];
  int count = 0;
  char copy[2048];
  std::snprintf(copy, sizeof copy, "%s", names);
  for (char *rest = copy, *name = nullptr; (name = strsep(&rest, ",")) != nullptr && count < 64;) {
    name += std::strspn(name, " ");
    asked[count] = field_of(name);
    if (!asked[count++]) {
      std::fprintf(stderr, "Field \"%s\" is not a valid field to query.\n", name);
      return kBadUse;
    }
  }
  for (int i = 0; header && i < count; ++i) {
    const char *unit = asked[i]->unit;
    std::printf("%s%s", i ? ", " : "", asked[i]->name);
    if (*unit)
      std::printf(" [%s]", unit + 1);
  }
  if (header)
    std::printf("\n");
  for (long device = 0; device < conf.devices; ++device) {
    if (only >= 0 && device != only)
      continue;
    for (int i = 0; i < count; ++i) {
      char text[128];
      asked[i]->print(device, text, sizeof text);
      std::printf("%s%s%s", i ? ", " : "", text, units ? asked[i]->unit : "");
    }
    std::printf("\n");
  }
  return 0;
}

// ---- the others ----

int list() {
  for (long device = 0; device < conf.devices; ++device) {
    char uuid[48];
    uuid_text(device, uuid);
    std::printf("GPU %ld: %s (UUID: %s)\n", device, conf.name, uuid);
  }
  return 0;
}

int topology() {
  std::printf("\t");
  for (long device = 0; device < conf.devices; ++device)
    std::printf("GPU%ld\t", device);
  std::printf("\n");
  for (long row = 0; row < conf.devices; ++row) {
    std::printf("GPU%ld\t", row);
    for (long column = 0; column < conf.devices; ++column) {
      if (row == column)
        std::printf(" X \t");
      else if (conf.nvlinks > 0)
        std::printf("NV%ld\t", conf.nvlinks);
      else
        std::printf("NODE\t");
    }
    std::printf("\n");
  }
  std::printf("\nLegend:\n\n  X    = Self\n  NODE = Connection traversing PCIe within a NUMA node\n"
              "  NV#  = Connection traversing a bonded set of # NVLinks\n");
  return 0;
}

int table() {
  char now[64];
  const time_t seconds = std::time(nullptr);
  std::strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", std::localtime(&seconds));
  const char *line = "-----------------------------------------+------------------------+----------------------";
  std::printf("%s       \n", now);
  std::printf("+-----------------------------------------------------------------------------------------+\n");
  std::printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", kDriver, kDriver, kCuda);
  std::printf("|%s+\n", line);
  std::printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n");
  std::printf("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n");
  std::printf("|                                         |                        |               MIG M. |\n");
  std::printf("|=========================================+========================+======================|\n");
  for (long device = 0; device < conf.devices; ++device) {
    char memory[64], power[32];
    std::snprintf(memory, sizeof memory, "%.0fMiB / %.0fMiB", used_mib(device), total_mib());
    std::snprintf(power, sizeof power, "N/A / %.0fW", static_cast<double>(conf.power_limit_mw) / 1e3);
    std::printf("| %3ld  %-30.30s On  |   00000000:%02lX:00.0 Off |                    0 |\n", device, conf.name,
                0x10 + device);
    std::printf("| N/A  N/A    P0     %19s | %22s |      N/A      Default |\n", power, memory);
    std::printf("|                                         |                        |             Disabled |\n");
    std::printf("+%s+\n", line);
  }
  return 0;
}

int usage(const char *argument) {
  std::fprintf(stderr,
               "Invalid combination of input arguments: %s. An emulated nvidia-smi knows no argument, -L, "
               "topo -m, and --query-gpu=... --format=csv[,noheader][,nounits] [-i INDEX].\n",
               argument);
  return kBadUse;
}

const char *after(const char *argument, const char *prefix) {
  const size_t length = std::strlen(prefix);
  return std::strncmp(argument, prefix, length) == 0 ? argument + length : nullptr;
}

} // namespace

int main(int argc, char **argv) {
  const char *directory = std::getenv("EIDOLON_DIR");
  if (!directory || !read_conf(directory) || !map_page(directory)) {
    std::fprintf(stderr, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. (No emulated "
                         "server: EIDOLON_DIR names no directory of a running agent.)\n");
    return kNoDriver;
  }
  if (argc == 1)
    return table();
  if (argc == 2 && (std::strcmp(argv[1], "-L") == 0 || std::strcmp(argv[1], "--list-gpus") == 0))
    return list();
  if (argc == 3 && std::strcmp(argv[1], "topo") == 0 && std::strcmp(argv[2], "-m") == 0)
    return topology();
  const char *fields = nullptr, *format = nullptr;
  long only = -1;
  for (int i = 1; i < argc; ++i) {
    if (const char *names = after(argv[i], "--query-gpu="))
      fields = names;
    else if (const char *text = after(argv[i], "--format="))
      format = text;
    else if (const char *index = after(argv[i], "--id="))
      only = std::atol(index);
    else if (std::strcmp(argv[i], "-i") == 0 && i + 1 < argc)
      only = std::atol(argv[++i]);
    else
      return usage(argv[i]);
  }
  if (!fields || !format || !after(format, "csv"))
    return usage(fields ? "--format=csv is needed" : argv[1]);
  if (only >= conf.devices) {
    std::printf("No devices were found\n");
    return kNotFound;
  }
  return query(fields, !std::strstr(format, "noheader"), !std::strstr(format, "nounits"), only);
}
