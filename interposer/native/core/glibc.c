// What our libraries use of glibc, as glibc 2.28 has it, so that they load in every image from RHEL 8 and Debian 10 on,
// whatever they were built on.
//
// Linked on a newer glibc, a library asks for the newest version of each function: `pthread_once@GLIBC_2.34`, although
// the one of 2.2.5 is still there and does the same. Each function here is defined under its plain name, hidden, and
// calls the old version; being nearer than libc's, it is what our code and the static parts of the C++ library are
// linked to. What 2.28 does not have at all is written out. tests/interposer/test_floor.py holds the floor: a function
// that newly goes beyond it gets a line here.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

#if defined(__x86_64__) && defined(__GLIBC__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__) && defined(__GLIBC__)
#define OLDEST "GLIBC_2.17"
#endif

#ifdef OLDEST
#define HIDDEN __attribute__((visibility("hidden")))
// A name for the old version of a function, and its own name defined by it.
#define OLD(result, name, parameters, arguments)                                                                       \
  extern result old_##name parameters;                                                                                 \
  __asm__(".symver old_" #name ", " #name "@" OLDEST);                                                                 \
  HIDDEN result name parameters { return old_##name arguments; }

// ---- moved to libc in 2.34, with a new version ---------------------------------------------------------------------
OLD(int, dladdr, (const void *address, Dl_info *info), (address, info))
OLD(char *, dlerror, (void), ())
OLD(void *, dlsym, (void *restrict handle, const char *restrict name), (handle, name))
OLD(int, pthread_create,
    (pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*start)(void *),
     void *restrict argument),
    (thread, attributes, start, argument))
OLD(int, pthread_detach, (pthread_t thread), (thread))
OLD(int, pthread_join, (pthread_t thread, void **result), (thread, result))
OLD(int, pthread_once, (pthread_once_t * once, void (*routine)(void)), (once, routine))
OLD(int, pthread_key_create, (pthread_key_t * key, void (*destructor)(void *)), (key, destructor))
OLD(int, __pthread_key_create, (pthread_key_t * key, void (*destructor)(void *)), (key, destructor))
OLD(int, pthread_key_delete, (pthread_key_t key), (key))
OLD(void *, pthread_getspecific, (pthread_key_t key), (key))
OLD(int, pthread_setspecific, (pthread_key_t key, const void *value), (key, value))
OLD(int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
OLD(int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
OLD(int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), (lock))

// ---- set errno otherwise since 2.29 --------------------------------------------------------------------------------
OLD(double, exp, (double x), (x))
OLD(double, log, (double x), (x))
OLD(double, log2, (double x), (x))
OLD(double, pow, (double x, double y), (x, y))

// ---- new after 2.28 ------------------------------------------------------------------------------------------------
// 2.30's pthread_cond_clockwait, with which the C++ library waits on the steady clock, is in watcher.cpp.

// 2.32. Not to know costs std::shared_ptr an atomic operation.
HIDDEN char __libc_single_threaded = 0;

// 2.36. For std::random_device.
HIDDEN uint32_t arc4random(void) {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) < 0 && errno == EINTR) {
  }
  return value;
}

// 2.35. With it the unwinder finds the frames of an address.
struct place {
  uintptr_t address, begin, end;
  const void *frames;
};

static int holds(struct dl_phdr_info *info, size_t size, void *argument) {
  struct place *place = argument;
  uintptr_t begin = UINTPTR_MAX, end = 0;
  const void *frames = NULL;
  int inside = 0;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME)
      frames = (const void *)at;
    if (part->p_type != PT_LOAD)
      continue;
    begin = at < begin ? at : begin;
    end = at + part->p_memsz > end ? at + part->p_memsz : end;
    inside |= place->address >= at && place->address < at + part->p_memsz;
  }
  if (inside && frames)
    *place = (struct place){place->address, begin, end, frames};
  return inside;
}

#if defined(DLFO_STRUCT_HAS_EH_DBASE) && !DLFO_STRUCT_HAS_EH_DBASE && !DLFO_STRUCT_HAS_EH_COUNT
HIDDEN int _dl_find_object(void *address, struct dl_find_object *result) {
  struct place place = {(uintptr_t)address, 0, 0, NULL};
  dl_iterate_phdr(holds, &place);
  if (!place.frames)
    return -1;
  memset(result, 0, sizeof *result);
  result->dlfo_map_start = (void *)place.begin;
  result->dlfo_map_end = (void *)place.end;
  result->dlfo_eh_frame = (void *)place.frames;
  return 0;
}
#endif
#endif
