// Driver: contexts, primary and created, and each thread's stack of them.
//
// The core knows one context per device; a created one shares its memory and streams. The current device belongs to the
// thread and is the runtime's too: cudaSetDevice changes what is current here, and a context made current here changes
// cudaGetDevice. So a thread's current context is the top of its stack while that is on the current device. Otherwise
// it is the primary context of the current device, if that is active. A thread that took its last context away has none
// until it or the runtime sets one.
#include "cuda_driver.h"

#include <array>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "device_state.h"

using namespace eidolon;
using namespace eidolon::driver;

namespace {

struct Context {
  int device;
  bool primary;
  unsigned flags = 0;
  unsigned long long id = 0;
  CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
};

struct Contexts {
  std::mutex mutex;
  std::array<Context, kMaxDevices> primary;
  std::array<int, kMaxDevices> retained{};
  std::map<Context *, bool> created; // whether it lives; the object stays, since stacks of other threads may name it
  std::set<std::pair<int, int>> peers;
  unsigned long long next_id = kMaxDevices + 1;
};
Contexts &contexts() {
  static Contexts &all = []() -> Contexts & {
    auto *made = new Contexts;
    for (int d = 0; d < kMaxDevices; ++d)
      made->primary[static_cast<size_t>(d)] = {d, true, 0, static_cast<unsigned long long>(d) + 1};
    return *made;
  }();
  return all;
}

struct ThreadContexts {
  std::vector<Context *> stack;
  int none_on = -1; // device on which the thread took its last context away
};
thread_local ThreadContexts thread_contexts;

CUcontext handle_of(Context *context) { return reinterpret_cast<CUcontext>(context); }

Context *primary_of(int device) { return &contexts().primary[static_cast<size_t>(device)]; }

// Returns nullptr for a handle that is no live context.
Context *find(CUcontext handle) {
  Contexts &all = contexts();
  auto *context = reinterpret_cast<Context *>(handle);
  for (int d = 0; d < device_count(); ++d)
    if (context == primary_of(d))
      return context;
  std::lock_guard hold(all.mutex);
  auto found = all.created.find(context);
  return found != all.created.end() && found->second ? context : nullptr;
}

Context *current() {
  const ThreadContexts &mine = thread_contexts;
  const int device = current_device();
  if (!mine.stack.empty() && mine.stack.back()->device == device)
    return mine.stack.back();
  if (mine.stack.empty() && mine.none_on == device)
    return nullptr;
  return has_context(device) ? primary_of(device) : nullptr;
}

// Comes before a push or a pop. What the runtime made current by itself becomes the top of the stack.
void adopt_current() {
  Context *now = current();
  auto &stack = thread_contexts.stack;
  if (now == nullptr || (!stack.empty() && stack.back() == now))
    return;
  if (stack.empty())
    stack.push_back(now);
  else
    stack.back() = now;
}

void make_current() {
  ThreadContexts &mine = thread_contexts;
  if (mine.stack.empty()) {
    mine.none_on = current_device();
    return;
  }
  mine.none_on = -1;
  set_current_device(mine.stack.back()->device);
}

Status create(CUcontext *out, unsigned flags, CUdevice device) {
  if (out == nullptr)
    return kInvalidValue;
  if (Status status = initialised())
    return status;
  if (!valid_device(device))
    return kInvalidDevice;
  if (Status status = ensure_context(device))
    return status;
  host_cost(EID_CALL("cuCtxCreate"));
  Contexts &all = contexts();
  Context *context;
  {
    std::lock_guard hold(all.mutex);
    context = new Context{device, false, flags, all.next_id++};
    all.created[context] = true;
  }
  adopt_current();
  thread_contexts.stack.push_back(context);
  make_current();
  *out = handle_of(context);
  return kSuccess;
}

} // namespace

namespace eidolon::driver {

Status current_context() {
  if (Status status = initialised())
    return status;
  Context *context = current();
  if (context == nullptr)
    return kInvalidContext;
  return ensure_context(context->device);
}

CUcontext context_of_device(int device) { return handle_of(primary_of(device)); }

} // namespace eidolon::driver

extern "C" {

// ---- primary contexts ---------------------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  if (!valid_device(device))
    return result(kInvalidDevice);
  if (Status status = ensure_context(device))
    return result(status);
  Contexts &all = contexts();
  std::lock_guard hold(all.mutex);
  all.retained[static_cast<size_t>(device)]++;
  *out = handle_of(primary_of(device));
  return result(kSuccess);
}

// The context stays when nobody retains it any more: the runtime, or a library, may still use it.
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  Contexts &all = contexts();
  std::lock_guard hold(all.mutex);
  int &count = all.retained[static_cast<size_t>(device)];
  if (count == 0 && !has_context(device))
    return result(kInvalidContext);
  if (count > 0)
    count--;
  return result(kSuccess);
}
#undef cuDevicePrimaryCtxRelease
EID_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (flags == nullptr || active == nullptr)
    return result(kInvalidValue);
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  *flags = primary_of(device)->flags;
  *active = has_context(device) ? 1 : 0;
  return result(kSuccess);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  if (!set_device_flags(device, flags))
    return result(kInvalidValue);
  primary_of(device)->flags = flags;
  return result(kSuccess);
}
#undef cuDevicePrimaryCtxSetFlags
EID_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (!valid_device(device))
    return result(config().active ? kInvalidDevice : kNotInitialized);
  if (!has_context(device))
    return result(kSuccess);
  warn_once("cuDevicePrimaryCtxReset waits for the device but keeps its memory and streams");
  return result(device_synchronize(device, EID_CALL("cuDevicePrimaryCtxReset")));
}
#undef cuDevicePrimaryCtxReset
EID_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

// ---- created contexts ---------------------------------------------------------------------------------------------

CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *parameters, unsigned flags, CUdevice device) {
  if (parameters != nullptr && (parameters->numExecAffinityParams != 0 || parameters->cigParams != nullptr)) {
    unmodelled("cuda", "cuCtxCreate with affinity or graphics parameters");
    return result(kNotSupported);
  }
  return result(create(out, flags, device));
}
EID_EXPORT CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *, int count, unsigned flags, CUdevice device) {
  if (count != 0) {
    unmodelled("cuda", "cuCtxCreate with affinity or graphics parameters");
    return result(kNotSupported);
  }
  return result(create(out, flags, device));
}
EID_EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
  return result(create(out, flags, device));
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  Context *context = find(handle);
  if (context == nullptr || context->primary)
    return result(kInvalidContext);
  auto &stack = thread_contexts.stack;
  if (!stack.empty() && stack.back() == context) {
    stack.pop_back();
    make_current();
  }
  std::erase(stack, context);
  Contexts &all = contexts();
  std::lock_guard hold(all.mutex);
  all.created[context] = false;
  return result(kSuccess);
}

// ---- the thread's current context -----------------------------------------------------------------------------------

CUresult cuCtxGetCurrent(CUcontext *out) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = initialised())
    return result(status);
  *out = handle_of(current());
  return result(kSuccess);
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  if (Status status = initialised())
    return result(status);
  auto &stack = thread_contexts.stack;
  if (handle == nullptr) {
    if (!stack.empty())
      stack.pop_back();
    make_current();
    return result(kSuccess);
  }
  Context *context = find(handle);
  if (context == nullptr)
    return result(kInvalidContext);
  if (stack.empty())
    stack.push_back(context);
  else
    stack.back() = context;
  make_current();
  return result(kSuccess);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  if (Status status = initialised())
    return result(status);
  Context *context = find(handle);
  if (context == nullptr)
    return result(kInvalidContext);
  adopt_current();
  thread_contexts.stack.push_back(context);
  make_current();
  return result(kSuccess);
}

CUresult cuCtxPopCurrent_v2(CUcontext *out) {
  if (Status status = initialised())
    return result(status);
  adopt_current();
  auto &stack = thread_contexts.stack;
  if (stack.empty())
    return result(kInvalidContext);
  if (out != nullptr)
    *out = handle_of(stack.back());
  stack.pop_back();
  make_current();
  return result(kSuccess);
}

CUresult cuCtxGetDevice(CUdevice *out) {
  if (out == nullptr)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  *out = current_device();
  return result(kSuccess);
}
CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle) {
  if (handle == nullptr)
    return cuCtxGetDevice(out);
  Context *context = find(handle);
  if (out == nullptr || context == nullptr)
    return result(out == nullptr ? kInvalidValue : kInvalidContext);
  *out = context->device;
  return result(kSuccess);
}

CUresult cuCtxSynchronize() {
  if (Status status = current_context())
    return result(status);
  return result(device_synchronize(current_device(), EID_CALL("cuCtxSynchronize")));
}
CUresult cuCtxSynchronize_v2(CUcontext handle) {
  if (handle == nullptr)
    return cuCtxSynchronize();
  Context *context = find(handle);
  if (context == nullptr)
    return result(kInvalidContext);
  return result(device_synchronize(context->device, EID_CALL("cuCtxSynchronize")));
}

// ---- properties of the current context
// --------------------------------------------------------------------------------

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version) {
  constexpr unsigned kContextApi = 3020;
  if (version == nullptr)
    return result(kInvalidValue);
  if (handle == nullptr) {
    if (Status status = current_context())
      return result(status);
  } else if (find(handle) == nullptr) {
    return result(kInvalidContext);
  }
  *version = kContextApi;
  return result(kSuccess);
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
  Context *context = handle != nullptr ? find(handle) : current();
  if (id == nullptr || context == nullptr)
    return result(id == nullptr ? kInvalidValue : kInvalidContext);
  *id = context->id;
  return result(kSuccess);
}

CUresult cuCtxGetFlags(unsigned *flags) {
  if (flags == nullptr)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  *flags = current()->flags | CU_CTX_MAP_HOST; // always on with unified addressing
  return result(kSuccess);
}

CUresult cuCtxSetFlags(unsigned flags) {
  if (Status status = current_context())
    return result(status);
  current()->flags = flags;
  return result(kSuccess);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  if (value == nullptr)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  return result(get_limit(current_device(), limit, value));
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  if (Status status = current_context())
    return result(status);
  return result(set_limit(current_device(), limit, value));
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (Status status = current_context())
    return result(status);
  if (least != nullptr)
    *least = kLeastPriority;
  if (greatest != nullptr)
    *greatest = kGreatestPriority;
  return result(kSuccess);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *value) {
  if (value == nullptr)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  *value = current()->cache;
  return result(kSuccess);
}

CUresult cuCtxSetCacheConfig(CUfunc_cache value) {
  if (value < CU_FUNC_CACHE_PREFER_NONE || value > CU_FUNC_CACHE_PREFER_EQUAL)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  current()->cache = value;
  return result(kSuccess);
}

CUresult cuCtxResetPersistingL2Cache() { return result(current_context()); }

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  if (flags != 0)
    return result(kInvalidValue);
  if (Status status = current_context())
    return result(status);
  Context *peer = find(handle);
  if (peer == nullptr)
    return result(kInvalidContext);
  if (peer->device == current_device())
    return result(kPeerUnsupported);
  Contexts &all = contexts();
  std::lock_guard hold(all.mutex);
  return result(all.peers.insert({current_device(), peer->device}).second ? kSuccess : kPeerAlreadyEnabled);
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  if (Status status = current_context())
    return result(status);
  Context *peer = find(handle);
  if (peer == nullptr)
    return result(kInvalidContext);
  Contexts &all = contexts();
  std::lock_guard hold(all.mutex);
  return result(all.peers.erase({current_device(), peer->device}) != 0 ? kSuccess : kPeerNotEnabled);
}

} // extern "C"
