// Kernels: from a host function or module handle to a name, and from a launch to a signature.
//
// A kernel's signature is its mangled name, its geometry, the operator it runs for (torch plugin) and, for elementwise
// kernels, the element count, which is their first parameter. Names say the rest: functor, data type, operand count.
//
// Outside an operator (no plugin, or a kernel that a program launches itself) a launch makes bytes unknown by its
// pointer arguments: those that the kernel's code writes through, where its module has PTX (Triton). Otherwise the
// demangled name tells: the first device pointer of an elementwise kernel is its output; of other kernels every pointer
// parameter that is not to const.
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "internal.h"
#include "symmetric.h"

namespace eidolon {
namespace {

struct Kernel {
  std::string name;
  bool elementwise = false;
  bool spins = false; // torch.cuda._sleep: its parameter is a number of cycles
  Symmetric symmetric = Symmetric::kNo;
  bool analysed = false;
  std::vector<bool> output;  // per parameter: a pointer to non-const
  std::vector<int> operands; // per parameter: pointers in a by-value array<char*, N>, 0 if it is none
};

// A host function or a handle. Kernels of the same name in different modules share a Kernel but not attributes.
struct Function {
  Kernel *kernel;
  std::vector<std::pair<int, int>> attributes = {};
  std::vector<bool> outputs = {}; // per parameter, from its code
};

struct Kernels {
  std::shared_mutex mutex;
  std::unordered_map<const void *, Function> by_function;
  std::unordered_map<std::string_view, Kernel *> by_name;
};
Kernels *kernels() {
  static Kernels *all = new Kernels;
  return all;
}

Kernel *kernel_named(Kernels *k, const char *name) { // caller holds the mutex
  auto found = k->by_name.find(name);
  if (found != k->by_name.end())
    return found->second;
  auto *kernel = new Kernel;
  kernel->name = name;
  kernel->elementwise = strstr(name, "elementwise_kernel") != nullptr;
  kernel->spins = strstr(name, "spin_kernel") != nullptr;
  kernel->symmetric = symmetric_kernel(name);
  k->by_name.emplace(kernel->name, kernel);
  return kernel;
}

// Parameters of a demangled function, split at top-level commas.
std::vector<std::string_view> parameters_of(std::string_view text) {
  std::vector<std::string_view> out;
  int depth = 0;
  size_t close = text.rfind(')');
  if (close == std::string_view::npos)
    return out;
  size_t open = close;
  for (size_t i = close + 1; i-- > 0;) {
    char c = text[i];
    if (c == ')' || c == '>' || c == ']' || c == '}')
      depth++;
    if (c == '(' || c == '<' || c == '[' || c == '{')
      if (--depth == 0) {
        open = i;
        break;
      }
  }
  size_t start = open + 1;
  depth = 0;
  for (size_t i = start; i <= close; ++i) {
    char c = text[i];
    if (i == close || (c == ',' && depth == 0)) {
      if (i > start)
        out.push_back(text.substr(start, i - start));
      start = i + 1;
    } else if (c == '(' || c == '<' || c == '[' || c == '{') {
      depth++;
    } else if (c == ')' || c == '>' || c == ']' || c == '}') {
      depth--;
    }
  }
  return out;
}

void analyse(Kernel *kernel) {
  kernel->analysed = true;
  int status = 0;
  char *text = abi::__cxa_demangle(kernel->name.c_str(), nullptr, nullptr, &status);
  if (status != 0 || text == nullptr)
    return;
  for (std::string_view p : parameters_of(text)) {
    size_t last = p.find_last_not_of(' ');
    bool pointer = last != std::string_view::npos && p[last] == '*';
    kernel->output.push_back(pointer && p.find("const*") == std::string_view::npos);
    int count = 0;
    for (const char *array : {"array<char*, ", "Array<char*, "})
      if (size_t at = p.find(array); at != std::string_view::npos)
        count = atoi(std::string(p.substr(at + strlen(array), 4)).c_str());
    kernel->operands.push_back(count);
  }
  free(text);
}

// Makes what an operation wrote at `pointer` unknown: `bytes` of it, or, where its size is not known (0), the known
// bytes that begin there.
void forget_from(const void *pointer, size_t bytes) {
  uintptr_t begin, end;
  if (!is_device(pointer) || !memory_range_of(pointer, &begin, &end))
    return;
  const size_t room = end - reinterpret_cast<uintptr_t>(pointer);
  value_unknown(const_cast<void *>(pointer), bytes != 0 ? std::min(bytes, room) : value_known(pointer, room));
}

// Of a kernel whose code says through which parameters it writes.
void forget_written(const std::vector<bool> &outputs, void **arguments) {
  for (size_t i = 0; i < outputs.size(); ++i)
    if (const void *pointer; outputs[i]) {
      memcpy(&pointer, arguments[i], sizeof pointer);
      forget_from(pointer, 0);
    }
}

// Of a kernel whose name says it.
void forget_outputs(Kernel *kernel, void **arguments, int64_t elements) {
  if (!kernel->analysed)
    analyse(kernel);
  constexpr size_t kWidest = 16; // bytes of the widest element type
  for (size_t i = 0; i < kernel->output.size(); ++i) {
    if (kernel->operands[i] > 0) { // TensorIterator's data pointers: the first is the output
      const void *first;
      memcpy(&first, arguments[i], sizeof first);
      forget_from(first, elements > 0 ? static_cast<size_t>(elements) * kWidest : 0);
    } else if (kernel->output[i]) {
      const void *pointer;
      memcpy(&pointer, arguments[i], sizeof pointer);
      forget_from(pointer, 0);
    }
  }
}

// What the code of a function says of its outputs; nullptr where it says nothing. It lives as long as the process.
const std::vector<bool> *outputs_of(const void *function) {
  Kernels *k = kernels();
  std::shared_lock hold(k->mutex);
  auto found = k->by_function.find(function);
  return found == k->by_function.end() || found->second.outputs.empty() ? nullptr : &found->second.outputs;
}

struct CacheEntry {
  const Kernel *kernel = nullptr;
  Dim3 grid{}, block{};
  size_t shared_bytes = 0;
  int64_t n = 0;
  uint32_t op = 0, sig = 0;
};

uint32_t launch_signature(const Kernel *kernel, const Launch &l, int64_t n) {
  constexpr size_t kEntries = 4096;
  thread_local std::vector<CacheEntry> cache(kEntries);
  const uint32_t op = current_operator();
  uint64_t hash = reinterpret_cast<uintptr_t>(kernel) * 0x9E3779B97F4A7C15ULL;
  for (uint64_t part : {uint64_t{l.grid.x}, uint64_t{l.grid.y}, uint64_t{l.grid.z}, uint64_t{l.block.x},
                        uint64_t{l.block.y}, uint64_t{l.shared_bytes}, static_cast<uint64_t>(n), uint64_t{op}})
    hash = (hash ^ part) * 0xD6E8FEB86659FD93ULL;
  CacheEntry &entry = cache[(hash >> 40) % kEntries];
  if (entry.kernel == kernel && memcmp(&entry.grid, &l.grid, sizeof l.grid) == 0 &&
      memcmp(&entry.block, &l.block, sizeof l.block) == 0 && entry.shared_bytes == l.shared_bytes && entry.n == n &&
      entry.op == op)
    return entry.sig;
  const signatures::Kernel fields = {.gx = l.grid.x,
                                     .gy = l.grid.y,
                                     .gz = l.grid.z,
                                     .bx = l.block.x,
                                     .by = l.block.y,
                                     .bz = l.block.z,
                                     .smem = static_cast<int64_t>(l.shared_bytes),
                                     .n = n,
                                     .op = op};
  entry = {kernel, l.grid, l.block, l.shared_bytes, n, op, signature(kernel->name.c_str(), fields)};
  return entry.sig;
}

} // namespace

void kernel_register(const void *host_function, const char *mangled_name) {
  Kernels *k = kernels();
  std::unique_lock hold(k->mutex);
  k->by_function.insert_or_assign(host_function, Function{kernel_named(k, mangled_name)});
}

const char *kernel_name(const void *handle) {
  Kernels *k = kernels();
  std::shared_lock hold(k->mutex);
  auto found = k->by_function.find(handle);
  return found == k->by_function.end() ? nullptr : found->second.kernel->name.c_str();
}

void *kernel_handle(const char *mangled_name, std::vector<bool> outputs) {
  Kernels *k = kernels();
  std::unique_lock hold(k->mutex);
  void *handle = new char; // an address of its own
  k->by_function.emplace(handle, Function{kernel_named(k, mangled_name), {}, std::move(outputs)});
  return handle;
}

void kernel_set_attribute(const void *handle, int attribute, int value) {
  Kernels *k = kernels();
  std::unique_lock hold(k->mutex);
  auto found = k->by_function.find(handle);
  if (found == k->by_function.end())
    return;
  for (auto &[number, set] : found->second.attributes)
    if (number == attribute) {
      set = value;
      return;
    }
  found->second.attributes.emplace_back(attribute, value);
}

int kernel_attribute(const void *handle, int attribute, int otherwise) {
  Kernels *k = kernels();
  std::shared_lock hold(k->mutex);
  auto found = k->by_function.find(handle);
  if (found != k->by_function.end())
    for (auto [number, value] : found->second.attributes)
      if (number == attribute)
        return value;
  return otherwise;
}

Status launch_operation(Stream *stream, uint32_t sig, uint16_t call) {
  if (capture_node(stream, NodeType::kKernel, [=](Stream *lane, uint8_t flags) {
        emit_work({.kind = Kind::kKernel, .flags = flags, .stream = lane, .sig = sig});
      }))
    return kSuccess;
  count_library_call();
  emit_work({.kind = Kind::kKernel, .call = call, .stream = stream, .sig = sig});
  return kSuccess;
}

Status launch_kernel(const Launch &launch) {
  const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 || threads == 0 || threads > 1024 ||
      launch.shared_bytes > config().gpu.smem_per_block_optin)
    return 9; // cudaErrorInvalidConfiguration
  if (Status status = ensure_context(launch.stream->device); status != kSuccess)
    return status;
  Kernels *k = kernels();
  thread_local const char *last_name = nullptr;
  thread_local Kernel *last = nullptr;
  if (launch.name != last_name) {
    std::unique_lock hold(k->mutex);
    last = kernel_named(k, launch.name);
    last_name = last->name.c_str() == launch.name ? launch.name : nullptr; // only our own pointers are stable
  }
  Kernel *kernel = last;
  if (kernel->symmetric != Symmetric::kNo)
    return launch_symmetric(kernel->symmetric, launch);
  int64_t n = -1;
  if (kernel->elementwise && launch.arguments != nullptr && launch.arguments[0] != nullptr) {
    int32_t first;
    memcpy(&first, launch.arguments[0], sizeof first);
    n = first;
  } else if (kernel->spins && launch.arguments != nullptr && launch.arguments[0] != nullptr) {
    memcpy(&n, launch.arguments[0], sizeof n);
  }
  const uint32_t sig = launch_signature(kernel, launch, n);
  auto stale = [=] {
    if (current_operator() != 0 || launch.arguments == nullptr)
      return;
    if (const std::vector<bool> *outputs = outputs_of(launch.function))
      forget_written(*outputs, launch.arguments);
    else
      forget_outputs(kernel, launch.arguments, n);
  };
  if (in_capture(launch.stream)) {
    stale(); // the arguments are gone at replay; what it writes is unknown from the capture on
    capture_node(launch.stream, NodeType::kKernel, [=](Stream *lane, uint8_t flags) {
      emit_work({.kind = Kind::kKernel, .flags = flags, .stream = lane, .sig = sig});
    });
    return kSuccess;
  }
  count_launch();
  emit_work({.kind = Kind::kKernel, .call = launch.call, .stream = launch.stream, .sig = sig});
  stale();
  return kSuccess;
}

} // namespace eidolon
