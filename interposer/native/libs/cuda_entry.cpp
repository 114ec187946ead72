// Driver: its functions by name and version, and the tables that only NVIDIA's own libraries ask for.
//
// cuGetProcAddress answers the form of a function that the asked-for CUDA version had (cuda_versions.h). A name that is
// newer than that table is looked for as it stands.
#include "cuda_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>

#include "cuda_versions.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

// The handle of this library, under whatever name it was loaded.
void *self() {
  static void *const handle = [] {
    Dl_info info;
    const bool found = dladdr(reinterpret_cast<void *>(&cuInit), &info) != 0;
    return found ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  }();
  return handle;
}

bool per_thread_form(std::string_view suffix) { return suffix.ends_with("_ptsz") || suffix.ends_with("_ptds"); }

void *lookup(const char *name, int version, bool own_streams, CUdriverProcAddressQueryResult *found) {
  auto before = [](const EntryVersion &row, const char *wanted) { return std::strcmp(row.name, wanted) < 0; };
  const EntryVersion *row = std::lower_bound(std::begin(kEntryVersions), std::end(kEntryVersions), name, before);
  const bool listed = row != std::end(kEntryVersions) && std::strcmp(row->name, name) == 0;
  char symbol[160];
  if (!listed) {
    std::snprintf(symbol, sizeof symbol, "%s", name);
  } else {
    const EntryVersion *last = row;
    while (last != std::end(kEntryVersions) && std::strcmp(last->name, name) == 0)
      ++last;
    const bool has_form =
        own_streams && std::any_of(row, last, [](const EntryVersion &r) { return per_thread_form(r.suffix); });
    const EntryVersion *best = nullptr;
    for (; row != last; ++row)
      if (per_thread_form(row->suffix) == has_form && row->since <= version &&
          (best == nullptr || row->since > best->since))
        best = row;
    if (best == nullptr) {
      *found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      return nullptr;
    }
    std::snprintf(symbol, sizeof symbol, "%s%s", name, best->suffix);
  }
  void *at = std::strncmp(symbol, "cu", 2) == 0 ? dlsym(self(), symbol) : nullptr;
  *found = at != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return at;
}

} // namespace

extern "C" {

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found) {
  constexpr cuuint64_t kKnown = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (name == nullptr || out == nullptr || (flags & ~kKnown) != 0)
    return result(kInvalidValue);
  CUdriverProcAddressQueryResult state;
  *out = lookup(name, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &state);
  if (found != nullptr) {
    *found = state;
    return result(kSuccess);
  }
  return result(*out != nullptr ? kSuccess : kNotFound);
}
#undef cuGetProcAddress
EID_EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}

} // extern "C"
