// Invariants, which are asserted where EIDOLON_CHECKS is defined (debug and sanitizer builds). A broken invariant
// throws an exception. Nothing that the engine says after that can be trusted, but a test can say which program broke
// it.
#pragma once

#ifdef EIDOLON_CHECKS
#include <stdexcept>
#include <string>
#define EIDOLON_CHECK(condition, text)                                                                                 \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      throw std::logic_error(std::string("invariant broken: ") + (text) + " (" #condition "), " + __FILE__ + ":" +     \
                             std::to_string(__LINE__));                                                                \
    }                                                                                                                  \
  } while (false)
#else
#define EIDOLON_CHECK(condition, text) static_cast<void>(0)
#endif
