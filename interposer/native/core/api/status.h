// Status codes and errors that end the process.
//
// Status codes are the numbers that cudaError_t and CUresult share (0 success, 1 invalid value, 2 out of memory, 400
// invalid handle, 600 not ready, 801 not supported, 900.. capture errors).
#pragma once
#include <cstddef>
#include <cstdint>

#define EID_API __attribute__((visibility("default"))) // exported by libeidolon.so

namespace eidolon {

using Status = int;
inline constexpr Status kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidDevice = 101,
                        kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kNotSupported = 801,
                        kCaptureUnsupported = 900, kCaptureInvalidated = 901, kCaptureMerge = 902,
                        kCaptureUnmatched = 903, kCaptureUnjoined = 904, kCaptureIsolation = 905,
                        kCaptureImplicit = 906, kCapturedEvent = 907, kCaptureWrongThread = 908;

// Prints "eidolon: MESSAGE" and ends the process with code 70.
[[noreturn]] EID_API void fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Prints "eidolon: MESSAGE" once per distinct format.
EID_API void warn_once(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace eidolon
