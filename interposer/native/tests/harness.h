// What the native tests share: a server directory to run in, and checks that name what failed.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi.h"

namespace test {

inline int failures = 0;

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                        \
      test::failures++;                                                                                                \
    }                                                                                                                  \
  } while (0)

#define CHECK_EQUAL(got, wanted)                                                                                       \
  do {                                                                                                                 \
    auto got_ = (got);                                                                                                 \
    auto wanted_ = (wanted);                                                                                           \
    if (!(got_ == static_cast<decltype(got_)>(wanted_))) {                                                             \
      fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, (long long)got_, (long long)wanted_); \
      test::failures++;                                                                                                \
    }                                                                                                                  \
  } while (0)

inline int result() {
  if (failures == 0)
    printf("ok\n");
  return failures == 0 ? 0 : 1;
}

// Makes a server directory with this server.conf and names it in the environment. Call before anything of the shim.
inline std::string enter_server(const char *conf) {
  char dir[] = "/tmp/eidolon-test-XXXXXX";
  if (mkdtemp(dir) == nullptr) {
    perror("mkdtemp");
    exit(1);
  }
  std::string at = dir;
  mkdir((at + "/ranks").c_str(), 0700);
  FILE *file = fopen((at + "/server.conf").c_str(), "w");
  fputs(conf, file);
  fclose(file);
  setenv("EIDOLON_DIR", dir, 1);
  return at;
}

} // namespace test
