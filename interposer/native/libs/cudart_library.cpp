// Runtime: device code that is loaded at run time (cudaLibrary*), and access to the driver's functions.
#include "cudart.h"

#include <dlfcn.h>

#include "modules.h"

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

// cuGetProcAddress of the driver library beside this one. The runtime finds it by name, like the real one.
using GetProcAddress = int (*)(const char *, void **, int, unsigned long long, int *);
GetProcAddress driver_lookup() {
  static const GetProcAddress found = [] {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver != nullptr ? reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress_v2")) : nullptr;
  }();
  return found;
}

Status entry_point(const char *name, void **out, unsigned version, unsigned long long flags,
                   cudaDriverEntryPointQueryResult *result) {
  constexpr unsigned long long kKnown = cudaEnableLegacyStream | cudaEnablePerThreadDefaultStream;
  if (name == nullptr || out == nullptr || (flags & ~kKnown) != 0)
    return kInvalidValue;
  *out = nullptr;
  if (Status status = present())
    return status;
  GetProcAddress lookup = driver_lookup();
  if (lookup == nullptr)
    return kNotInitialized;
  int found = 0; // success, not found or version too low, with the same numbers in both libraries
  lookup(name, out, static_cast<int>(version), flags, &found);
  if (result != nullptr) {
    *result = static_cast<cudaDriverEntryPointQueryResult>(found);
    return kSuccess;
  }
  return found == cudaDriverEntryPointSuccess ? kSuccess : kNotFound;
}

Status loaded(cudaLibrary_t *out, Status status, Module *module) {
  *out = reinterpret_cast<cudaLibrary_t>(module);
  return status;
}

} // namespace

extern "C" {

cudaError_t cudaLibraryLoadData(cudaLibrary_t *out, const void *code, cudaJitOption *, void **, unsigned,
                                cudaLibraryOption *, void **, unsigned) {
  if (out == nullptr || code == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  host_cost(EID_CALL("cudaLibraryLoadData"));
  Module *module = nullptr;
  Status status = modules().load(code, &module);
  return report(loaded(out, status, module));
}

cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *out, const char *path, cudaJitOption *, void **, unsigned,
                                    cudaLibraryOption *, void **, unsigned) {
  if (out == nullptr || path == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  host_cost(EID_CALL("cudaLibraryLoadData"));
  Module *module = nullptr;
  Status status = modules().load_file(path, &module);
  return report(loaded(out, status, module));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return report(modules().unload(library)); }

cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t library, const char *name) {
  if (out == nullptr || name == nullptr)
    return report(kInvalidValue);
  void *handle = nullptr;
  Status status = modules().kernel(library, name, &handle);
  *out = static_cast<cudaKernel_t>(handle);
  return report(status);
}

cudaError_t cudaLibraryGetKernelCount(unsigned *count, cudaLibrary_t library) {
  return report(count != nullptr ? modules().kernel_count(library, count) : kInvalidValue);
}

cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t *kernels, unsigned capacity, cudaLibrary_t library) {
  return report(kernels != nullptr ? modules().enumerate(library, kernels, capacity) : kInvalidValue);
}

cudaError_t cudaLibraryGetGlobal(void **address, size_t *bytes, cudaLibrary_t library, const char *name) {
  if (name == nullptr || (address == nullptr && bytes == nullptr))
    return report(kInvalidValue);
  if (Status status = context())
    return report(status);
  void *at = nullptr;
  size_t size = 0;
  Status status = modules().variable(library, name, &at, &size);
  if (address != nullptr)
    *address = at;
  if (bytes != nullptr)
    *bytes = size;
  return report(status);
}

cudaError_t cudaFuncGetParamInfo(const void *function, size_t index, size_t *offset, size_t *bytes) {
  size_t size = 0;
  if (offset == nullptr)
    return report(kInvalidValue);
  if (kernel_name(function) == nullptr)
    return report(kInvalidHandle);
  Status status = modules().parameter(function, index, offset, &size);
  if (bytes != nullptr)
    *bytes = size;
  if (status == kNotSupported)
    unmodelled("cudart", "cudaFuncGetParamInfo");
  return report(status);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult *result) {
  return report(entry_point(name, out, kCudaVersion, flags, result));
}
EID_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *name, void **out, unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult *result) {
  if (flags == cudaEnableDefault)
    flags = cudaEnablePerThreadDefaultStream;
  return report(entry_point(name, out, kCudaVersion, flags, result));
}
#pragma GCC diagnostic pop

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result) {
  return report(entry_point(name, out, version, flags, result));
}
EID_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out, unsigned version,
                                                             unsigned long long flags,
                                                             cudaDriverEntryPointQueryResult *result) {
  if (flags == cudaEnableDefault)
    flags = cudaEnablePerThreadDefaultStream;
  return report(entry_point(name, out, version, flags, result));
}

} // extern "C"
