// server.conf and the environment. Read once; a file that is there but wrong ends the process with the key's name.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "internal.h"

namespace eidolon {
namespace {

using Settings = std::map<std::string, std::string>;

int64_t number(const Settings &settings, const char *key, int64_t otherwise) {
  auto found = settings.find(key);
  if (found == settings.end())
    return otherwise;
  char *end = nullptr;
  errno = 0;
  long long value = strtoll(found->second.c_str(), &end, 10);
  if (errno != 0 || *end != 0 || end == found->second.c_str() || value < 0)
    fatal("server.conf: %s=%s: a non-negative integer is allowed", key, found->second.c_str());
  return value;
}

Settings &settings() {
  static Settings &all = *new Settings;
  return all;
}

// True if an entry of CUDA_VISIBLE_DEVICES is the leading part of the device's unique id.
bool named(const Config *c, int device, const std::string &wanted) {
  char text[48];
  uuid_text(c->server, device, text);
  return wanted.size() > 4 && std::string(text).compare(0, wanted.size(), wanted) == 0;
}

// CUDA C++ programming guide, "CUDA environment variables": devices in the order of the list, up to the first entry
// that names none; a device that is named twice leaves none.
void see_devices(Config *c) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    c->devices = c->server_devices;
    for (int d = 0; d < c->devices; ++d)
      c->visible[d] = d;
    return;
  }
  const std::string text = list;
  for (size_t at = 0; at <= text.size() && c->devices < kMaxDevices;) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, comma - at);
    at = comma + 1;
    char *end = nullptr;
    long device = strtol(entry.c_str(), &end, 10);
    if (entry.empty() || *end != 0 || device < 0 || device >= c->server_devices) {
      for (device = 0; device < c->server_devices && !named(c, static_cast<int>(device), entry);)
        ++device;
      if (device == c->server_devices)
        return;
    }
    if (std::find(c->visible, c->visible + c->devices, device) != c->visible + c->devices) {
      c->devices = 0;
      return;
    }
    c->visible[c->devices++] = static_cast<int>(device);
  }
}

Config *load() {
  auto *c = new Config{};
  const char *dir = getenv("EIDOLON_DIR");
  if (dir == nullptr || *dir == 0)
    return c;
  if (strlen(dir) >= sizeof c->dir - 64)
    fatal("EIDOLON_DIR=%s: at most %zu characters are allowed", dir, sizeof c->dir - 64);
  snprintf(c->dir, sizeof c->dir, "%s", dir);
  std::string path = std::string(dir) + "/server.conf";
  FILE *file = fopen(path.c_str(), "re");
  if (file == nullptr)
    fatal("EIDOLON_DIR=%s: no readable server.conf in it (%s)", dir, strerror(errno));
  char line[1024];
  while (fgets(line, sizeof line, file) != nullptr) {
    char *equals = strchr(line, '=');
    if (line[0] == '#' || equals == nullptr)
      continue;
    line[strcspn(line, "\r\n")] = 0;
    settings()[std::string(line, equals)] = equals + 1;
  }
  fclose(file);

  const Settings &s = settings();
  auto text = [&](const char *key, const char *otherwise) {
    auto found = s.find(key);
    return found == s.end() ? std::string(otherwise) : found->second;
  };
  c->server = static_cast<int>(number(s, "server", 0));
  std::string mode = text("mode", "core");
  if (mode != "core" && mode != "null")
    fatal("server.conf: mode=%s: core or null is allowed", mode.c_str());
  c->active = true;
  c->null_core = mode == "null";
  std::string host = text("host_cost", "table");
  if (host != "table" && host != "measured")
    fatal("server.conf: host_cost=%s: table or measured is allowed", host.c_str());
  c->measured_host = host == "measured";
  c->server_devices = static_cast<int>(number(s, "devices", 1));
  if (c->server_devices > kMaxDevices)
    fatal("server.conf: devices=%d: 0 to %d are allowed", c->server_devices, kMaxDevices);
  see_devices(c);
  c->payload_limit = static_cast<size_t>(number(s, "payload_limit", 65536));
  c->known_limit = static_cast<size_t>(number(s, "known_limit", 1 << 20));
  c->reply_timeout_ns = number(s, "reply_timeout_ms", 60'000) * 1'000'000;
  Gpu &g = c->gpu;
  snprintf(g.name, sizeof g.name, "%s", text("gpu.name", "NVIDIA H100 80GB HBM3").c_str());
  std::string cc = text("gpu.cc", "9.0");
  if (sscanf(cc.c_str(), "%d.%d", &g.cc_major, &g.cc_minor) != 2)
    fatal("server.conf: gpu.cc=%s: MAJOR.MINOR is allowed", cc.c_str());
  // Defaults are those of an H100 SXM (NVIDIA H100 data sheet and CUDA C++ programming guide, table of compute
  // capability 9.0), so that a hand-written server.conf can be short.
  auto integer = [&](const char *key, int64_t otherwise) { return static_cast<int>(number(s, key, otherwise)); };
  auto size = [&](const char *key, int64_t otherwise) { return static_cast<size_t>(number(s, key, otherwise)); };
  g.sm_count = integer("gpu.sm_count", 132);
  g.memory_bytes = size("gpu.memory_bytes", int64_t{85'017'493'504});
  g.context_bytes = size("gpu.context_bytes", int64_t{576'716'800});
  g.clock_khz = integer("gpu.clock_khz", 1'980'000);
  g.memory_clock_khz = integer("gpu.memory_clock_khz", 2'619'000);
  g.memory_bus_bits = integer("gpu.memory_bus_bits", 5120);
  g.l2_bytes = size("gpu.l2_bytes", 52'428'800);
  g.smem_per_block = size("gpu.smem_per_block", 49'152);
  g.smem_per_block_optin = size("gpu.smem_per_block_optin", 232'448);
  g.smem_per_sm = size("gpu.smem_per_sm", 233'472);
  g.reserved_smem_per_block = size("gpu.reserved_smem_per_block", 1024);
  g.regs_per_sm = integer("gpu.regs_per_sm", 65'536);
  g.max_threads_per_sm = integer("gpu.max_threads_per_sm", 2048);
  g.max_blocks_per_sm = integer("gpu.max_blocks_per_sm", 32);
  g.nvlinks = integer("gpu.nvlinks", 18);
  g.power_limit_mw = integer("gpu.power_limit_mw", 700'000);
  return c;
}

} // namespace

void uuid_text(int server, int device, char out[48]) {
  unsigned char b[16];
  uuid_of(server, device, b);
  snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
           b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

const Config &config() {
  static const Config *const loaded = load();
  return *loaded;
}

const char *setting(const char *key) {
  if (!config().active)
    return nullptr;
  auto found = settings().find(key);
  return found == settings().end() ? nullptr : found->second.c_str();
}

void fatal(const char *format, ...) {
  char text[1400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fflush(nullptr); // what the workload printed comes first
  fprintf(stderr, "eidolon: %s\n", text);
  fflush(stderr);
  _exit(70);
}

void warn_once(const char *format, ...) {
  static std::mutex mutex;
  static std::map<const char *, bool> &seen = *new std::map<const char *, bool>;
  {
    std::lock_guard hold(mutex);
    if (!seen.emplace(format, true).second)
      return;
  }
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "eidolon: %s\n", text);
}

} // namespace eidolon
