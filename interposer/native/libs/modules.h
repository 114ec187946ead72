// Loaded device code (modules and libraries), for the runtime and the driver. It finds kernels and variables by name.
//
// A kernel handle comes from the core, so the runtime can launch what the driver loaded, and the other way round. Each
// knows only the modules that it loaded itself.
#pragma once
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "cubin.h"

namespace eidolon {

struct Module {
  Image image;
  std::map<std::string, void *> kernels;                          // handles made so far
  std::map<std::pair<std::string, int>, void *> variable_address; // by name and device
};

class Modules {
public:
  Status load(const void *data, Module **out) {
    auto module = std::make_unique<Module>();
    if (!read_image(data, &module->image))
      return kInvalidImage;
    std::lock_guard hold(mutex_);
    *out = module.get();
    live_[module.get()] = std::move(module);
    return kSuccess;
  }

  Status load_file(const char *path, Module **out) {
    std::FILE *file = std::fopen(path, "rbe");
    if (file == nullptr)
      return kFileNotFound;
    std::string bytes;
    char block[65536];
    size_t got;
    do {
      got = std::fread(block, 1, sizeof block, file);
      bytes.append(block, got);
    } while (got == sizeof block);
    std::fclose(file);
    bytes.append(64, '\0'); // PTX is read as a string, headers in full
    return load(bytes.data(), out);
  }

  // Handles of its kernels stay valid: a launch that is still queued may name one.
  Status unload(const void *module) {
    std::lock_guard hold(mutex_);
    auto found = live_.find(module);
    if (found == live_.end())
      return kInvalidHandle;
    for (auto &[key, address] : found->second->variable_address)
      mem_free(address);
    for (auto &[name, handle] : found->second->kernels)
      owners_.erase(handle);
    live_.erase(found);
    return kSuccess;
  }

  Status kernel(const void *module, const char *name, void **out) {
    std::lock_guard hold(mutex_);
    Module *m = find(module);
    if (m == nullptr)
      return kInvalidHandle;
    auto facts = m->image.kernels.find(name);
    if (facts == m->image.kernels.end() && !m->image.open)
      return kNotFound;
    *out = handle_of(m, name);
    return kSuccess;
  }

  Status kernel_count(const void *module, unsigned *out) {
    std::lock_guard hold(mutex_);
    Module *m = find(module);
    if (m == nullptr)
      return kInvalidHandle;
    *out = static_cast<unsigned>(m->image.kernels.size());
    return kSuccess;
  }

  template <class Handle> Status enumerate(const void *module, Handle *out, unsigned capacity) {
    std::lock_guard hold(mutex_);
    Module *m = find(module);
    if (m == nullptr)
      return kInvalidHandle;
    unsigned i = 0;
    for (const auto &[name, facts] : m->image.kernels)
      if (i < capacity)
        out[i++] = static_cast<Handle>(handle_of(m, name));
    return kSuccess;
  }

  // Gives a variable's memory on the current device, which is made when it is first asked for.
  Status variable(const void *module, const char *name, void **address, size_t *bytes) {
    std::lock_guard hold(mutex_);
    Module *m = find(module);
    if (m == nullptr)
      return kInvalidHandle;
    auto found = m->image.variables.find(name);
    if (found == m->image.variables.end())
      return kNotFound;
    void *&at = m->variable_address[{name, current_device()}];
    if (at == nullptr)
      if (Status status = mem_alloc(current_device(), found->second, &at))
        return status;
    *address = at;
    *bytes = found->second;
    return kSuccess;
  }

  // Says where parameter `index` of a kernel lies, or kNotSupported if the image did not say.
  Status parameter(const void *handle, size_t index, size_t *offset, size_t *bytes) {
    std::lock_guard hold(mutex_);
    auto owner = owners_.find(handle);
    if (owner == owners_.end())
      return kNotSupported;
    const KernelFacts &facts = owner->second->image.kernels[kernel_name(handle)];
    if (!facts.parameters_known)
      return kNotSupported;
    if (index >= facts.parameters.size())
      return kInvalidValue;
    *offset = facts.parameters[index].offset;
    *bytes = facts.parameters[index].bytes;
    return kSuccess;
  }

  void *owner(const void *handle) {
    std::lock_guard hold(mutex_);
    auto found = owners_.find(handle);
    return found != owners_.end() ? found->second : nullptr;
  }

private:
  Module *find(const void *module) { // caller holds the mutex
    auto found = live_.find(module);
    return found != live_.end() ? found->second.get() : nullptr;
  }

  void *handle_of(Module *m, const std::string &name) { // caller holds the mutex
    void *&handle = m->kernels[name];
    if (handle == nullptr) {
      const KernelFacts &facts = m->image.kernels[name];
      handle = kernel_handle(name.c_str(), facts.outputs);
      for (auto [attribute, value] : facts.attributes)
        kernel_set_attribute(handle, attribute, value);
      owners_[handle] = m;
    }
    return handle;
  }

  std::mutex mutex_;
  std::unordered_map<const void *, std::unique_ptr<Module>> live_;
  std::unordered_map<const void *, Module *> owners_; // of kernel handles
};

inline Modules &modules() {
  static Modules &all = *new Modules;
  return all;
}

} // namespace eidolon
