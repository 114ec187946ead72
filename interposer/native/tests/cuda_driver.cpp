// The driver library (libcuda) as a program sees it, without a simulation behind it (mode=null).
//
// What is expected here was checked on an H100: built with -DREAL_GPU against NVIDIA's own driver, all but the parts
// that need the emulation passes there too.
#include <cuda.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cubin_sample.h"
#include "harness.h"

static constexpr size_t kMiB = size_t{1} << 20;

#define OK(call) CHECK_EQUAL(call, CUDA_SUCCESS)
#define FAILS(call, error) CHECK_EQUAL(call, error)

static void devices() {
  int count = 0, value = 0;
  OK(cuDeviceGetCount(&count));
  CHECK(count >= 1);
  CUdevice device;
  OK(cuDeviceGet(&device, 0));
  FAILS(cuDeviceGet(&device, 99), CUDA_ERROR_INVALID_DEVICE);
  device = 0;
  char name[64];
  OK(cuDeviceGetName(name, sizeof name, device));
  CHECK(strncmp(name, "NVIDIA H", 8) == 0);
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CHECK_EQUAL(value, 9);
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device));
  CHECK_EQUAL(value, 1); // by NVLink switches, as on any H100 SXM
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  CHECK_EQUAL(value, 1);
  FAILS(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(0), device), CUDA_ERROR_INVALID_VALUE);
  size_t bytes;
  OK(cuDeviceTotalMem(&bytes, device));
  CHECK(bytes > 1000 * kMiB);
  int version;
  OK(cuDriverGetVersion(&version));
  CHECK(version >= 13000);
  const char *text;
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
  OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  CHECK(strcmp(text, "out of memory") == 0);
  FAILS(cuGetErrorString(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  CHECK(text == nullptr);
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  CHECK(context == nullptr);
  unsigned flags;
  int active = 1;
  OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
  CHECK_EQUAL(active, 0);
  CUdeviceptr p;
  FAILS(cuMemAlloc(&p, 100), CUDA_ERROR_INVALID_CONTEXT);
}

static void contexts() {
  CUcontext primary, made, seen;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  OK(cuCtxGetCurrent(&seen));
  CHECK(seen == primary);
  unsigned version;
  OK(cuCtxGetApiVersion(nullptr, &version));
  CHECK_EQUAL(version, 3020);
  OK(cuCtxCreate_v4(&made, nullptr, 0, 0));
  OK(cuCtxGetCurrent(&seen));
  CHECK(seen == made && made != primary);
  OK(cuCtxPopCurrent(&seen));
  CHECK(seen == made);
  OK(cuCtxGetCurrent(&seen));
  CHECK(seen == primary);
  OK(cuCtxSetCurrent(nullptr));
  OK(cuCtxGetCurrent(&seen));
  CHECK(seen == nullptr);
  CUdevice device;
  CUdeviceptr p;
  FAILS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  FAILS(cuMemAlloc(&p, 100), CUDA_ERROR_INVALID_CONTEXT);
  FAILS(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  FAILS(cuCtxPopCurrent(&seen), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxDestroy(made));
  FAILS(cuCtxDestroy(made), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(primary));
  unsigned long long id;
  OK(cuCtxGetId(primary, &id));
  CHECK_EQUAL(id, 1);
  OK(cuCtxGetDevice(&device));
  CHECK_EQUAL(device, 0);
  int least, greatest;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0 && greatest == -5);
  size_t limit;
  OK(cuCtxGetLimit(&limit, CU_LIMIT_PRINTF_FIFO_SIZE));
  CHECK_EQUAL(limit, 8650752);
  OK(cuCtxSynchronize());
}

template <class T> static T attribute(CUpointer_attribute which, CUdeviceptr p) {
  T value{};
  OK(cuPointerGetAttribute(&value, which, p));
  return value;
}

static void memory_and_pointers() {
  CUdeviceptr p, q;
  OK(cuMemAlloc(&p, 3 * kMiB));
  FAILS(cuMemAlloc(&q, 0), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemAlloc(&q, size_t{1} << 45), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 300), CU_MEMORYTYPE_DEVICE);
  CHECK_EQUAL(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 300), p);
  CHECK_EQUAL(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 300), 3 * kMiB);
  CHECK_EQUAL(attribute<size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p), 4 * kMiB);
  CHECK_EQUAL(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p), 0);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p), 1);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, p), 0);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, p), 1);
  CHECK_EQUAL(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p), 0);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p), 3);
  unsigned long long first = attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
  OK(cuMemFree(p));
  OK(cuMemAlloc(&p, 3 * kMiB));
  CHECK(first != attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, p)); // never used again
  void *host;
  OK(cuMemHostAlloc(&host, 5000, 0));
  auto on_host = reinterpret_cast<CUdeviceptr>(host);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_host), CU_MEMORYTYPE_HOST);
  CHECK(attribute<void *>(CU_POINTER_ATTRIBUTE_HOST_POINTER, on_host + 10) == static_cast<char *>(host) + 10);
  void *none;
  FAILS(cuPointerGetAttribute(&none, CU_POINTER_ATTRIBUTE_HOST_POINTER, p), CUDA_ERROR_INVALID_VALUE);
  auto stack = reinterpret_cast<CUdeviceptr>(&none);
  FAILS(cuPointerGetAttribute(&none, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, stack), CUDA_ERROR_INVALID_VALUE);
  unsigned type = 7;
  int ordinal = 7;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *out[] = {&type, &ordinal};
  OK(cuPointerGetAttributes(2, which, out, stack));
  CHECK_EQUAL(type, 0);
  CHECK_EQUAL(ordinal, CU_DEVICE_INVALID);
  CUdeviceptr base;
  size_t bytes;
  OK(cuMemGetAddressRange(&base, &bytes, p + kMiB));
  CHECK(base == p && bytes == 3 * kMiB);
  FAILS(cuMemGetAddressRange(&base, &bytes, stack), CUDA_ERROR_NOT_FOUND);
  FAILS(cuMemFree(stack), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(0));
  CUdeviceptr managed;
  OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed), CU_MEMORYTYPE_DEVICE);
  OK(cuMemFree(managed));

  unsigned words[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8] = {};
  OK(cuMemcpyHtoD(p, words, sizeof words));
  OK(cuMemcpyDtoD(p + 64, p, sizeof words));
  OK(cuMemsetD32(p + 64, 0xdeadbeef, 2));
  OK(cuMemsetD16(p + 72, 0x1234, 1));
  OK(cuMemcpyDtoH(back, p + 64, sizeof back));
  CHECK(back[0] == 0xdeadbeef && back[1] == 0xdeadbeef && back[2] == 0x1234 && back[3] == 4);
  CUDA_MEMCPY2D flat = {};
  flat.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = p;
  flat.srcPitch = 8;
  flat.srcXInBytes = 4;
  flat.dstMemoryType = CU_MEMORYTYPE_HOST;
  flat.dstHost = back;
  flat.dstPitch = 4;
  flat.WidthInBytes = 4;
  flat.Height = 4;
  OK(cuMemcpy2D(&flat)); // every second word
  CHECK(back[0] == 2 && back[1] == 4 && back[2] == 6 && back[3] == 8);
  OK(cuMemFreeHost(host));
  OK(cuMemFree(p));
}

static void virtual_memory() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t unit;
  OK(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  CHECK_EQUAL(unit, 2 * kMiB);
  CUdeviceptr va;
  CUmemGenericAllocationHandle handle, same, huge;
  FAILS(cuMemAddressReserve(&va, 1000, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAddressReserve(&va, 8 * kMiB, 0, 0, 0));
  FAILS(cuMemCreate(&handle, 1000, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemCreate(&huge, size_t{1} << 45, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  size_t before, after, total;
  OK(cuMemGetInfo(&before, &total));
  OK(cuMemCreate(&handle, 4 * kMiB, &prop, 0));
  OK(cuMemGetInfo(&after, &total));
  CHECK_EQUAL(before - after, 4 * kMiB);
  FAILS(cuMemMap(va, 2 * kMiB, kMiB, handle, 0), CUDA_ERROR_NOT_SUPPORTED); // an offset
  OK(cuMemMap(va, 4 * kMiB, 0, handle, 0));
  FAILS(cuMemMap(va, 4 * kMiB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(va, 4 * kMiB, &access, 1));
  FAILS(cuMemSetAccess(va + 4 * kMiB, 4 * kMiB, &access, 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemsetD8(va, 7, 100));
  CUdeviceptr base;
  size_t bytes;
  OK(cuMemGetAddressRange(&base, &bytes, va + kMiB));
  CHECK(base == va && bytes == 4 * kMiB);
  CHECK_EQUAL(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, va), 0);
  OK(cuMemRetainAllocationHandle(&same, reinterpret_cast<void *>(va)));
  CHECK(same == handle);
  CUmemAllocationProp seen;
  OK(cuMemGetAllocationPropertiesFromHandle(&seen, handle));
  CHECK(seen.type == CU_MEM_ALLOCATION_TYPE_PINNED && seen.location.id == 0 &&
        seen.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  unsigned long long flags;
  OK(cuMemGetAccess(&flags, &prop.location, va));
  CHECK_EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemRelease(same));
  FAILS(cuMemUnmap(va, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemUnmap(va, 4 * kMiB));
  OK(cuMemRelease(handle));
  FAILS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemGetInfo(&after, &total));
  CHECK_EQUAL(before, after);
  FAILS(cuMemAddressFree(va, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAddressFree(va, 8 * kMiB));
}

static void streams_events_graphs() {
  CUstream s;
  CUevent a, b;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&a, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&b, CU_EVENT_DEFAULT));
  CUdeviceptr p;
  OK(cuMemAlloc(&p, 4096));
  OK(cuEventRecord(a, s));
  OK(cuMemsetD8Async(p, 1, 4096, s));
  OK(cuStreamWriteValue32(s, p, 77, 0));
  OK(cuEventRecord(b, s));
  OK(cuEventSynchronize(b));
  float ms = -1;
  OK(cuEventElapsedTime(&ms, a, b));
  CHECK(ms >= 0);
  unsigned word[2];
  OK(cuMemcpyDtoH(word, p, 8));
  CHECK(word[0] == 77 && word[1] == 0x01010101);
  CUcontext context, mine;
  OK(cuStreamGetCtx(s, &context));
  OK(cuCtxGetCurrent(&mine));
  CHECK(context == mine);

  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuMemsetD8Async(p, 2, 4096, s));
  OK(cuEventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL)); // a node of the graph
  std::atomic<int> calls{0};
  OK(cuLaunchHostFunc(s, [](void *data) { static_cast<std::atomic<int> *>(data)->fetch_add(1); }, &calls));
  CUgraph graph, inside;
  CUstreamCaptureStatus status;
  cuuint64_t id;
  const CUgraphNode *last;
  size_t count;
  OK(cuStreamGetCaptureInfo_v3(s, &status, &id, &inside, &last, nullptr, &count));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1 && inside != nullptr);
  OK(cuStreamEndCapture(s, &graph));
  CUgraphNode nodes[8];
  count = 8;
  OK(cuGraphGetNodes(graph, nodes, &count));
  CHECK_EQUAL(count, 3);
  CUgraphNodeType type;
  OK(cuGraphNodeGetType(nodes[1], &type));
  CHECK_EQUAL(type, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  CUgraphNode extra;
  CUDA_MEMSET_NODE_PARAMS set = {};
  set.dst = p;
  set.elementSize = 1;
  set.value = 5;
  set.width = 16;
  set.height = 1;
  CUcontext current;
  OK(cuCtxGetCurrent(&current));
  OK(cuGraphAddMemsetNode(&extra, graph, &nodes[2], 1, &set, current));
  CUgraphExec exec;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuGraphLaunch(exec, s));
  OK(cuGraphLaunch(exec, s));
  OK(cuStreamSynchronize(s));
  CHECK_EQUAL(calls.load(), 2);
  OK(cuEventQuery(a));
  unsigned char bytes[20];
  OK(cuMemcpyDtoH(bytes, p, sizeof bytes));
  CHECK(bytes[15] == 5 && bytes[16] == 2);
  OK(cuGraphExecDestroy(exec));
  OK(cuEventDestroy(a));
  OK(cuEventDestroy(b));
  OK(cuStreamDestroy(s));
  OK(cuMemFree(p));
}

static void modules_and_launches() {
  static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n// .entry no(\n"
                            ".visible .global .align 4 .b8 gv[400];\n.visible .global .f32 one;\n"
                            ".visible .entry foo(.param .u64 a, .param .u32 b){ ret; }\n";
  CUmodule module;
  FAILS(cuModuleLoadData(&module, "garbage"), CUDA_ERROR_INVALID_IMAGE);
  FAILS(cuModuleLoad(&module, "/no/such/file"), CUDA_ERROR_FILE_NOT_FOUND);
  OK(cuModuleLoadData(&module, ptx));
  CUfunction foo;
  FAILS(cuModuleGetFunction(&foo, module, "bar"), CUDA_ERROR_NOT_FOUND);
  OK(cuModuleGetFunction(&foo, module, "foo"));
  unsigned count;
  OK(cuModuleGetFunctionCount(&count, module));
  CHECK_EQUAL(count, 1);
  CUdeviceptr at, again;
  size_t bytes;
  OK(cuModuleGetGlobal(&at, &bytes, module, "gv"));
  CHECK_EQUAL(bytes, 400);
  OK(cuModuleGetGlobal(&again, nullptr, module, "gv"));
  CHECK(at == again);
  OK(cuModuleGetGlobal(&again, &bytes, module, "one"));
  CHECK_EQUAL(bytes, 4);
  FAILS(cuModuleGetGlobal(&again, &bytes, module, "nope"), CUDA_ERROR_NOT_FOUND);
  int n = 3;
  void *arguments[] = {&at, &n};
  OK(cuLaunchKernel(foo, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  FAILS(cuLaunchKernel(foo, 1, 1, 1, 2000, 1, 1, 0, nullptr, arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuLaunchKernel(foo, 0, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuLaunchKernel(foo, 1, 1, 1, 32, 1, 1, 100000, nullptr, arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuLaunchKernel(nullptr, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr), CUDA_ERROR_INVALID_HANDLE);
  OK(cuFuncSetAttribute(foo, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  OK(cuLaunchKernel(foo, 1, 1, 1, 32, 1, 1, 100000, nullptr, arguments, nullptr));
  const char *name;
  OK(cuFuncGetName(&name, foo));
  CHECK(strcmp(name, "foo") == 0);
  CUmodule owner;
  OK(cuFuncGetModule(&owner, foo));
  CHECK(owner == module);
  OK(cuCtxSynchronize());
  OK(cuModuleUnload(module));
}

// A kernel with a C name, which says nothing of its parameters: its code tells what it writes.
static void code_says_what_a_kernel_writes() {
  static const char ptx[] =
      ".version 8.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry other(.param .u64 x){ ld.param.b64 %rd1, [x]; st.global.b32 [%rd1], %r1; ret; }\n"
      ".visible .entry fold(\n\t.param .u64 .ptr .global .align 1 in,\n\t.param .u32 n,\n"
      "\t.param .u64 .ptr .global .align 1 sum,\n\t.param .u64 .ptr .global .align 1 flag,\n\t.param .u64 table)\n{\n"
      "\t.loc\t1 5 3\n"
      "\tld.param.b64 \t%rd1, [in];\n\tld.param.s32 \t%rd2, [n];\n\tld.param.b64 \t%rd3, [sum];\n"
      "\tld.param.b64 \t%rd8, [flag+0]; // st.global [%rd1]\n\tld.param.b64 %rd9, [table];\n"
      "$L__BB0_1:\n\tshl.b64 %rd4, %rd2, 2;\n\t@%p1 st.global.b32 [ %rd7 + 4 ], { %r5 };\n"
      "\tadd.s64 \t%rd5, %rd3, %rd4;\n\tld.global.b32 %r1, [%rd1];\n\tst.shared.b32 [%rd1], %r1;\n"
      "\tld.global.b64 %rd10, [%rd9];\n\tst.global.b32 [%rd10], %r1;\n" // where a pointer in memory leads
      "\tmov.b64 %rd7, %rd5;\n\t@!%p2 atom.global.add.u32 %r2, [%rd8], %r1;\n\t@%p1 bra $L__BB0_1;\n\tret;\n}\n";
  CUmodule module;
  OK(cuModuleLoadData(&module, ptx));
  CUfunction fold;
  OK(cuModuleGetFunction(&fold, module, "fold"));
  CUdeviceptr in, sum, flag, table;
  const int seven = 7, n = 1;
  for (CUdeviceptr *each : {&in, &sum, &flag, &table}) {
    OK(cuMemAlloc(each, 64));
    OK(cuMemcpyHtoD(*each, &seven, sizeof seven));
  }
  void *arguments[] = {&in, const_cast<int *>(&n), &sum, &flag, &table};
  OK(cuLaunchKernel(fold, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  const auto number = [](CUdeviceptr at) {
    int back = 0;
    OK(cuMemcpyDtoH(&back, at, sizeof back));
    return back;
  };
  CHECK_EQUAL(number(in), 7);
  CHECK_EQUAL(number(sum), 0); // unknown
  CHECK_EQUAL(number(flag), 0);
  CHECK_EQUAL(number(table), 7);
  OK(cuModuleUnload(module));
}

static void libraries_and_kernels() {
  CUlibrary library;
  CUkernel kernel;
  CUfunction foo;
  unsigned count;
  size_t bytes;
  OK(cuLibraryLoadData(&library, kCubinSample, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernelCount(&count, library));
  CHECK_EQUAL(count, 2);
  OK(cuLibraryGetKernel(&kernel, library, "foo"));
  auto kernel_attribute = [&](CUfunction_attribute which) {
    int value = -7;
    OK(cuKernelGetAttribute(&value, which, kernel, 0));
    return value;
  };
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS), 8);
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 256);
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 1000);
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), 0);
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES), 24);
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES), 49152 - 1000);
  size_t offset;
  OK(cuKernelGetParamInfo(kernel, 1, &offset, &bytes));
  CHECK(offset == 8 && bytes == 4);
  FAILS(cuKernelGetParamInfo(kernel, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  OK(cuKernelGetFunction(&foo, kernel));
  CUdeviceptr buffer;
  OK(cuMemAlloc(&buffer, 64));
  int n = 3;
  void *arguments[] = {&buffer, &n};
  FAILS(cuLaunchKernel(foo, 1, 1, 1, 512, 1, 1, 0, nullptr, arguments, nullptr),
        CUDA_ERROR_INVALID_VALUE); // more than its launch bound
  struct {
    CUdeviceptr a;
    unsigned b;
  } packed = {buffer, 5};
  size_t packed_bytes = 12;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                   CU_LAUNCH_PARAM_END};
  OK(cuLaunchKernel(foo, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  OK(cuCtxSynchronize());
  int blocks;
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, foo, 256, 0));
  CHECK_EQUAL(blocks, 8);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, foo, 64, 20000));
  CHECK_EQUAL(blocks, 10);
  OK(cuLibraryGetKernel(&kernel, library, "bar"));
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), 64);
  CHECK_EQUAL(kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
  OK(cuMemFree(buffer));
  OK(cuLibraryUnload(library));
}

static void tensor_maps() {
  CUdeviceptr buffer;
  CUtensorMap map;
  cuuint64_t dimensions[] = {64, 64}, strides[] = {128};
  cuuint32_t box[] = {32, 32}, steps[] = {1, 1};
  OK(cuMemAlloc(&buffer, 64 * 128));
  OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void *>(buffer), dimensions,
                            strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  FAILS(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 0, reinterpret_cast<void *>(buffer), dimensions,
                               strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(buffer));
}

static void functions_by_name_and_version() {
  CUdriverProcAddressQueryResult found;
  auto get = [&](const char *name, int version, cuuint64_t flags) {
    void *at = nullptr;
    OK(cuGetProcAddress(name, &at, version, flags, &found));
    return at;
  };
  void *create_v2 = get("cuCtxCreate", 3020, 0), *create_v4 = get("cuCtxCreate", 13000, 0);
  CHECK(create_v2 != nullptr && create_v4 != nullptr && create_v2 != create_v4);
  CHECK(create_v4 == reinterpret_cast<void *>(&cuCtxCreate_v4));
  CHECK(get("cuMemAlloc", 12000, 0) == reinterpret_cast<void *>(&cuMemAlloc_v2));
  CHECK(get("cuGetProcAddress", 13000, 0) == reinterpret_cast<void *>(&cuGetProcAddress_v2));
  CHECK(get("cuMemAllocAsync", 9000, 0) == nullptr);
  CHECK_EQUAL(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(get("cuNoSuchThing", 13000, 0) == nullptr);
  CHECK_EQUAL(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  void *plain = get("cuStreamQuery", 13000, 0);
  void *own = get("cuStreamQuery", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  CHECK(plain == reinterpret_cast<void *>(&cuStreamQuery) && own != nullptr && own != plain);
  CHECK(get("cuInit", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == reinterpret_cast<void *>(&cuInit));
}

#ifndef REAL_GPU

static void what_is_not_modelled_says_so() {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  CUmemFabricHandle fabric;
  FAILS(cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_NOT_PERMITTED);
  OK(cuMemRelease(handle));
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC; // there is no IMEX daemon
  FAILS(cuMemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  CUmulticastObjectProp team = {};
  FAILS(cuMulticastCreate(&handle, &team), CUDA_ERROR_NOT_SUPPORTED);
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
  FAILS(cuMemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void threads_share_devices() {
  CUcontext second;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([second] {
      OK(cuCtxSetCurrent(second));
      CUdevice device = -1;
      OK(cuCtxGetDevice(&device));
      CHECK_EQUAL(device, 1);
      for (int k = 0; k < 200; ++k) {
        CUdeviceptr p;
        CUstream s;
        OK(cuMemAlloc(&p, 1000 + static_cast<size_t>(k) * 4096));
        OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        OK(cuMemsetD8Async(p, 1, 1000, s));
        OK(cuStreamSynchronize(s));
        int ordinal = -1;
        OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
        CHECK_EQUAL(ordinal, 1);
        OK(cuStreamDestroy(s));
        OK(cuMemFree(p));
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  CUdevice device;
  OK(cuCtxGetDevice(&device));
  CHECK_EQUAL(device, 0);
}

#endif

int main() {
#ifndef REAL_GPU
  test::enter_server("mode=null\ndevices=2\n");
#endif
  OK(cuInit(0));
  FAILS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  devices();
  contexts();
  memory_and_pointers();
  virtual_memory();
  streams_events_graphs();
  modules_and_launches();
  code_says_what_a_kernel_writes();
  libraries_and_kernels();
  tensor_maps();
  functions_by_name_and_version();
#ifndef REAL_GPU
  what_is_not_modelled_says_so();
  threads_share_devices();
#endif
  return test::result();
}
