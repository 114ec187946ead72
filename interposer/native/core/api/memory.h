// Device memory, pinned and managed host memory, mapped memory, pools, and handles for other processes.
#pragma once
#include "status.h"

namespace eidolon {

struct Stream; // streams.h

struct PointerInfo {
  enum Type { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 } type;
  int device;
  void *base;   // start of the allocation
  size_t bytes; // its size
  void *device_pointer, *host_pointer;
  uint64_t buffer_id;
};
EID_API Status mem_alloc(int device, size_t bytes, void **out);
EID_API Status mem_free(void *pointer); // device memory; waits for the device as cudaFree does
EID_API Status mem_alloc_async(int device, size_t bytes, Stream *stream, void **out);
EID_API Status mem_free_async(void *pointer, Stream *stream);
EID_API Status mem_info(int device, size_t *free_bytes, size_t *total_bytes);
EID_API Status server_memory(int server_device, size_t *free_bytes,
                             size_t *total_bytes);    // by ordinal within the server
EID_API size_t server_memory_used(int server_device); // by this process
EID_API Status host_alloc(size_t bytes, void **out);  // pinned
EID_API Status host_free(void *pointer);
EID_API Status managed_alloc(size_t bytes, void **out); // on the host; freed by mem_free
EID_API Status host_register(void *pointer, size_t bytes);
EID_API Status host_unregister(void *pointer);
EID_API PointerInfo pointer_info(const void *pointer); // any address
EID_API bool is_device(const void *pointer);
// Virtual memory management: reserved ranges, physical handles, mappings.
EID_API Status vmm_reserve(size_t bytes, size_t alignment, void *hint, void **out);
EID_API Status vmm_unreserve(void *pointer, size_t bytes);
EID_API Status vmm_create(int device, size_t bytes, uint64_t *handle);
EID_API Status vmm_release(uint64_t handle);
EID_API Status vmm_retain(void *pointer, uint64_t *handle); // handle mapped at pointer, one more reference
EID_API Status vmm_map(void *pointer, size_t bytes, size_t offset, uint64_t handle);
EID_API Status vmm_unmap(void *pointer, size_t bytes);
EID_API Status vmm_set_access(void *pointer, size_t bytes);
// A file that names a physical allocation to other processes of the server, and its handle in one of them. What another
// process has made is not accounted here.
EID_API Status vmm_export(uint64_t handle, int *file);
EID_API Status vmm_import(int file, uint64_t *handle, int *device);
// The physical allocation that is mapped at an address: the process that made it, its device within the server, and its
// number there. No process (0): nothing is mapped.
struct PhysicalOrigin {
  int32_t pid = 0, server_device = 0;
  uint64_t number = 0;
};
EID_API PhysicalOrigin vmm_origin(const void *pointer);
inline constexpr size_t kVmmGranularity = size_t{2} << 20;
// Pools: attributes of the default and created pools, exact for this process.
struct PoolInfo {
  uint64_t used_current, used_high, reserved_current, reserved_high, release_threshold;
};
EID_API PoolInfo pool_info(int device);
EID_API void pool_set_threshold(int device, uint64_t bytes);
EID_API void pool_trim(int device, size_t keep_bytes);
EID_API void pool_reset_high(int device, bool used, bool reserved);
inline constexpr size_t kIpcHandleBytes = 64; // as cudaIpcMemHandle_t and cudaIpcEventHandle_t
// IPC as frameworks use it: a handle names (process, allocation); opening maps an alias that is not accounted twice.
// Both processes know the same of its values.
EID_API Status ipc_get(void *pointer, unsigned char out[kIpcHandleBytes]);
EID_API Status ipc_open(const unsigned char handle[kIpcHandleBytes], void **out);
EID_API Status ipc_close(void *pointer);

} // namespace eidolon
