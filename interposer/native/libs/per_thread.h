// Exports for code that is compiled for per-thread default streams (nvcc --default-stream per-thread).
//
// Such code calls `NAME_ptsz` where a function takes a stream, and `NAME_ptds` where it uses the default stream. A null
// stream then means the calling thread's own.
#pragma once
#include "prototype.h"
#include "status.h"

struct CUstream_st; // cudaStream_t and CUstream are pointers to it

namespace eidolon {

inline CUstream_st *per_thread(CUstream_st *handle) {
  return handle != nullptr ? handle : reinterpret_cast<CUstream_st *>(kPerThreadHandle);
}
// Arguments that are no stream stay as they are.
template <class T> T per_thread(T argument) { return argument; }

} // namespace eidolon

// Defines NAME_ptsz, which has the `n` parameters of NAME and calls it with the thread's own stream for a null one.
#define EID_PER_THREAD(n, name)                                                                                        \
  static_assert(::eidolon::kParameters<decltype(::name)> == (n));                                                      \
  EID_EXPORT ::eidolon::Result<decltype(::name)> name##_ptsz(EID_FORMAL_##n(decltype(::name))) {                       \
    return name(EID_ACTUAL_##n);                                                                                       \
  }

// Defines a function that uses the default stream and NAME_ptds, which uses the thread's own: `stream` in the body.
#define EID_DEFAULT_STREAM(name, parameters, ...)                                                                      \
  ::eidolon::Result<decltype(::name)> name parameters {                                                                \
    CUstream_st *const stream = nullptr;                                                                               \
    return __VA_ARGS__;                                                                                                \
  }                                                                                                                    \
  EID_EXPORT ::eidolon::Result<decltype(::name)> name##_ptds parameters {                                              \
    CUstream_st *const stream = ::eidolon::per_thread(static_cast<CUstream_st *>(nullptr));                            \
    return __VA_ARGS__;                                                                                                \
  }

#define EID_FORMAL_1(F) ::eidolon::Parameter<F, 0> a0
#define EID_FORMAL_2(F) EID_FORMAL_1(F), ::eidolon::Parameter<F, 1> a1
#define EID_FORMAL_3(F) EID_FORMAL_2(F), ::eidolon::Parameter<F, 2> a2
#define EID_FORMAL_4(F) EID_FORMAL_3(F), ::eidolon::Parameter<F, 3> a3
#define EID_FORMAL_5(F) EID_FORMAL_4(F), ::eidolon::Parameter<F, 4> a4
#define EID_FORMAL_6(F) EID_FORMAL_5(F), ::eidolon::Parameter<F, 5> a5
#define EID_FORMAL_7(F) EID_FORMAL_6(F), ::eidolon::Parameter<F, 6> a6
#define EID_FORMAL_8(F) EID_FORMAL_7(F), ::eidolon::Parameter<F, 7> a7
#define EID_FORMAL_9(F) EID_FORMAL_8(F), ::eidolon::Parameter<F, 8> a8
#define EID_FORMAL_10(F) EID_FORMAL_9(F), ::eidolon::Parameter<F, 9> a9
#define EID_FORMAL_11(F) EID_FORMAL_10(F), ::eidolon::Parameter<F, 10> a10
#define EID_ACTUAL_1 ::eidolon::per_thread(a0)
#define EID_ACTUAL_2 EID_ACTUAL_1, ::eidolon::per_thread(a1)
#define EID_ACTUAL_3 EID_ACTUAL_2, ::eidolon::per_thread(a2)
#define EID_ACTUAL_4 EID_ACTUAL_3, ::eidolon::per_thread(a3)
#define EID_ACTUAL_5 EID_ACTUAL_4, ::eidolon::per_thread(a4)
#define EID_ACTUAL_6 EID_ACTUAL_5, ::eidolon::per_thread(a5)
#define EID_ACTUAL_7 EID_ACTUAL_6, ::eidolon::per_thread(a6)
#define EID_ACTUAL_8 EID_ACTUAL_7, ::eidolon::per_thread(a7)
#define EID_ACTUAL_9 EID_ACTUAL_8, ::eidolon::per_thread(a8)
#define EID_ACTUAL_10 EID_ACTUAL_9, ::eidolon::per_thread(a9)
#define EID_ACTUAL_11 EID_ACTUAL_10, ::eidolon::per_thread(a10)
