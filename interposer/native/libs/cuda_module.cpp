// Driver: modules, libraries, kernels and functions, and the linker of device code.
//
// A module and a library are the same thing here (modules.h), as are a kernel and a function: handles of the core,
// which the runtime accepts as well. A function of compiled code (cudaGetFuncBySymbol) has its host address as handle.
#include "cuda_driver.h"

#include <cstring>

#include "modules.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

Status load(void **out, const void *image) {
  if (out == nullptr || image == nullptr)
    return kInvalidValue;
  *out = nullptr;
  host_cost(EID_CALL("cuModuleLoadData"));
  Module *module = nullptr;
  Status status = modules().load(image, &module);
  *out = module;
  return status;
}

Status load_file(void **out, const char *path) {
  if (out == nullptr || path == nullptr)
    return kInvalidValue;
  *out = nullptr;
  host_cost(EID_CALL("cuModuleLoadData"));
  Module *module = nullptr;
  Status status = modules().load_file(path, &module);
  *out = module;
  return status;
}

Status get_kernel(void **out, const void *module, const char *name) {
  if (out == nullptr || name == nullptr)
    return kInvalidValue;
  *out = nullptr;
  return modules().kernel(module, name, out);
}

Status get_variable(CUdeviceptr *at, size_t *bytes, const void *module, const char *name) {
  if (name == nullptr || (at == nullptr && bytes == nullptr))
    return kInvalidValue;
  if (Status status = current_context())
    return status;
  void *found = nullptr;
  size_t size = 0;
  Status status = modules().variable(module, name, &found, &size);
  if (at != nullptr)
    *at = address(found);
  if (bytes != nullptr)
    *bytes = size;
  return status;
}

Status known(const void *kernel) {
  if (Status status = initialised())
    return status;
  return kernel_name(kernel) != nullptr ? kSuccess : kInvalidHandle;
}

Status get_attribute(int *value, int number, const void *kernel) {
  if (value == nullptr)
    return kInvalidValue;
  if (Status status = known(kernel))
    return status;
  return get_kernel_attribute(kernel, number, value) ? kSuccess : kInvalidValue;
}

Status set_attribute(const void *kernel, int number, int value) {
  if (Status status = known(kernel))
    return status;
  return set_kernel_attribute(kernel, number, value);
}

Status get_name(const char **name, const void *kernel) {
  if (name == nullptr)
    return kInvalidValue;
  if (Status status = known(kernel))
    return status;
  *name = kernel_name(kernel);
  return kSuccess;
}

Status get_parameter(const void *kernel, size_t index, size_t *offset, size_t *bytes) {
  size_t size = 0;
  if (offset == nullptr)
    return kInvalidValue;
  if (Status status = known(kernel))
    return status;
  Status status = modules().parameter(kernel, index, offset, &size);
  if (bytes != nullptr)
    *bytes = size;
  if (status == kNotSupported)
    unmodelled("cuda", "cuFuncGetParamInfo");
  return status;
}

Status get_owner(void **out, const void *kernel) {
  if (out == nullptr)
    return kInvalidValue;
  *out = modules().owner(kernel);
  return *out != nullptr ? kSuccess : kInvalidHandle;
}

// One image can be linked, and it comes out as it went in. To link several is not modelled.
struct Linker {
  std::string image;
};

} // namespace

struct CUlinkState_st : Linker {};

extern "C" {

// ---- modules ------------------------------------------------------------------------------------------------------

CUresult cuModuleLoad(CUmodule *out, const char *path) {
  if (Status status = current_context())
    return result(status);
  return result(load_file(reinterpret_cast<void **>(out), path));
}
CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  if (Status status = current_context())
    return result(status);
  return result(load(reinterpret_cast<void **>(out), image));
}
CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned, CUjit_option *, void **) {
  return cuModuleLoadData(out, image);
}
CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return cuModuleLoadData(out, image); }

CUresult cuModuleUnload(CUmodule module) { return result(modules().unload(module)); }

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  return result(get_kernel(reinterpret_cast<void **>(out), module, name));
}

CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
  return result(count != nullptr ? modules().kernel_count(module, count) : kInvalidValue);
}

CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned capacity, CUmodule module) {
  return result(out != nullptr ? modules().enumerate(module, out, capacity) : kInvalidValue);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name) {
  return result(get_variable(at, bytes, module, name));
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  if (mode == nullptr)
    return result(kInvalidValue);
  *mode = CU_MODULE_LAZY_LOADING;
  return result(initialised());
}

// ---- libraries ----------------------------------------------------------------------------------------------------

CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *, void **, unsigned, CUlibraryOption *,
                           void **, unsigned) {
  if (Status status = initialised())
    return result(status);
  return result(load(reinterpret_cast<void **>(out), code));
}
CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *, void **, unsigned, CUlibraryOption *,
                               void **, unsigned) {
  if (Status status = initialised())
    return result(status);
  return result(load_file(reinterpret_cast<void **>(out), path));
}
CUresult cuLibraryUnload(CUlibrary library) { return result(modules().unload(library)); }

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  return result(get_kernel(reinterpret_cast<void **>(out), library, name));
}
CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
  return result(count != nullptr ? modules().kernel_count(library, count) : kInvalidValue);
}
CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned capacity, CUlibrary library) {
  return result(out != nullptr ? modules().enumerate(library, out, capacity) : kInvalidValue);
}
CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library) {
  unsigned count;
  if (out == nullptr)
    return result(kInvalidValue);
  Status status = modules().kernel_count(library, &count); // fails if it is no library
  *out = status == kSuccess ? reinterpret_cast<CUmodule>(library) : nullptr;
  return result(status);
}
CUresult cuLibraryGetGlobal(CUdeviceptr *at, size_t *bytes, CUlibrary library, const char *name) {
  return result(get_variable(at, bytes, library, name));
}

// ---- kernels and functions ------------------------------------------------------------------------------------------

CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  if (out == nullptr)
    return result(kInvalidValue);
  *out = reinterpret_cast<CUfunction>(kernel);
  return result(known(kernel));
}
CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel kernel) {
  return result(get_owner(reinterpret_cast<void **>(out), kernel));
}
CUresult cuKernelGetName(const char **name, CUkernel kernel) { return result(get_name(name, kernel)); }
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
  return result(get_parameter(kernel, index, offset, bytes));
}
CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  return result(get_attribute(value, attribute, kernel));
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  return result(set_attribute(kernel, attribute, value));
}
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice) { return result(known(kernel)); }

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction kernel) {
  return result(get_attribute(value, attribute, kernel));
}
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute attribute, int value) {
  return result(set_attribute(kernel, attribute, value));
}
CUresult cuFuncSetCacheConfig(CUfunction kernel, CUfunc_cache) { return result(known(kernel)); }
CUresult cuFuncGetName(const char **name, CUfunction kernel) { return result(get_name(name, kernel)); }
CUresult cuFuncGetModule(CUmodule *out, CUfunction kernel) {
  return result(get_owner(reinterpret_cast<void **>(out), kernel));
}
CUresult cuFuncGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *bytes) {
  return result(get_parameter(kernel, index, offset, bytes));
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction kernel) {
  if (state == nullptr)
    return result(kInvalidValue);
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return result(known(kernel));
}
CUresult cuFuncLoad(CUfunction kernel) { return result(known(kernel)); }

// ---- linker -------------------------------------------------------------------------------------------------------

CUresult cuLinkCreate_v2(unsigned, CUjit_option *, void **, CUlinkState *out) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  *out = new CUlinkState_st;
  return result(kSuccess);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType, void *data, size_t bytes, const char *, unsigned,
                          CUjit_option *, void **) {
  if (state == nullptr || data == nullptr || bytes == 0)
    return result(kInvalidValue);
  if (!state->image.empty()) {
    unmodelled("cuda", "cuLinkAddData of several images");
    return result(kNotSupported);
  }
  state->image.assign(static_cast<const char *>(data), bytes);
  state->image.append(64, '\0'); // PTX is read as a string, headers in full
  return result(kSuccess);
}

// Valid until the state is destroyed.
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes) {
  if (state == nullptr || image == nullptr || state->image.empty())
    return result(kInvalidValue);
  host_cost(EID_CALL("cuLinkComplete"));
  *image = state->image.data();
  if (bytes != nullptr)
    *bytes = state->image.size();
  return result(kSuccess);
}

CUresult cuLinkDestroy(CUlinkState state) {
  delete state;
  return result(state != nullptr ? kSuccess : kInvalidHandle);
}

} // extern "C"
