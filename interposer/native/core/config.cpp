// server.conf and the environment. Read once; a file that is there but wrong ends the process with the key's name.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

#include "internal.h"

namespace eidolon {
namespace {

using Settings = std::map<std::string, std::string>;

Settings &settings() {
  static Settings &all = *new Settings;
  return all;
}

// The value of a key, or the vocabulary's default.
const char *value_of(ConfKey key) {
  auto found = settings().find(key.text());
  return found != settings().end() ? found->second.c_str() : kConfEntries[key.index()].otherwise;
}

int64_t number(ConfKey key) {
  const int64_t max = kConfEntries[key.index()].max;
  const char *text = value_of(key);
  char *end = nullptr;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno != 0 || *end != 0 || end == text || value < 0)
    fatal("server.conf: %s=%s: a non-negative integer is allowed", key.text(), text);
  if (max != 0 && value > max)
    fatal("server.conf: %s=%s: 0 to %lld are allowed", key.text(), text, static_cast<long long>(max));
  return value;
}

// The value of a key that is one of two words.
std::string choice(ConfKey key) {
  const auto &[first, second] = kConfEntries[key.index()].words;
  const std::string text = value_of(key);
  if (text != first && text != second)
    fatal("server.conf: %s=%s: %s or %s is allowed", key.text(), text.c_str(), first, second);
  return text;
}

// True if an entry of CUDA_VISIBLE_DEVICES is the leading part of the device's unique id.
bool named(int device, const std::string &wanted) {
  char text[48];
  uuid_text(config().server, device, text);
  return wanted.size() > 4 && std::string(text).compare(0, wanted.size(), wanted) == 0;
}

// CUDA C++ programming guide, "CUDA environment variables": devices in the order of the list, up to the first entry
// that names none; a device that is named twice leaves none.
VisibleDevices *see_devices() {
  auto *seen = new VisibleDevices{};
  const int all = config().server_devices;
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    seen->count = all;
    std::iota(seen->ordinals, seen->ordinals + all, 0);
    return seen;
  }
  const std::string text = list;
  for (size_t at = 0; at <= text.size() && seen->count < kMaxDevices;) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string entry = text.substr(at, comma - at);
    at = comma + 1;
    char *end = nullptr;
    long device = strtol(entry.c_str(), &end, 10);
    if (entry.empty() || *end != 0 || device < 0 || device >= all) {
      for (device = 0; device < all && !named(static_cast<int>(device), entry);)
        ++device;
      if (device == all)
        return seen;
    }
    if (std::find(seen->ordinals, seen->ordinals + seen->count, device) != seen->ordinals + seen->count) {
      seen->count = 0;
      return seen;
    }
    seen->ordinals[seen->count++] = static_cast<int>(device);
  }
  return seen;
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

  c->server = static_cast<int>(number("server"));
  c->active = true;
  c->null_core = choice("mode") == "null";
  c->measured_host = choice("host_cost") == "measured";
  c->server_devices = static_cast<int>(number("devices"));
  c->payload_limit = static_cast<size_t>(number("payload_limit"));
  c->known_limit = static_cast<size_t>(number("known_limit"));
  c->reply_timeout_ns = number("reply_timeout_ms") * 1'000'000;
  Gpu &g = c->gpu;
  snprintf(g.name, sizeof g.name, "%s", value_of("gpu.name"));
  if (sscanf(value_of("gpu.cc"), "%d.%d", &g.cc_major, &g.cc_minor) != 2)
    fatal("server.conf: gpu.cc=%s: MAJOR.MINOR is allowed", value_of("gpu.cc"));
  auto integer = [](ConfKey key) { return static_cast<int>(number(key)); };
  auto size = [](ConfKey key) { return static_cast<size_t>(number(key)); };
  g.sm_count = integer("gpu.sm_count");
  g.memory_bytes = size("gpu.memory_bytes");
  g.context_bytes = size("gpu.context_bytes");
  g.clock_khz = integer("gpu.clock_khz");
  g.memory_clock_khz = integer("gpu.memory_clock_khz");
  g.memory_bus_bits = integer("gpu.memory_bus_bits");
  g.l2_bytes = size("gpu.l2_bytes");
  g.smem_per_block = size("gpu.smem_per_block");
  g.smem_per_block_optin = size("gpu.smem_per_block_optin");
  g.smem_per_sm = size("gpu.smem_per_sm");
  g.reserved_smem_per_block = size("gpu.reserved_smem_per_block");
  g.regs_per_sm = integer("gpu.regs_per_sm");
  g.max_threads_per_sm = integer("gpu.max_threads_per_sm");
  g.max_blocks_per_sm = integer("gpu.max_blocks_per_sm");
  g.nvlinks = integer("gpu.nvlinks");
  g.power_limit_mw = integer("gpu.power_limit_mw");
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

const VisibleDevices &visible_devices() {
  static const VisibleDevices *const seen = see_devices();
  return *seen;
}

const char *setting(ConfKey key) {
  config(); // reads the file
  return value_of(key);
}

int64_t setting_number(ConfKey key) {
  config();
  return number(key);
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
