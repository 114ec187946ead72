// What a generated stub does: a function that the real library exports and that nobody modelled by hand.
//
// It has the prototype of the real function, taken from its declaration, and
//   - counts itself by name in the run's summary (eidolon::unmodelled);
//   - clears its out-parameters, so that a caller that ignores the status reads zeros, not noise. An out-parameter is a
//     pointer to a non-const complete type that is trivially copyable and at most kLargestOut bytes: one element of it
//     is zeroed. `void *` stays untouched (its size is unknown), FILE is not ours to write, and device memory is never
//     written: whether a `float *` is a host scalar or a device matrix is asked of the core at run time;
//   - answers the library's "not supported"; or, in a process without emulated devices, its "no driver".
//     Where a function returns something else than a status: a text that says so, 0, nullptr, or nothing.
// Nothing is ever answered with success.
#pragma once
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "core.h"
#include "prototype.h"

namespace eidolon::stub {

inline constexpr size_t kLargestOut = 4096;

// For the generated source: a stub repeats the prototype of what it stands for.
using eidolon::kParameters;
using eidolon::Parameter;
using eidolon::Result;

// Specialised by the generated source for each status type of its library.
template <class R> struct Status {
  static constexpr bool defined = false;
};

template <class T>
concept Complete = requires { sizeof(T); };

template <class T> void clear(T argument) {
  if constexpr (std::is_pointer_v<T>) {
    using Pointee = std::remove_pointer_t<T>;
    if constexpr (!std::is_const_v<Pointee> && !std::is_void_v<Pointee> && !std::is_function_v<Pointee> &&
                  !std::is_same_v<Pointee, FILE>) {
      if constexpr (Complete<Pointee>) {
        if constexpr (std::is_trivially_copyable_v<Pointee> && sizeof(Pointee) <= kLargestOut) {
          if (argument && !is_device(argument))
            std::memset(static_cast<void *>(argument), 0, sizeof(Pointee));
        }
      }
    }
  }
}

template <class R> R answer() {
  if constexpr (std::is_void_v<R>)
    return;
  else if constexpr (Status<R>::defined)
    return config().active ? Status<R>::unsupported() : Status<R>::inactive();
  else if constexpr (std::is_same_v<R, const char *>)
    return "not modelled by eidolon";
  else
    return R{};
}

inline void count(const char *library, const char *function) {
  if (config().active)
    unmodelled(library, function);
}

template <class R, class... A> R call(const char *library, const char *function, A... arguments) {
  count(library, function);
  (clear(arguments), ...);
  return answer<R>();
}

} // namespace eidolon::stub

#define EID_STUB extern "C" __attribute__((weak, visibility("default")))
