// In place of CUDA's header of this name, which the runtime wheel lacks (it is in nvidia-cuda-crt): what the CUDA
// headers that torch includes need in plain C++. Used only where the real one is missing.
#pragma once
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __forceinline__ __inline__ __attribute__((always_inline))
