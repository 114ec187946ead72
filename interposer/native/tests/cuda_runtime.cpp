// The runtime library (libcudart) as a program sees it, without a simulation behind it (mode=null).
//
// What is expected here was checked on an H100: built with -DREAL_GPU against NVIDIA's own libraries, all but the parts
// that need the emulation passes there too.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "harness.h"

static constexpr size_t kMiB = size_t{1} << 20;

#define OK(call) CHECK_EQUAL(call, cudaSuccess)
// A call that fails with an error, which is then the last one and is cleared by reading it.
#define FAILS(call, error)                                                                                             \
  do {                                                                                                                 \
    CHECK_EQUAL(call, error);                                                                                          \
    CHECK_EQUAL(cudaPeekAtLastError(), error);                                                                         \
    CHECK_EQUAL(cudaGetLastError(), error);                                                                            \
    CHECK_EQUAL(cudaGetLastError(), cudaSuccess);                                                                      \
  } while (0)

static bool primary_active() {
  unsigned flags;
  int active = -1;
  CHECK_EQUAL(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  return active == 1;
}

static void questions_make_no_context() {
  int count = 0, value = 0;
  OK(cudaGetDeviceCount(&count));
  CHECK(count >= 1);
  cudaDeviceProp p;
  OK(cudaGetDeviceProperties(&p, 0));
  CHECK_EQUAL(p.warpSize, 32);
  CHECK_EQUAL(p.maxThreadsDim[2], 64);
  CHECK_EQUAL(p.maxGridSize[0], 2147483647);
  CHECK_EQUAL(p.multiProcessorCount, 132);
  CHECK_EQUAL(p.sharedMemPerBlockOptin, 232448);
  CHECK_EQUAL(p.reservedSharedMemPerBlock, 1024);
  CHECK_EQUAL(p.persistingL2CacheMaxSize, 32768000);
  CHECK_EQUAL(p.maxTexture2DLayered[2], 2048);
  CHECK_EQUAL(p.maxSurfaceCubemapLayered[1], 2046);
  CHECK_EQUAL(p.asyncEngineCount, 3);
  CHECK(p.unifiedAddressing && p.cooperativeLaunch && p.memoryPoolsSupported && p.canMapHostMemory && p.clusterLaunch);
  CHECK(p.major == 9 && p.minor == 0);
  for (auto [attribute, wanted] : {std::pair{cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
                                   {cudaDevAttrL2CacheSize, p.l2CacheSize},
                                   {cudaDevAttrClockRate, 1980000},
                                   {cudaDevAttrMaxTexture1DLinearWidth, 268435456},
                                   {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2}}) {
    OK(cudaDeviceGetAttribute(&value, attribute, 0));
    CHECK_EQUAL(value, wanted);
  }
  FAILS(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(148), 0), cudaErrorInvalidValue);
  FAILS(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99), cudaErrorInvalidDevice);
  FAILS(cudaGetDeviceProperties(&p, -1), cudaErrorInvalidDevice);
  FAILS(cudaSetDevice(99), cudaErrorInvalidDevice);
  OK(cudaRuntimeGetVersion(&value));
  CHECK_EQUAL(value, CUDART_VERSION);
  OK(cudaDriverGetVersion(&value));
  CHECK(value >= 13000);
  unsigned flags;
  OK(cudaGetDeviceFlags(&flags));
  CHECK_EQUAL(flags, cudaDeviceMapHost);
  char id[32];
  OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
  CHECK_EQUAL(strlen(id), 12);
  OK(cudaDeviceGetByPCIBusId(&value, id));
  CHECK_EQUAL(value, 0);
  FAILS(cudaDeviceGetPCIBusId(id, 5, 0), cudaErrorInvalidValue);
  FAILS(cudaDeviceGetByPCIBusId(&value, "zzz"), cudaErrorInvalidValue);
  FAILS(cudaDeviceCanAccessPeer(&value, 0, 99), cudaErrorInvalidDevice);
  CHECK(!primary_active());
  OK(cudaSetDevice(0));
  CHECK(primary_active());
  CUcontext mine, primary;
  cuCtxGetCurrent(&mine);
  cuDevicePrimaryCtxRetain(&primary, 0);
  CHECK(mine != nullptr && mine == primary);
  FAILS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessUnsupported);
  FAILS(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
  int least, greatest;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0 && greatest == -5);
  size_t limit;
  OK(cudaDeviceGetLimit(&limit, cudaLimitPersistingL2CacheSize));
  CHECK_EQUAL(limit, 9830400);
  FAILS(cudaDeviceGetLimit(&limit, cudaLimitDevRuntimeSyncDepth), cudaErrorUnsupportedLimit);
  OK(cudaDeviceSetLimit(cudaLimitStackSize, 2048));
  OK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
  CHECK_EQUAL(limit, 2048);
  FAILS(cudaDeviceSetLimit(static_cast<cudaLimit>(77), 1), cudaErrorInvalidValue);
}

static void errors_belong_to_threads() {
  CHECK_EQUAL(cudaSetDevice(99), cudaErrorInvalidDevice);
  std::thread([] { CHECK_EQUAL(cudaGetLastError(), cudaSuccess); }).join();
  CHECK_EQUAL(cudaGetLastError(), cudaErrorInvalidDevice);
  CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
  CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
  CHECK(strcmp(cudaGetErrorString(cudaErrorGraphExecUpdateFailure),
               "the graph update was not performed because it included changes which violated constraints specific to "
               "instantiated graph update") == 0);
  CHECK(strcmp(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code") == 0);
}

static void memory_and_pointers() {
  void *a = nullptr, *b = nullptr, *host = nullptr, *managed = nullptr;
  size_t before, after, total;
  OK(cudaMemGetInfo(&before, &total));
  OK(cudaMalloc(&a, 64 * kMiB));
  OK(cudaMemGetInfo(&after, &total));
  CHECK_EQUAL(before - after, 64 * kMiB);
  OK(cudaMalloc(&b, 1000));
  CHECK_EQUAL(reinterpret_cast<uintptr_t>(b) % 256, 0);
  void *nothing = &before;
  OK(cudaMalloc(&nothing, 0));
  CHECK(nothing == nullptr);
  FAILS(cudaMalloc(&nothing, size_t{1} << 45), cudaErrorMemoryAllocation);
  FAILS(cudaMalloc(nullptr, 4), cudaErrorInvalidValue);
  FAILS(cudaFree(&before), cudaErrorInvalidValue);
  FAILS(cudaFree(static_cast<char *>(a) + 256), cudaErrorInvalidValue);
  OK(cudaFree(nullptr));
  OK(cudaHostAlloc(&host, 5000, cudaHostAllocDefault));
  OK(cudaHostAlloc(&nothing, 0, 0));
  CHECK(nothing == nullptr);
  FAILS(cudaHostAlloc(&nothing, 100, 0xff00), cudaErrorInvalidValue);
  FAILS(cudaFreeHost(&before), cudaErrorInvalidValue);
  OK(cudaFreeHost(nullptr));
  OK(cudaMallocManaged(&managed, 4096, cudaMemAttachGlobal));
  memset(managed, 7, 4096); // the host may touch it

  cudaPointerAttributes p;
  OK(cudaPointerGetAttributes(&p, static_cast<char *>(a) + 300));
  CHECK(p.type == cudaMemoryTypeDevice && p.device == 0 && p.devicePointer == static_cast<char *>(a) + 300 &&
        p.hostPointer == nullptr);
  OK(cudaPointerGetAttributes(&p, static_cast<char *>(host) + 300));
  CHECK(p.type == cudaMemoryTypeHost && p.device == 0 && p.hostPointer == static_cast<char *>(host) + 300 &&
        p.devicePointer == p.hostPointer);
  OK(cudaPointerGetAttributes(&p, managed));
  CHECK(p.type == cudaMemoryTypeManaged && p.devicePointer == managed && p.hostPointer == managed);
  OK(cudaPointerGetAttributes(&p, &before));
  CHECK(p.type == cudaMemoryTypeUnregistered && p.device == cudaInvalidDeviceId && p.devicePointer == nullptr &&
        p.hostPointer == &before);

  std::vector<char> pageable(kMiB);
  unsigned flags;
  OK(cudaHostRegister(pageable.data(), pageable.size(), cudaHostRegisterDefault));
  OK(cudaPointerGetAttributes(&p, pageable.data() + 64));
  CHECK(p.type == cudaMemoryTypeHost);
  FAILS(cudaHostRegister(pageable.data(), pageable.size(), 0), cudaErrorHostMemoryAlreadyRegistered);
  FAILS(cudaHostRegister(pageable.data(), 0, 0), cudaErrorInvalidValue);
  OK(cudaHostGetFlags(&flags, pageable.data()));
  CHECK_EQUAL(flags, cudaHostAllocMapped);
  void *on_device;
  OK(cudaHostGetDevicePointer(&on_device, host, 0));
  CHECK(on_device == host);
  FAILS(cudaHostGetDevicePointer(&on_device, &before, 0), cudaErrorInvalidValue);
  FAILS(cudaHostGetFlags(&flags, &before), cudaErrorInvalidValue);
  OK(cudaHostUnregister(pageable.data()));
  FAILS(cudaHostUnregister(pageable.data()), cudaErrorHostMemoryNotRegistered);
  FAILS(cudaHostUnregister(host), cudaErrorInvalidValue);
  OK(cudaFree(managed));
  OK(cudaFreeHost(host));
  OK(cudaFree(a));
  OK(cudaFree(b));
  size_t pitch;
  OK(cudaMallocPitch(&a, &pitch, 1000, 10));
  CHECK_EQUAL(pitch, 1024);
  OK(cudaFree(a));
}

static void copies_and_sets() {
  std::vector<unsigned char> from(4096), to(4096);
  for (size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(i * 7);
  char *device;
  OK(cudaMalloc(reinterpret_cast<void **>(&device), 3 * kMiB));
  OK(cudaMemcpy(device, from.data(), from.size(), cudaMemcpyHostToDevice));
  OK(cudaMemcpy(to.data(), device, to.size(), cudaMemcpyDeviceToHost));
  CHECK(from == to);
  OK(cudaMemset(device + 100, 0x5a, 50));
  OK(cudaMemcpy(to.data(), device, to.size(), cudaMemcpyDefault));
  CHECK(to[99] == from[99] && to[100] == 0x5a && to[149] == 0x5a && to[150] == from[150]);
  OK(cudaMemcpy(device + 2048, device, 1024, cudaMemcpyDeviceToDevice));
  OK(cudaMemcpy(to.data(), device + 2048, 1024, cudaMemcpyDeviceToHost));
  CHECK(to[0] == from[0] && to[120] == 0x5a);
  // 3 rows of 10 bytes, 100 apart on the device.
  OK(cudaMemcpy2D(device, 100, from.data(), 10, 10, 3, cudaMemcpyHostToDevice));
  OK(cudaMemset2D(device + 200, 100, 1, 5, 1));
  OK(cudaMemcpy2D(to.data(), 16, device, 100, 10, 3, cudaMemcpyDeviceToHost));
  CHECK(to[0] == from[0] && to[16] == from[10] && to[32] == 1 && to[36] == 1 && to[37] == from[25]);
  cudaMemcpy3DParms box = {};
  box.srcPtr = {from.data(), 8, 8, 4}; // slices of 4 rows of 8 bytes
  box.dstPtr = {device, 64, 64, 8};
  box.dstPos = {4, 1, 0};
  box.extent = {8, 4, 2};
  box.kind = cudaMemcpyHostToDevice;
  OK(cudaMemcpy3D(&box));
  OK(cudaMemcpy(to.data(), device, 1024, cudaMemcpyDeviceToHost));
  CHECK(to[64 + 4] == from[0] && to[2 * 64 + 4] == from[8] && to[9 * 64 + 4] == from[32]);
  FAILS(cudaMemcpy(device, from.data(), 10, static_cast<cudaMemcpyKind>(9)), cudaErrorInvalidMemcpyDirection);
  FAILS(cudaMemcpy(nullptr, from.data(), 10, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  OK(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyHostToDevice));
  FAILS(cudaMemcpy(to.data(), device, 10, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  FAILS(cudaMemcpy(device, from.data(), 5 * kMiB, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  FAILS(cudaMemset(nullptr, 0, 10), cudaErrorInvalidValue);
  FAILS(cudaMemset(from.data(), 0, 10), cudaErrorInvalidValue); // pageable
  OK(cudaMemset(device, 0, 0));
  FAILS(cudaMemcpy2D(device, 100, from.data(), 200, 150, 3, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
  OK(cudaFree(device));
}

static void pools() {
  cudaMemPool_t pool;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  auto number = [&](cudaMemPoolAttr attribute) {
    uint64_t value = 77;
    OK(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
  };
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_EQUAL(number(cudaMemPoolAttrReservedMemCurrent), 0);
  int reuse = 0;
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &reuse));
  CHECK_EQUAL(reuse, 1);
  void *a;
  OK(cudaMallocAsync(&a, 40 * kMiB, stream));
  CHECK_EQUAL(number(cudaMemPoolAttrUsedMemCurrent), 40 * kMiB);
  CHECK(number(cudaMemPoolAttrReservedMemCurrent) >= 40 * kMiB);
  OK(cudaFreeAsync(a, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK_EQUAL(number(cudaMemPoolAttrUsedMemCurrent), 0);
  CHECK_EQUAL(number(cudaMemPoolAttrReservedMemCurrent), 0); // nothing is kept without a threshold
  CHECK_EQUAL(number(cudaMemPoolAttrUsedMemHigh), 40 * kMiB);
  uint64_t keep = UINT64_MAX, zero = 0;
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
  CHECK_EQUAL(number(cudaMemPoolAttrUsedMemHigh), 0);
  OK(cudaMallocAsync(&a, 40 * kMiB, stream));
  OK(cudaFreeAsync(a, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(number(cudaMemPoolAttrReservedMemCurrent) >= 40 * kMiB);
  OK(cudaMemPoolTrimTo(pool, 0));
  CHECK_EQUAL(number(cudaMemPoolAttrReservedMemCurrent), 0);
  FAILS(cudaMemPoolGetAttribute(pool, static_cast<cudaMemPoolAttr>(99), &keep), cudaErrorInvalidValue);
  OK(cudaFreeAsync(nullptr, stream));
  OK(cudaStreamDestroy(stream));
}

static void streams_and_events() {
  cudaStream_t s, t;
  FAILS(cudaStreamCreateWithFlags(&s, 9), cudaErrorInvalidValue);
  FAILS(cudaStreamCreate(nullptr), cudaErrorInvalidValue);
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithPriority(&t, cudaStreamNonBlocking, -100));
  int number;
  unsigned flags;
  OK(cudaStreamGetPriority(t, &number));
  CHECK_EQUAL(number, -5); // as far as it goes
  OK(cudaStreamGetFlags(s, &flags));
  CHECK_EQUAL(flags, cudaStreamNonBlocking);
  OK(cudaStreamGetFlags(nullptr, &flags));
  CHECK_EQUAL(flags, 0);
  unsigned long long id, other;
  OK(cudaStreamGetId(s, &id));
  OK(cudaStreamGetId(t, &other));
  CHECK(id != other);
  FAILS(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle);
  FAILS(cudaStreamDestroy(cudaStreamLegacy), cudaErrorInvalidResourceHandle);
  cudaStreamAttrValue value = {};
  value.accessPolicyWindow.hitRatio = 0.5;
  OK(cudaStreamSetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &value));
  value = {};
  OK(cudaStreamGetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &value));
  CHECK(value.accessPolicyWindow.hitRatio == 0.5F);

  cudaEvent_t a, b, untimed;
  OK(cudaEventCreate(&a));
  OK(cudaEventCreate(&b));
  OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  FAILS(cudaEventCreateWithFlags(&b, 0x100), cudaErrorInvalidValue);
  cudaEvent_t refused;
  FAILS(cudaEventCreateWithFlags(&refused, cudaEventInterprocess), cudaErrorInvalidValue); // needs no timing
  OK(cudaEventQuery(a));                                                                   // never recorded: done
  OK(cudaEventSynchronize(a));
  float ms = -1;
  FAILS(cudaEventElapsedTime(&ms, a, b), cudaErrorInvalidResourceHandle);
  OK(cudaEventRecord(a, s));
  OK(cudaStreamWaitEvent(t, a, 0));
  OK(cudaEventRecord(b, t));
  OK(cudaEventRecord(untimed, t));
  OK(cudaEventSynchronize(b));
  OK(cudaEventQuery(b));
  OK(cudaEventElapsedTime(&ms, a, b));
  CHECK(ms >= 0 && ms < 1000);
  OK(cudaStreamSynchronize(t));
  FAILS(cudaEventElapsedTime(&ms, a, untimed), cudaErrorInvalidResourceHandle);
  FAILS(cudaEventQuery(nullptr), cudaErrorInvalidResourceHandle);
  FAILS(cudaEventRecord(nullptr, s), cudaErrorInvalidResourceHandle);
  FAILS(cudaEventDestroy(nullptr), cudaErrorInvalidResourceHandle);
  FAILS(cudaStreamWaitEvent(s, nullptr, 0), cudaErrorInvalidResourceHandle);
  FAILS(cudaStreamWaitEvent(s, a, 7), cudaErrorInvalidValue);
  FAILS(cudaEventRecordWithFlags(a, s, cudaEventRecordExternal), cudaErrorIllegalState); // outside a capture
  FAILS(cudaEventRecordWithFlags(a, s, 4), cudaErrorInvalidValue);
  OK(cudaStreamQuery(s));

  std::atomic<int> calls{0};
  auto count = [](void *data) { static_cast<std::atomic<int> *>(data)->fetch_add(1); };
  OK(cudaLaunchHostFunc(s, count, &calls));
  OK(cudaStreamAddCallback(
      s,
      [](cudaStream_t, cudaError_t status, void *data) {
        CHECK_EQUAL(status, cudaSuccess);
        static_cast<std::atomic<int> *>(data)->fetch_add(10);
      },
      &calls, 0));
  OK(cudaStreamSynchronize(s));
  CHECK_EQUAL(calls.load(), 11);
  OK(cudaEventDestroy(a));
  OK(cudaEventDestroy(b));
  OK(cudaEventDestroy(untimed));
  OK(cudaStreamDestroy(s));
  OK(cudaStreamDestroy(t));
}

static void driver_functions_by_name() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &found));
  CHECK(found == cudaDriverEntryPointSuccess && function != nullptr);
  CUdeviceptr at = 0;
  CHECK_EQUAL(reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t)>(function)(&at, 100), CUDA_SUCCESS);
  OK(cudaFree(reinterpret_cast<void *>(at)));
  OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, cudaEnableDefault, &found));
  CHECK(found == cudaDriverEntryPointSymbolNotFound && function == nullptr);
  OK(cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &function, 9000, cudaEnableDefault, &found));
  CHECK_EQUAL(found, cudaDriverEntryPointVersionNotSufficent);
}

static void loaded_code() {
  static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.global .align 4 .b8 table[400];\n"
                            ".visible .entry add(.param .u64 p, .param .u32 n){ ret; }\n"
                            ".visible .entry sub(.param .u64 p){ ret; }\n";
  cudaLibrary_t library;
  OK(cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned count;
  OK(cudaLibraryGetKernelCount(&count, library));
  CHECK_EQUAL(count, 2);
  cudaKernel_t kernel;
  FAILS(cudaLibraryGetKernel(&kernel, library, "mul"), cudaErrorSymbolNotFound);
  OK(cudaLibraryGetKernel(&kernel, library, "add"));
  void *table;
  size_t bytes;
  OK(cudaLibraryGetGlobal(&table, &bytes, library, "table"));
  CHECK_EQUAL(bytes, 400);
  int zero = 0;
  OK(cudaMemcpy(table, &zero, 4, cudaMemcpyHostToDevice));
  void *p = table;
  int n = 3;
  void *arguments[] = {&p, &n};
  OK(cudaLaunchKernel(kernel, dim3{2, 1, 1}, dim3{32, 1, 1}, arguments, 0, nullptr));
  FAILS(cudaLaunchKernel(kernel, dim3{1, 1, 1}, dim3{2000, 1, 1}, arguments, 0, nullptr), cudaErrorInvalidValue);
  FAILS(cudaLaunchKernel(kernel, dim3{0, 1, 1}, dim3{32, 1, 1}, arguments, 0, nullptr), cudaErrorInvalidValue);
  FAILS(cudaLaunchKernel(kernel, dim3{1, 70000, 1}, dim3{32, 1, 1}, arguments, 0, nullptr), cudaErrorInvalidValue);
  FAILS(cudaLaunchKernel(kernel, dim3{1, 1, 1}, dim3{32, 1, 1}, arguments, 60000, nullptr), cudaErrorInvalidValue);
  OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
  OK(cudaLaunchKernel(kernel, dim3{1, 1, 1}, dim3{32, 1, 1}, arguments, 60000, nullptr));
  FAILS(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449), cudaErrorInvalidValue);
  FAILS(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 101), cudaErrorInvalidValue);
  FAILS(cudaLaunchKernel(&n, dim3{1, 1, 1}, dim3{32, 1, 1}, nullptr, 0, nullptr), cudaErrorInvalidResourceHandle);
  const char *name;
  OK(cudaFuncGetName(&name, kernel));
  CHECK(strcmp(name, "add") == 0);
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, kernel));
  CHECK_EQUAL(attributes.maxThreadsPerBlock, 1024);
  CHECK_EQUAL(attributes.maxDynamicSharedSizeBytes, 60000);
  CHECK_EQUAL(attributes.preferredShmemCarveout, -1);
  FAILS(cudaFuncGetAttributes(&attributes, &n), cudaErrorInvalidResourceHandle);
  int blocks;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 1024, 0));
  CHECK(blocks >= 1 && blocks <= 2);
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32, 60000));
  CHECK_EQUAL(blocks, 3); // by shared memory
  size_t shared;
  OK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, kernel, 2, 128));
  CHECK_EQUAL(shared, 60000); // what it may have
  OK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, kernel, 8, 128));
  CHECK_EQUAL(shared, 29184); // an eighth of the multiprocessor's
  OK(cudaDeviceSynchronize());
  cudaFunction_t unused;
  FAILS(cudaGetFuncBySymbol(&unused, &n), cudaErrorInvalidDeviceFunction);
  OK(cudaDeviceSynchronize());
  OK(cudaLibraryUnload(library));
}

#ifndef REAL_GPU // what compiled code does when it is loaded

extern "C" {
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
cudaError_t __cudaGetKernel(cudaKernel_t *, const void *);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st *);
cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);
}

static void compiled_code_registers_itself() {
  static char image[64], stub, variable[492];
  void **handle = __cudaRegisterFatBinary(image);
  __cudaRegisterFunction(handle, &stub, &stub, "_Z6kernelPfi", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  __cudaRegisterVar(handle, variable, variable, "variable", 0, sizeof variable, 0, 0);
  __cudaRegisterFatBinaryEnd(handle);
  cudaKernel_t kernel;
  CHECK_EQUAL(__cudaGetKernel(&kernel, &stub), cudaSuccess);
  CHECK_EQUAL(__cudaGetKernel(&kernel, image), cudaErrorInvalidDeviceFunction);
  cudaGetLastError();
  OK(__cudaGetKernel(&kernel, &stub));
  float *p = nullptr;
  int n = 5;
  void *arguments[] = {&p, &n};
  OK(__cudaLaunchKernel(kernel, dim3{1, 1, 1}, dim3{32, 1, 1}, arguments, 0, nullptr));
  OK(cudaLaunchKernel(&stub, dim3{1, 1, 1}, dim3{32, 1, 1}, arguments, 0, nullptr));
  __cudaPushCallConfiguration(dim3{1, 2, 3}, dim3{4, 5, 6}, 7, nullptr);
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
  CHECK(grid.z == 3 && block.x == 4 && shared == 7 && stream == nullptr);
  CUfunction function;
  OK(cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t *>(&function), &stub));
  CHECK_EQUAL(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr), CUDA_SUCCESS);
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, &stub));
  CHECK_EQUAL(attributes.numRegs, 64); // assumed
  void *address, *again;
  size_t bytes;
  OK(cudaGetSymbolAddress(&address, variable));
  OK(cudaGetSymbolAddress(&again, variable));
  CHECK(address == again);
  OK(cudaGetSymbolSize(&bytes, variable));
  CHECK_EQUAL(bytes, 492);
  FAILS(cudaGetSymbolAddress(&address, image), cudaErrorInvalidSymbol);
  int value = 42, back = 0;
  OK(cudaMemcpyToSymbol(variable, &value, 4, 8, cudaMemcpyHostToDevice));
  OK(cudaMemcpyFromSymbol(&back, variable, 4, 8, cudaMemcpyDeviceToHost));
  CHECK_EQUAL(back, 42);
  FAILS(cudaMemcpyToSymbol(variable, &value, 4, 490, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  __cudaUnregisterFatBinary(handle);
}

static void many_devices() {
  int can, device;
  OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  CHECK_EQUAL(can, 1);
  cudaDeviceProp a, b;
  OK(cudaGetDeviceProperties(&a, 0));
  OK(cudaGetDeviceProperties(&b, 1));
  CHECK_EQUAL(static_cast<unsigned char>(b.uuid.bytes[15]), (15 * 7 + 1 + 16 * 3) & 0xff);
  CHECK(memcmp(a.uuid.bytes, b.uuid.bytes, 16) != 0);
  CHECK_EQUAL(a.pciBusID, 0x10);
  CHECK_EQUAL(b.pciBusID, 0x11);
  OK(cudaSetDevice(1));
  OK(cudaDeviceEnablePeerAccess(0, 0));
  FAILS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
  OK(cudaDeviceDisablePeerAccess(0));
  char *there, *here;
  OK(cudaMalloc(reinterpret_cast<void **>(&there), 4096));
  OK(cudaSetDevice(0));
  OK(cudaMalloc(reinterpret_cast<void **>(&here), 4096));
  cudaPointerAttributes p;
  OK(cudaPointerGetAttributes(&p, there));
  CHECK_EQUAL(p.device, 1);
  OK(cudaMemset(here, 3, 4096));
  OK(cudaMemcpyPeer(there, 1, here, 0, 4096));
  char byte = 0;
  OK(cudaMemcpy(&byte, there + 4095, 1, cudaMemcpyDeviceToHost));
  CHECK_EQUAL(byte, 3);
  std::thread([] { // the current device belongs to the thread
    int mine = -1;
    OK(cudaGetDevice(&mine));
    CHECK_EQUAL(mine, 0);
    OK(cudaSetDevice(1));
  })
      .join();
  OK(cudaGetDevice(&device));
  CHECK_EQUAL(device, 0);
  OK(cudaFree(here));
  OK(cudaFree(there));
}

// In a process without EIDOLON_DIR there are no devices.
static int inert() {
  int count = 7;
  CHECK_EQUAL(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  CHECK_EQUAL(count, 0);
  CHECK_EQUAL(cudaGetLastError(), cudaErrorNoDevice);
  void *p;
  CHECK_EQUAL(cudaMalloc(&p, 100), cudaErrorNoDevice);
  CHECK_EQUAL(cudaSetDevice(0), cudaErrorNoDevice);
  CHECK_EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
  CHECK_EQUAL(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  return test::failures;
}

#endif

int main(int argc, char **argv) {
#ifndef REAL_GPU
  if (argc > 1)
    return inert();
  std::string command = std::string("env -u EIDOLON_DIR ") + argv[0] + " inert";
  CHECK_EQUAL(system(command.c_str()), 0);
  test::enter_server("mode=null\ndevices=2\nserver=3\n");
#else
  (void)argc, (void)argv;
  cuInit(0);
#endif
  questions_make_no_context();
  errors_belong_to_threads();
  memory_and_pointers();
  copies_and_sets();
  pools();
  streams_and_events();
  driver_functions_by_name();
  loaded_code();
#ifndef REAL_GPU
  compiled_code_registers_itself();
  many_devices();
#endif
  return test::result();
}
