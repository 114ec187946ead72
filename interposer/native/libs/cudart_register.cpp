// Runtime: what compiled CUDA code registers when its library is loaded, before anything else runs.
//
// A fat binary is not read, since its kernels are known by name. A variable gets device memory on each device where it
// is asked for, of the size that it was registered with. Registration happens tens of thousands of times in every
// process that imports a framework. It must be cheap, and must also work where there are no emulated devices.
#include "cudart.h"

#include <map>
#include <mutex>
#include <unordered_map>

using namespace eidolon;
using namespace eidolon::runtime;

namespace {

struct Variable {
  size_t bytes;
  const char *name;
  std::map<int, void *> address; // per device
};
struct Variables {
  std::mutex mutex;
  std::unordered_map<const void *, Variable> by_host;
};
Variables &variables() {
  static auto &all = *new Variables;
  return all;
}

// The configuration of a <<<>>> launch between its push and its pop.
struct CallConfiguration {
  Dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local CallConfiguration call_configuration;

} // namespace

namespace eidolon::runtime {

Status symbol(const void *host_variable, void **address, size_t *bytes) {
  if (Status status = context())
    return status;
  Variables &all = variables();
  std::lock_guard hold(all.mutex);
  auto found = all.by_host.find(host_variable);
  if (found == all.by_host.end())
    return kInvalidSymbol;
  void *&at = found->second.address[current_device()];
  if (at == nullptr)
    if (Status status = mem_alloc(current_device(), found->second.bytes, &at))
      return status;
  *address = at;
  *bytes = found->second.bytes;
  return kSuccess;
}

} // namespace eidolon::runtime

// ---- the ABI of compiled code -------------------------------------------------------------------------------------

EID_EXPORT void **__cudaRegisterFatBinary(void *image) { return new void *(image); }
EID_EXPORT void __cudaRegisterFatBinaryEnd(void **) {}
EID_EXPORT void __cudaUnregisterFatBinary(void **handle) { delete handle; }
EID_EXPORT char __cudaInitModule(void **) { return 1; }

EID_EXPORT void __cudaRegisterFunction(void **, const char *host_function, char *, const char *name, int, uint3 *,
                                       uint3 *, dim3 *, dim3 *, int *) {
  kernel_register(host_function, name);
}

EID_EXPORT void __cudaRegisterVar(void **, char *host_variable, char *, const char *name, int, size_t bytes, int, int) {
  Variables &all = variables();
  std::lock_guard hold(all.mutex);
  all.by_host.insert_or_assign(host_variable, Variable{bytes, name, {}});
}

// A managed variable lives on the host, and the compiled code reads it through this pointer.
EID_EXPORT void __cudaRegisterManagedVar(void **, void **host_pointer, char *, const char *name, int external,
                                         size_t bytes, int constant, int global) {
  void *at = nullptr;
  if (config().active && host_alloc(bytes, &at) == kSuccess)
    *host_pointer = at;
  __cudaRegisterVar(nullptr, reinterpret_cast<char *>(host_pointer), nullptr, name, external, bytes, constant, global);
}

EID_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host_function) {
  if (kernel == nullptr)
    return report(kInvalidValue);
  if (kernel_name(host_function) == nullptr)
    return report(kInvalidFunction);
  *kernel = static_cast<cudaKernel_t>(const_cast<void *>(host_function));
  return cudaSuccess;
}

EID_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st *stream) {
  call_configuration = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, stream};
  return 0;
}

EID_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  if (grid == nullptr || block == nullptr || shared_bytes == nullptr || stream == nullptr)
    return report(kInvalidValue);
  const CallConfiguration &c = call_configuration;
  *grid = {c.grid.x, c.grid.y, c.grid.z};
  *block = {c.block.x, c.block.y, c.block.z};
  *shared_bytes = c.shared_bytes;
  *static_cast<cudaStream_t *>(stream) = c.stream;
  return cudaSuccess;
}

// ---- variables ----------------------------------------------------------------------------------------------------

extern "C" {

cudaError_t cudaGetSymbolAddress(void **address, const void *variable) {
  size_t bytes;
  return report(address != nullptr ? symbol(variable, address, &bytes) : kInvalidValue);
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *variable) {
  if (bytes == nullptr)
    return report(kInvalidValue);
  if (Status status = present())
    return report(status);
  Variables &all = variables();
  std::lock_guard hold(all.mutex);
  auto found = all.by_host.find(variable);
  if (found == all.by_host.end())
    return report(kInvalidSymbol);
  *bytes = found->second.bytes;
  return cudaSuccess;
}

} // extern "C"
