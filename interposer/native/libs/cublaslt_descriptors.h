// The descriptors of the fake cuBLASLt. They live in the caller's "semi-opaque" structures, so each must fit in one.
#pragma once
#include <cublasLt.h>

#include <cstring>

#include "blas.h"

namespace eidolon::lt {

// All attributes of a product. Those of 8 bytes come first, in the order of their numbers.
struct MatmulDesc {
  void *bias, *aux, *a_scale, *b_scale, *c_scale, *d_scale, *amax, *aux_scale, *aux_amax, *d_out_scale, *emulation;
  int64_t bias_stride, aux_ld, aux_stride, alpha_stride;
  int32_t compute, scale_type, pointer_mode, ta, tb, tc, fill, sm_target, aux_type, bias_type;
  uint32_t epilogue;
  int32_t a_mode, b_mode, c_mode, d_mode, aux_mode, d_out_mode;
  int32_t atomic_rows, atomic_cols; // removed from the API; set by older callers
  void *atomic_in, *atomic_out;
  int8_t fast_accumulation;
};
static_assert(sizeof(MatmulDesc) <= sizeof(cublasLtMatmulDescOpaque_t));

struct Layout {
  uint32_t type;
  int32_t order;
  uint64_t rows, cols;
  int64_t ld, batch_stride, plane_offset;
  int32_t batch;
  uint32_t batch_mode; // 1: the matrix pointer is an array of pointers in device memory
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));

struct Preference {
  uint64_t max_workspace, impl_mask;
  uint32_t search_mode, reduction_mask;
  uint32_t align_a, align_b, align_c, align_d;
  float max_waves;
};
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

struct Transform {
  int32_t scale_type, pointer_mode, ta, tb;
};
static_assert(sizeof(Transform) <= sizeof(cublasLtMatrixTransformDescOpaque_t));

struct Algorithm {
  int32_t id;
  uint32_t tile, split_k, reduction, swizzle, custom, stages;
  uint16_t inner_shape, cluster_shape;
  uint32_t valid; // kValid: made by this library
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
inline constexpr uint32_t kValid = 0x45494441;

// Where an attribute lies in its descriptor.
struct Field {
  int attribute;
  uint16_t offset, bytes;
};
#define EID_FIELD(attribute, Type, member)                                                                             \
  Field { attribute, offsetof(Type, member), sizeof(Type::member) }

template <size_t n> const Field *find(const Field (&fields)[n], int attribute) {
  for (const Field &field : fields)
    if (field.attribute == attribute)
      return &field;
  return nullptr;
}

template <size_t n>
cublasStatus_t set(const Field (&fields)[n], void *descriptor, int attribute, const void *buffer, size_t bytes) {
  const Field *field = find(fields, attribute);
  if (descriptor == nullptr || buffer == nullptr || field == nullptr || bytes != field->bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(static_cast<char *>(descriptor) + field->offset, buffer, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <size_t n>
cublasStatus_t get(const Field (&fields)[n], const void *descriptor, int attribute, void *buffer, size_t bytes,
                   size_t *written) {
  const Field *field = find(fields, attribute);
  if (descriptor == nullptr || field == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes == 0) { // the caller asks for the size
    if (written == nullptr)
      return CUBLAS_STATUS_INVALID_VALUE;
    *written = field->bytes;
    return CUBLAS_STATUS_SUCCESS;
  }
  if (buffer == nullptr || bytes != field->bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(buffer, static_cast<const char *>(descriptor) + field->offset, bytes);
  if (written != nullptr)
    *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T, class Opaque> T *as(Opaque *opaque) { return reinterpret_cast<T *>(opaque); }
template <class T, class Opaque> const T *as(const Opaque *opaque) { return reinterpret_cast<const T *>(opaque); }

} // namespace eidolon::lt

#define EID_LT extern "C" EID_API cublasStatus_t
