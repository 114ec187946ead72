// Finds out what image this is: whether its C library can load our libraries, and which CUDA its framework was built
// for.
//
// The C library is judged by files alone, before anything of ours is loaded. The program's interpreter says of which
// kind it is, and symbol versions say how old it is. A preloaded object that does not fit would break every program of
// the image, with messages that do not name the cause.
//
// The framework is asked for with the image's own Python (probe.py beside us), so that environments, .pth files and
// PYTHONPATH mean what they mean to the workload.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image.h"
#include "shared.h"

enum { kProbeSeconds = 60, kDefaultCuda = 13 };

// Returns the bytes of a file, or NULL. `size` gets their number.
static const char *mapped(const char *path, size_t *size) {
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return NULL;
  void *data = MAP_FAILED;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
    data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  *size = (size_t)info.st_size;
  return data == MAP_FAILED ? NULL : data;
}

// Finds the file that a shell would run for `name`. Returns false if there is none.
static int find_program(const char *name, char out[PATH_MAX]) {
  if (strchr(name, '/'))
    return snprintf(out, PATH_MAX, "%s", name) < PATH_MAX && access(out, X_OK) == 0;
  const char *path = getenv("PATH");
  for (const char *at = path ? path : "/usr/local/bin:/usr/bin:/bin"; *at;) {
    size_t length = strcspn(at, ":");
    int fits = snprintf(out, PATH_MAX, "%.*s/%s", (int)length, at, name) < PATH_MAX;
    if (length && fits && access(out, X_OK) == 0)
      return 1;
    at += length + (at[length] == ':');
  }
  return 0;
}

// Follows "#!" lines, `env` included, to the program that really runs. `program` is changed in place.
static void follow_scripts(char program[PATH_MAX]) {
  for (int depth = 0; depth < 4; depth++) {
    char line[PATH_MAX] = "";
    FILE *file = fopen(program, "re");
    if (!file || !fgets(line, sizeof line, file) || strncmp(line, "#!", 2) != 0) {
      if (file)
        fclose(file);
      return;
    }
    fclose(file);
    char *rest = NULL, *word = strtok_r(line + 2, " \t\r\n", &rest);
    const char *base = word ? strrchr(word, '/') : NULL;
    if (word && base && strcmp(base, "/env") == 0) {
      word = strtok_r(NULL, " \t\r\n", &rest);
      while (word && word[0] == '-')
        word = strtok_r(NULL, " \t\r\n", &rest);
    }
    char found[PATH_MAX];
    if (!word || !find_program(word, found))
      return;
    memcpy(program, found, sizeof found);
  }
}

// Finds the ELF interpreter (dynamic loader) of a program. Returns false for static programs and for files that are not
// ELF.
static int loader_of(const char *program, char out[PATH_MAX]) {
  size_t size;
  const char *data = mapped(program, &size);
  int found = 0;
  if (!data)
    return 0;
  const Elf64_Ehdr *elf = (const void *)data;
  if (size >= sizeof *elf && memcmp(data, ELFMAG, SELFMAG) == 0 && data[EI_CLASS] == ELFCLASS64 &&
      elf->e_phentsize == sizeof(Elf64_Phdr) && elf->e_phoff <= size &&
      (size - elf->e_phoff) / sizeof(Elf64_Phdr) >= elf->e_phnum) {
    for (int i = 0; i < elf->e_phnum && !found; i++) {
      Elf64_Phdr segment;
      memcpy(&segment, data + elf->e_phoff + (size_t)i * sizeof segment, sizeof segment);
      if (segment.p_type != PT_INTERP || segment.p_offset > size || segment.p_filesz > size - segment.p_offset)
        continue;
      found = snprintf(out, PATH_MAX, "%.*s", (int)segment.p_filesz, data + segment.p_offset) < PATH_MAX;
    }
  }
  munmap((void *)data, size);
  return found;
}

// The highest N for which a file mentions the symbol version GLIBC_2.N. A program or library needs that version, and
// libc itself has it.
static int highest_version(const char *path) {
  static const char kPrefix[] = "GLIBC_2.";
  size_t size;
  int highest = 0;
  const char *data = mapped(path, &size);
  for (const char *at = data; at && (at = memmem(at, size - (size_t)(at - data), kPrefix, sizeof kPrefix - 1));) {
    at += sizeof kPrefix - 1;
    int number = 0;
    for (const char *digit = at; digit < data + size && isdigit((unsigned char)*digit) && number < 1000; digit++)
      number = number * 10 + (*digit - '0');
    highest = number > highest ? number : highest;
  }
  if (data)
    munmap((void *)data, size);
  return highest;
}

void check_c_library(const char *lib, const char *command) {
  char program[PATH_MAX], loader[PATH_MAX], resolved[PATH_MAX], path[2 * PATH_MAX];
  if (!find_program(command, program))
    return; // exec will say so
  follow_scripts(program);
  if (!loader_of(program, loader))
    return;
  if (strstr(loader, "/ld-musl"))
    fail(kCannotStart, "%s uses the C library musl (Alpine?); Eidolon needs an image with glibc (Debian, Ubuntu, RHEL)",
         program);
  if (!realpath(loader, resolved))
    return;
  *strrchr(resolved, '/') = 0;
  snprintf(path, sizeof path, "%s/libc.so.6", resolved);
  const int has = highest_version(path);
  DIR *directory = opendir(lib);
  int needs = 0;
  for (struct dirent *entry; has && directory && (entry = readdir(directory));) {
    if (!strstr(entry->d_name, ".so"))
      continue;
    snprintf(path, sizeof path, "%s/%s", lib, entry->d_name);
    int version = highest_version(path);
    needs = version > needs ? version : needs;
  }
  if (directory)
    closedir(directory);
  if (has && needs > has)
    fail(kCannotStart, "this image has glibc 2.%d; Eidolon needs 2.%d or newer", has, needs);
}

// Runs probe.py with the Python of the command, or else with the first on PATH. Its lines go to `out`. Returns false if
// there is no Python.
static int ask_python(const char *probe, const char *command, char *out, size_t capacity) {
  static const char *const kNames[] = {"python3", "python"};
  char python[PATH_MAX];
  int found = find_program(command, python);
  if (found) {
    follow_scripts(python);
    const char *base = strrchr(python, '/');
    found = strncmp(base ? base + 1 : python, "python", 6) == 0;
  }
  for (int i = 0; !found && i < 2; i++)
    found = find_program(kNames[i], python);
  int pipes[2];
  if (!found || access(probe, R_OK) != 0 || pipe2(pipes, O_CLOEXEC) != 0)
    return 0;
  pid_t child = fork();
  if (child == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kProbeSeconds);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDERR_FILENO);
    dup2(pipes[1], STDOUT_FILENO);
    execl(python, python, probe, (char *)NULL);
    _exit(kCannotRun);
  }
  close(pipes[1]);
  size_t length = 0;
  for (ssize_t got; length < capacity - 1; length += (size_t)got) {
    got = read(pipes[0], out + length, capacity - 1 - length);
    if (got < 0 && errno == EINTR)
      got = 0;
    else if (got <= 0)
      break;
  }
  out[length] = 0;
  close(pipes[0]);
  int status = -1;
  if (child > 0)
    waitpid(child, &status, 0);
  return child > 0 && status == 0;
}

// Returns the value of "key=" in the probe's lines, or "".
static void value_of(const char *lines, const char *key, char out[256]) {
  size_t length = strlen(key);
  out[0] = 0;
  for (const char *line = lines; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
    if (strncmp(line, key, length) == 0 && line[length] == '=') {
      snprintf(out, 256, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
      return;
    }
  }
}

void choose_libraries(char out[PATH_MAX], const char *root, char **command) {
  char lines[4096] = "", probe[PATH_MAX + 16], other[256], python[256], torch[256], cuda[256];
  snprintf(probe, sizeof probe, "%s/probe.py", root);
  int asked = ask_python(probe, command[0], lines, sizeof lines);
  value_of(lines, "other_python", other);
  value_of(lines, "python", python);
  value_of(lines, "torch", torch);
  value_of(lines, "cuda", cuda);
  if (*other)
    fail(kCannotStart, "torch %s is a wheel for Python %s; the image's Python is %s", torch, other, python);
  const int major = *cuda ? atoi(cuda) : kDefaultCuda;
  struct stat info;
  int fits = snprintf(out, PATH_MAX, major == kDefaultCuda ? "%s/lib" : "%s/lib%d", root, major) < PATH_MAX;
  if (!fits || stat(out, &info) != 0 || !S_ISDIR(info.st_mode))
    // the message names torch and its version, or else the image
    fail(kCannotStart, "%s%s is built for CUDA %d; this installation of Eidolon has no libraries for it",
         *torch ? "torch " : "the image", torch, major);
  char plugin[PATH_MAX + 300], text[sizeof lines + sizeof plugin];
  int missing = *torch && (snprintf(plugin, sizeof plugin, "%s/lib/plugins/torch-%s.so", root, torch), 1) &&
                access(plugin, R_OK) != 0;
  snprintf(text, sizeof text, "%slibraries=cuda%d\nplugin=%s\n", asked ? lines : "", major,
           !*torch   ? ""
           : missing ? "none"
                     : strrchr(plugin, '/') + 1);
  write_shared("image", text);
}
