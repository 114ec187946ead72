// What a device answers about itself. The numbers of cudaDeviceAttr and CUdevice_attribute are the same, so one table
// serves both libraries, and cudaDeviceProp is filled from it.
//
// What differs between models comes from server.conf. The rest was read from an H100 SXM (driver 580, CUDA 13.0):
// limits of the architecture and of the platform. What is not emulated is answered as absent even where an H100 has it,
// so that a framework takes the way that is modelled: shareable handles of pools and for other servers (119, 128),
// DMA-BUF and GPUDirect RDMA (110, 116 to 118, 124, 146), compression (107), sparse and deferred arrays (112, 121),
// semaphores of other APIs (114), pools and mappings of host memory (141, 142, 144, 145).
#pragma once
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "cuda_header.h"
#include "status.h"

namespace eidolon {

// Recorded answers, by the number of CUdevice_attribute.
struct FixedAttribute {
  int number, value;
};
inline constexpr FixedAttribute kFixedAttributes[] = {
    {1, 1024},        {2, 1024},        {3, 1024},        {4, 64},      {5, 2147483647}, {6, 65535},  {7, 65535},
    {9, 65536},       {10, 32},         {11, 2147483647}, {14, 512},    {15, 1},         {17, 0},     {18, 0},
    {19, 1},          {20, 0},          {21, 131072},     {22, 131072}, {23, 65536},     {24, 16384}, {25, 16384},
    {26, 16384},      {27, 32768},      {28, 32768},      {29, 2048},   {30, 512},       {31, 1},     {32, 1},
    {35, 0},          {40, 3},          {41, 1},          {42, 32768},  {43, 2048},      {44, 1},     {45, 32768},
    {46, 32768},      {47, 8192},       {48, 8192},       {49, 32768},  {51, 32},        {52, 32768}, {53, 32768},
    {54, 2046},       {55, 32768},      {56, 131072},     {57, 65536},  {58, 16384},     {59, 16384}, {60, 16384},
    {61, 32768},      {62, 2048},       {63, 32768},      {64, 32768},  {65, 2048},      {66, 32768}, {67, 32768},
    {68, 2046},       {69, 268435456},  {70, 131072},     {71, 65000},  {72, 2097120},   {73, 32768}, {74, 32768},
    {77, 32768},      {78, 1},          {79, 1},          {80, 1},      {83, 1},         {84, 0},     {85, 0},
    {86, 0},          {87, 2},          {88, 0},          {89, 1},      {90, 1},         {91, 1},     {92, 0},
    {93, 0},          {94, 0},          {95, 1},          {96, 1},      {98, 0},         {99, 1},     {100, 0},
    {101, 0},         {102, 1},         {103, 1},         {104, 0},     {105, 0},        {107, 0},    {109, 134217728},
    {110, 0},         {112, 0},         {113, 1},         {114, 0},     {115, 1},        {116, 0},    {117, 0},
    {118, 0},         {119, 0},         {120, 1},         {121, 0},     {122, 1},        {123, 1},    {124, 0},
    {125, 1},         {126, 4},         {127, 1},         {128, 0},     {129, 1},        {130, 0},    {131, -1},
    {132, 0},         {133, 0},         {134, 0},         {135, 0},     {136, 0},        {137, 0},    {138, 0},
    {139, 590352606}, {140, 381751518}, {141, 0},         {142, 0},     {143, 0},        {144, 0},    {145, 0},
    {146, 0},         {147, 0},
};

// The place of a device on the bus of its server, and its name.
inline constexpr int kPciBusOfDevice0 = 0x10, kPciDevice = 0, kPciDomain = 0;
inline void device_uuid(int device, char out[16]) {
  uuid_of(config().server, server_device(device), reinterpret_cast<unsigned char *>(out));
}
inline void device_pci(int device, char *out, size_t size) {
  std::snprintf(out, size, "%04x:%02x:%02x.0", kPciDomain, kPciBusOfDevice0 + server_device(device), kPciDevice);
}
// The same digits as one number, which is what NCCL calls a device by.
inline int64_t pci_number(int device) {
  return int64_t{kPciDomain} << 20 | int64_t{kPciBusOfDevice0 + server_device(device)} << 12 | kPciDevice << 4;
}

// Returns false for a number that is no attribute.
inline bool device_attribute(int number, int device, int *value) {
  const Gpu &gpu = config().gpu;
  switch (number) {
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    *value = static_cast<int>(gpu.smem_per_block);
    return true;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
    *value = gpu.regs_per_sm;
    return true;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: // kHz
    *value = gpu.clock_khz;
    return true;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    *value = gpu.sm_count;
    return true;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    *value = kPciBusOfDevice0 + server_device(device);
    return true;
  case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    *value = kPciDevice;
    return true;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: // kHz
    *value = gpu.memory_clock_khz;
    return true;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    *value = gpu.memory_bus_bits;
    return true;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
    *value = static_cast<int>(gpu.l2_bytes);
    return true;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
    *value = gpu.max_threads_per_sm;
    return true;
  case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    *value = kPciDomain;
    return true;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    *value = gpu.cc_major;
    return true;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    *value = gpu.cc_minor;
    return true;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    *value = static_cast<int>(gpu.smem_per_sm);
    return true;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    *value = static_cast<int>(gpu.smem_per_block_optin);
    return true;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    *value = gpu.max_blocks_per_sm;
    return true;
  case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: // persisting L2: five eighths of it
    *value = static_cast<int>(gpu.l2_bytes / 8 * 5);
    return true;
  case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
    *value = static_cast<int>(gpu.reserved_smem_per_block);
    return true;
  case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:              // came with sm_90
  case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: // likewise
    *value = gpu.cc_major >= 9 ? 1 : 0;
    return true;
  case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: // multicast: torch takes it for NCCL's own memory (ncclMemAlloc), which
                                                // is emulated; its objects are not
    *value = gpu.cc_major >= 9 && gpu.nvlinks > 0 ? 1 : 0;
    return true;
  default:
    break;
  }
  auto found = std::lower_bound(std::begin(kFixedAttributes), std::end(kFixedAttributes), number,
                                [](const FixedAttribute &row, int wanted) { return row.number < wanted; });
  if (found == std::end(kFixedAttributes) || found->number != number)
    return false;
  *value = found->value;
  return true;
}

} // namespace eidolon
