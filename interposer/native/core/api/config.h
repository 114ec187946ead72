// The server that this process sees: `<EIDOLON_DIR>/server.conf`, "key=value" lines written by the launcher.
#pragma once
#include "../abi.h"
#include "status.h"

namespace eidolon {

struct Gpu { // every device of a server is of one model
  char name[96];
  int cc_major, cc_minor, sm_count;
  size_t memory_bytes;  // capacity as cudaMemGetInfo's total reports it
  size_t context_bytes; // taken by each process that creates a context on the device
  int clock_khz, memory_clock_khz, memory_bus_bits;
  size_t l2_bytes, smem_per_block, smem_per_block_optin, smem_per_sm, reserved_smem_per_block;
  int regs_per_sm, max_threads_per_sm, max_blocks_per_sm;
  int nvlinks; // links per GPU; 0: none
  int power_limit_mw;
};
struct Config {
  bool active;        // EIDOLON_DIR is set and readable: otherwise every library is inert (no devices)
  bool null_core;     // "mode=null": no ring, no waits, real clock; the overhead baseline
  bool measured_host; // "host_cost=measured": records carry thread CPU time
  int server_devices; // number in the server; NVML sees them all
  int server;         // index of this emulated server
  Gpu gpu;
  size_t payload_limit;     // NCCL payloads up to this many bytes are moved (65,536)
  size_t known_limit;       // host-to-device copies up to this many bytes keep their bytes (1 MiB)
  int64_t reply_timeout_ns; // a silent agent for this long ends the process with an error
  char dir[512];
};
EID_API const Config &config();

// The devices that this process sees: all, or what CUDA_VISIBLE_DEVICES leaves. The variable is read when CUDA is first
// asked about devices, as the driver reads it in cuInit: a program may set it after its libraries are loaded.
struct VisibleDevices {
  int count;
  int ordinals[kMaxDevices]; // within the server
};
EID_API const VisibleDevices &visible_devices();
inline int device_count() { return visible_devices().count; }

// Ordinal within the server of a device of this process.
inline int server_device(int device) { return visible_devices().ordinals[device]; }
// Unique id of a device of a server, as CUDA and NVML report it, and as text ("GPU-" and 8-4-4-4-12 hexadecimal
// digits).
inline void uuid_of(int server, int device, unsigned char out[16]) {
  for (int i = 0; i < 16; ++i)
    out[i] = static_cast<unsigned char>(i * 7 + device + 16 * server);
}
EID_API void uuid_text(int server, int device, char out[48]);

// The value of a key in server.conf; where that has none, the vocabulary's default, nullptr if there is none either.
EID_API const char *setting(ConfKey key);
// The value of a key whose type is number. Ends the process, with the key's name, if it is none or out of bounds.
EID_API int64_t setting_number(ConfKey key);

} // namespace eidolon
