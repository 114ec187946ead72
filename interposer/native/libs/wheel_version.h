// The version that the running framework's own copy of a library has.
//
// One build of the shim serves several framework releases. Each compares the library's version with the one that it was
// built against, or chooses its paths by it. So a library answers with the version of the wheel that is installed
// beside the framework, which its header states. Without such a wheel it answers with the newest version that the shim
// knows.
#pragma once
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace eidolon {

// Returns the directory that holds the packages `torch` and `nvidia`, or an empty text.
inline void packages_directory(char (&out)[1024]) {
  out[0] = 0;
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *data) {
        const char *at = info->dlpi_name != nullptr ? std::strstr(info->dlpi_name, "/torch/lib/libtorch") : nullptr;
        if (at == nullptr || at - info->dlpi_name >= 1024)
          return 0;
        char *to = static_cast<char *>(data);
        std::memcpy(to, info->dlpi_name, static_cast<size_t>(at - info->dlpi_name));
        to[at - info->dlpi_name] = 0;
        return 1;
      },
      out);
}

// Reads up to three numbers "#define NAMES[i] number" from nvidia/HEADER of the framework's wheels into `values`.
// Returns false, with `values` untouched, unless all are there.
template <int n> bool wheel_version(const char *header, const char *const (&names)[n], int (&values)[n]) {
  char directory[1024], path[1200], line[512], name[128];
  packages_directory(directory);
  if (directory[0] == 0)
    return false;
  std::snprintf(path, sizeof(path), "%s/nvidia/%s", directory, header);
  FILE *file = std::fopen(path, "r");
  if (file == nullptr)
    return false;
  int read[n], found = 0, value = 0;
  while (found < n && std::fgets(line, sizeof(line), file) != nullptr)
    if (std::sscanf(line, "#define %127s %d", name, &value) == 2)
      for (int i = 0; i < n; ++i)
        if (std::strcmp(name, names[i]) == 0) {
          read[i] = value;
          ++found;
        }
  std::fclose(file);
  if (found < n)
    return false;
  std::memcpy(values, read, sizeof(read));
  return true;
}

} // namespace eidolon
