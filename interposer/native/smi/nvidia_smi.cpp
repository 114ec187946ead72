// nvidia-smi of an emulated server: what scripts ask of it before and during a training run.
//
// It is linked statically, since it runs in the user's image. Like the shim it reads EIDOLON_DIR: the devices from
// server.conf, the memory in use from server.page, and from gauges.page what the core says of the devices' work:
// utilisation, power, clocks and throughput, as means over the last final step. A device of which the core has said
// nothing is idle. Where there is no value it prints [N/A], as the real tool does for what a device lacks.
//
//   nvidia-smi                                the table
//   nvidia-smi -L                             one line a device
//   nvidia-smi -q [-d SECTION,..] [-i INDEX]  all that is known of each device
//   nvidia-smi --query-gpu=FIELD,.. --format=csv[,noheader][,nounits] [-i INDEX] [-l SECONDS | -lms MILLISECONDS]
//   nvidia-smi dmon [-s GROUPS] [-c COUNT] [-d SECONDS] [-i INDEX]
//   nvidia-smi topo -m                        links between devices
//   nvidia-smi nvlink -s [-i INDEX]           speed of each link
#include <strings.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "devices.h"

using namespace smi;

namespace {

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
    {"power.limit", " W", TEXT("%.2f", limit_watts())},
    {"power.default_limit", " W", TEXT("%.2f", limit_watts())},
    {"power.max_limit", " W", TEXT("%.2f", limit_watts())},
    {"enforced.power.limit", " W", TEXT("%.2f", limit_watts())},
    {"power.management", "", TEXT("%s", "Enabled")},
    {"clocks.sm", " MHz", TEXT("%ld", clock_mhz(device))},
    {"clocks.current.sm", " MHz", TEXT("%ld", clock_mhz(device))},
    {"clocks.gr", " MHz", TEXT("%ld", clock_mhz(device))},
    {"clocks.current.graphics", " MHz", TEXT("%ld", clock_mhz(device))},
    {"clocks.mem", " MHz", TEXT("%ld", conf.memory_clock_khz / 1000)},
    {"clocks.current.memory", " MHz", TEXT("%ld", conf.memory_clock_khz / 1000)},
    {"clocks.max.graphics", " MHz", TEXT("%ld", conf.clock_khz / 1000)},
    {"pcie.link.gen.current", "", TEXT("%ld", pcie_generation())},
    {"pcie.link.gen.max", "", TEXT("%ld", pcie_generation())},
    {"pcie.link.width.current", "", TEXT("%d", 16)},
    {"pcie.link.width.max", "", TEXT("%d", 16)},
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
    {"utilization.gpu", " %", TEXT("%ld", busy_percent(device))},
    {"utilization.memory", " %", TEXT("%ld", memory_percent(device))},
    {"temperature.gpu", "", TEXT("%ld", temperature_c(device))},
    {"temperature.memory", "", TEXT("%ld", temperature_c(device))},
    {"power.draw", " W", TEXT("%.2f", watts(device))},
    {"power.draw.average", " W", TEXT("%.2f", watts(device))},
    {"power.draw.instant", " W", TEXT("%.2f", watts(device))},
    {"fan.speed", " %", TEXT("%s", "[N/A]")},
    {"pstate", "", TEXT("%s", "P0")},
};

const Field *field_of(const char *name) {
  for (const Field &field : kFields)
    if (std::strcmp(field.name, name) == 0)
      return &field;
  return nullptr;
}

struct Question {
  const Field *asked[64];
  int count = 0;
};

// Prints the field at fault and gives false if there is one.
bool parse(const char *names, Question *question) {
  char copy[2048];
  std::snprintf(copy, sizeof copy, "%s", names);
  for (char *rest = copy, *name = nullptr; (name = strsep(&rest, ",")) != nullptr && question->count < 64;) {
    name += std::strspn(name, " ");
    const Field *field = field_of(name);
    if (!field) {
      std::fprintf(stderr, "Field \"%s\" is not a valid field to query.\n", name);
      return false;
    }
    question->asked[question->count++] = field;
  }
  return true;
}

void print_header(const Question &question, bool units) {
  for (int i = 0; i < question.count; ++i) {
    const char *unit = question.asked[i]->unit;
    std::printf("%s%s", i ? ", " : "", question.asked[i]->name);
    if (*unit && units)
      std::printf(" [%s]", unit + 1);
  }
  std::printf("\n");
}

void print_answers(const Question &question, bool units, Devices asked) {
  for (long device = asked.first; device < asked.end; ++device) {
    for (int i = 0; i < question.count; ++i) {
      char text[128];
      question.asked[i]->print(device, text, sizeof text);
      std::printf("%s%s%s", i ? ", " : "", text, units && text[0] != '[' ? question.asked[i]->unit : "");
    }
    std::printf("\n");
  }
  std::fflush(stdout);
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
    char state[64];
    std::snprintf(power, sizeof power, "%.0fW / %.0fW", watts(device), limit_watts());
    std::snprintf(state, sizeof state, "%ldC    P0", temperature_c(device));
    std::printf("| %3ld  %-30.30s On  |   00000000:%02lX:00.0 Off |                    0 |\n", device, conf.name,
                0x10 + device);
    std::printf("| N/A  %-12s %19s  | %22s | %7ld%%      Default |\n", state, power, memory, busy_percent(device));
    std::printf("|                                         |                        |             Disabled |\n");
    std::printf("+%s+\n", line);
  }
  return 0;
}

// ---- -q ----

void section(const char *title) { std::printf("    %s\n", title); }
void entry(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
void entry(const char *name, const char *format, ...) {
  std::printf("        %-34s: ", name);
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

void log_memory(long device) {
  section("FB Memory Usage");
  entry("Total", "%.0f MiB", total_mib());
  entry("Reserved", "%d MiB", 0);
  entry("Used", "%.0f MiB", used_mib(device));
  entry("Free", "%.0f MiB", total_mib() - used_mib(device));
}
void log_utilization(long device) {
  section("Utilization");
  entry("GPU", "%ld %%", busy_percent(device));
  entry("Memory", "%ld %%", memory_percent(device));
  for (const char *engine : {"Encoder", "Decoder", "JPEG", "OFA"})
    entry(engine, "%d %%", 0);
}
void log_temperature(long device) {
  section("Temperature");
  entry("GPU Current Temp", "%ld C", temperature_c(device));
  entry("Memory Current Temp", "%ld C", temperature_c(device));
}
void log_power(long device) {
  section("GPU Power Readings");
  entry("Average Power Draw", "%.2f W", watts(device));
  entry("Instantaneous Power Draw", "%.2f W", watts(device));
  for (const char *limit : {"Current Power Limit", "Requested Power Limit", "Default Power Limit", "Max Power Limit"})
    entry(limit, "%.2f W", limit_watts());
}
void log_clock(long device) {
  section("Clocks");
  entry("Graphics", "%ld MHz", clock_mhz(device));
  entry("SM", "%ld MHz", clock_mhz(device));
  entry("Memory", "%ld MHz", conf.memory_clock_khz / 1000);
  section("Max Clocks");
  entry("Graphics", "%ld MHz", conf.clock_khz / 1000);
  entry("SM", "%ld MHz", conf.clock_khz / 1000);
  entry("Memory", "%ld MHz", conf.memory_clock_khz / 1000);
}
void log_device(long device) {
  char uuid[48];
  uuid_text(device, uuid);
  const struct {
    const char *name, *value;
  } lines[] = {{"Product Name", conf.name}, {"Product Brand", "NVIDIA"}, {"Persistence Mode", "Enabled"},
               {"GPU UUID", uuid},          {"Compute Mode", "Default"}, {"Performance State", "P0"}};
  for (const auto &line : lines)
    std::printf("    %-38s: %s\n", line.name, line.value);
  section("PCI");
  entry("Bus Id", "00000000:%02lX:00.0", 0x10 + device);
  entry("Tx Throughput", "%ld KB/s", static_cast<long>(gauges(device).pcie_out_bytes_per_s.load() / 1000));
  entry("Rx Throughput", "%ld KB/s", static_cast<long>(gauges(device).pcie_in_bytes_per_s.load() / 1000));
}

const struct {
  const char *name;
  void (*print)(long device);
} kSections[] = {
    {"", log_device},     {"MEMORY", log_memory}, {"UTILIZATION", log_utilization}, {"TEMPERATURE", log_temperature},
    {"POWER", log_power}, {"CLOCK", log_clock}};

// True if a list of names, with commas between them, has this one.
bool lists(const char *list, const char *name) {
  const size_t length = std::strlen(name);
  for (const char *at = list; at; at = std::strchr(at, ',')) {
    at += *at == ',';
    if (strncasecmp(at, name, length) == 0 && (at[length] == 0 || at[length] == ','))
      return true;
  }
  return false;
}

int details(const char *wanted, Devices asked) {
  char now[64];
  const time_t seconds = std::time(nullptr);
  std::strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", std::localtime(&seconds));
  std::printf("\n==============NVSMI LOG==============\n\n%-42s: %s\n%-42s: %s\n%-42s: %s\n\n%-42s: %ld\n", "Timestamp",
              now, "Driver Version", kDriver, "CUDA Version", kCuda, "Attached GPUs", conf.devices);
  for (long device = asked.first; device < asked.end; ++device) {
    std::printf("GPU 00000000:%02lX:00.0\n", 0x10 + device);
    for (const auto &one : kSections)
      if (!wanted || lists(wanted, one.name))
        one.print(device);
    std::printf("\n");
  }
  return 0;
}

// ---- dmon ----

struct Column {
  char group; // of the option -s
  const char *name, *unit;
  void (*print)(long device, char *out, size_t size);
};

const Column kColumns[] = {
    {'p', "pwr", "W", TEXT("%.0f", watts(device))},
    {'p', "gtemp", "C", TEXT("%ld", temperature_c(device))},
    {'p', "mtemp", "C", TEXT("%ld", temperature_c(device))},
    {'u', "sm", "%", TEXT("%ld", busy_percent(device))},
    {'u', "mem", "%", TEXT("%ld", memory_percent(device))},
    {'u', "enc", "%", TEXT("%d", 0)},
    {'u', "dec", "%", TEXT("%d", 0)},
    {'u', "jpg", "%", TEXT("%d", 0)},
    {'u', "ofa", "%", TEXT("%d", 0)},
    {'c', "mclk", "MHz", TEXT("%ld", conf.memory_clock_khz / 1000)},
    {'c', "pclk", "MHz", TEXT("%ld", clock_mhz(device))},
    {'m', "fb", "MB", TEXT("%.0f", used_mib(device))},
    {'m', "bar1", "MB", TEXT("%d", 0)},
    {'t', "rxpci", "MB/s", TEXT("%ld", static_cast<long>(gauges(device).pcie_in_bytes_per_s.load() / 1'000'000))},
    {'t', "txpci", "MB/s", TEXT("%ld", static_cast<long>(gauges(device).pcie_out_bytes_per_s.load() / 1'000'000))},
};

int monitor(const char *groups, long count, long seconds, Devices asked) {
  for (const bool names : {true, false}) {
    std::printf("# %s", names ? "gpu" : "Idx");
    for (const Column &column : kColumns)
      if (std::strchr(groups, column.group))
        std::printf(" %6s", names ? column.name : column.unit);
    std::printf("\n");
  }
  for (long round = 0; count < 0 || round < count; ++round) {
    if (round > 0)
      sleep(static_cast<unsigned>(seconds));
    for (long device = asked.first; device < asked.end; ++device) {
      std::printf("%5ld", device);
      for (const Column &column : kColumns) {
        char text[32];
        column.print(device, text, sizeof text);
        if (std::strchr(groups, column.group))
          std::printf(" %6s", text);
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }
  return 0;
}

int nvlink(Devices asked) {
  for (long device = asked.first; device < asked.end; ++device) {
    char uuid[48];
    uuid_text(device, uuid);
    std::printf("GPU %ld: %s (UUID: %s)\n", device, conf.name, uuid);
    for (long link = 0; link < conf.nvlinks; ++link)
      std::printf("\t Link %ld: %s GB/s\n", link, nvlink_speed());
  }
  return 0;
}

// ---- the command line ----

int usage(const char *argument) {
  std::fprintf(stderr,
               "Invalid combination of input arguments: %s. An emulated nvidia-smi knows no argument, -L, "
               "-q [-d SECTION], dmon [-s pucmt] [-c COUNT] [-d SECONDS], nvlink -s, topo -m, and --query-gpu=... "
               "--format=csv[,noheader][,nounits] [-l SECONDS | -lms MILLISECONDS], each with [-i INDEX].\n",
               argument);
  return kBadUse;
}

struct Options {
  const char *fields = nullptr, *format = nullptr, *sections = nullptr, *groups = "puc";
  bool details = false, status = false;
  long only = -1, count = -1, seconds = 1, loop_ms = -1;
};

const char *after(const char *argument, const char *prefix) {
  const size_t length = std::strlen(prefix);
  return std::strncmp(argument, prefix, length) == 0 ? argument + length : nullptr;
}

// The word behind an option, in one of its two forms: "--long=WORD" or "-s WORD". Moves *i on to what it takes.
const char *word(int argc, char **argv, int *i, const char *option, const char *prefix) {
  if (const char *value = prefix ? after(argv[*i], prefix) : nullptr)
    return value;
  return std::strcmp(argv[*i], option) == 0 && *i + 1 < argc ? argv[++*i] : nullptr;
}

// False, with the argument at fault in *wrong, if there is one that nobody knows.
bool read_options(int argc, char **argv, int first, bool dmon, Options *options, const char **wrong) {
  for (int i = first; i < argc; ++i) {
    *wrong = argv[i];
    if (const char *names = after(argv[i], "--query-gpu="))
      options->fields = names;
    else if (const char *text = after(argv[i], "--format="))
      options->format = text;
    else if (const char *index = word(argc, argv, &i, "-i", "--id="))
      options->only = std::atol(index);
    else if (const char *delay = dmon ? word(argc, argv, &i, "-d", "--delay=") : nullptr)
      options->seconds = std::atol(delay);
    else if (const char *groups = dmon ? word(argc, argv, &i, "-s", "--select=") : nullptr)
      options->groups = groups;
    else if (const char *count = dmon ? word(argc, argv, &i, "-c", "--count=") : nullptr)
      options->count = std::atol(count);
    else if (const char *sections = word(argc, argv, &i, "-d", "--display="))
      options->sections = sections;
    else if (const char *loop = word(argc, argv, &i, "-l", "--loop="))
      options->loop_ms = 1000 * std::atol(loop);
    else if (const char *often = word(argc, argv, &i, "-lms", "--loop-ms="))
      options->loop_ms = std::atol(often);
    else if (std::strcmp(argv[i], "-q") == 0 || std::strcmp(argv[i], "--query") == 0)
      options->details = true;
    else if (std::strcmp(argv[i], "-s") == 0 || std::strcmp(argv[i], "--status") == 0)
      options->status = true;
    else
      return false;
  }
  return true;
}

int query(const Options &options, Devices asked) {
  Question question;
  if (!parse(options.fields, &question))
    return kBadUse;
  const bool units = !std::strstr(options.format, "nounits");
  if (!std::strstr(options.format, "noheader"))
    print_header(question, true);
  for (;;) {
    print_answers(question, units, asked);
    if (options.loop_ms <= 0)
      return 0;
    usleep(static_cast<useconds_t>(options.loop_ms * 1000));
  }
}

int run(int argc, char **argv) {
  if (argc == 1)
    return table();
  if (argc == 2 && (std::strcmp(argv[1], "-L") == 0 || std::strcmp(argv[1], "--list-gpus") == 0))
    return list();
  if (argc == 3 && std::strcmp(argv[1], "topo") == 0 && std::strcmp(argv[2], "-m") == 0)
    return topology();
  const bool dmon = std::strcmp(argv[1], "dmon") == 0, links = std::strcmp(argv[1], "nvlink") == 0;
  Options options;
  const char *wrong = argv[1];
  if (!read_options(argc, argv, dmon || links ? 2 : 1, dmon, &options, &wrong))
    return usage(wrong);
  if (options.only >= conf.devices) {
    std::printf("No devices were found\n");
    return kNotFound;
  }
  const Devices asked = options.only < 0 ? Devices{0, conf.devices} : Devices{options.only, options.only + 1};
  if (dmon)
    return monitor(options.groups, options.count, options.seconds, asked);
  if (links)
    return options.status ? nvlink(asked) : usage("nvlink without -s");
  if (options.details)
    return details(options.sections, asked);
  if (!options.fields || !options.format || !after(options.format, "csv"))
    return usage(options.fields ? "--format=csv is needed" : argv[1]);
  return query(options, asked);
}

} // namespace

int main(int argc, char **argv) {
  const char *directory = std::getenv("EIDOLON_DIR");
  if (!directory || !read_conf(directory) || !map_pages(directory)) {
    std::fprintf(stderr, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. (No emulated "
                         "server: EIDOLON_DIR names no directory of a running agent.)\n");
    return kNoDriver;
  }
  return run(argc, argv);
}
