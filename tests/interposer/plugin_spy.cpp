// Stands in front of libeidolon.so in tests of the torch plugin: keeps the signatures that pass, counts how often the
// current operator changes, and gives functions of the core C names that Python can call. The function behind one that
// is defined here can only be found by its mangled name.
#include <cstdint>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <utility>
namespace eidolon {
struct Attribute {
  const char *key;
  int64_t value;
};
uint32_t current_operator();
size_t value_known(const void *pointer, size_t bytes);

static std::mutex &mutex = *new std::mutex;
static std::map<uint32_t, std::string> &texts = *new std::map<uint32_t, std::string>;
static std::string &passed = *new std::string;
static int switches = 0;
uint32_t intern(const char *kind, const char *name, const Attribute *attributes, size_t n) {
  using F = uint32_t (*)(const char *, const char *, const Attribute *, size_t);
  static F real = (F)dlsym(RTLD_NEXT, "_ZN7eidolon6internEPKcS1_PKNS_9AttributeEm");
  uint32_t id = real(kind, name, attributes, n);
  std::string text = std::string(kind) + "\t" + name;
  for (size_t i = 0; i < n; ++i)
    text += "\t" + std::string(attributes[i].key) + "=" + std::to_string(attributes[i].value);
  std::lock_guard hold(mutex);
  texts[id] = text;
  passed += text + "\n";
  return id;
}
void set_operator(uint32_t sig) {
  using F = void (*)(uint32_t);
  static F real = (F)dlsym(RTLD_NEXT, "_ZN7eidolon12set_operatorEj");
  ++switches;
  real(sig);
}
} // namespace eidolon
extern "C" uint32_t spy_current_operator() { return eidolon::current_operator(); }
extern "C" size_t spy_value_known(const void *pointer, size_t bytes) { return eidolon::value_known(pointer, bytes); }
extern "C" const char *spy_text(uint32_t id) { return eidolon::texts[id].c_str(); }
extern "C" int spy_switches() { return std::exchange(eidolon::switches, 0); }
extern "C" const char *spy_passed() {
  static std::string out;
  std::lock_guard hold(eidolon::mutex);
  out = std::exchange(eidolon::passed, "");
  return out.c_str();
}
