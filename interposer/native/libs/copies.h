// Copies and sets in three dimensions, for both libraries. They are made of the core's linear and pitched ones.
#pragma once
#include "status.h"

namespace eidolon {

// Whether `bytes` bytes lie inside one allocation. The core only moves bytes. To reach outside an allocation is the
// caller's error, as in CUDA.
inline bool inside(const void *pointer, size_t bytes) {
  if (pointer == nullptr)
    return false;
  if (!is_device(pointer))
    return true; // host memory is not checked
  PointerInfo info = pointer_info(pointer);
  if (info.type == PointerInfo::kUnregistered)
    return false;
  const auto offset = static_cast<size_t>(static_cast<const char *>(pointer) - static_cast<const char *>(info.base));
  if (bytes <= info.bytes - offset)
    return true;
  // A copy takes mappings that follow each other in one reservation for one range.
  for (const char *next = static_cast<const char *>(info.base) + info.bytes;;) {
    const auto have = static_cast<size_t>(next - static_cast<const char *>(pointer));
    if (have >= bytes)
      return true;
    PointerInfo more = pointer_info(next);
    if (more.type == PointerInfo::kUnregistered || more.base != next)
      return false;
    next += more.bytes;
  }
}

inline Status copy_checked(void *to, const void *from, size_t bytes, CopyKind kind, Stream *stream, bool synchronous,
                           uint16_t call) {
  if (!inside(to, bytes) || !inside(from, bytes))
    return kInvalidValue;
  return copy(to, from, bytes, kind, stream, synchronous, call);
}

// One end of a 3D copy. Rows lie `pitch` bytes apart, slices lie `rows` rows apart, and the copy starts at (x, y, z).
struct Box {
  const void *pointer;
  size_t pitch, rows;
  size_t x, y, z;
  char *at(size_t slice) const {
    return const_cast<char *>(static_cast<const char *>(pointer)) + ((z + slice) * rows + y) * pitch + x;
  }
};

inline Status copy_box(const Box &to, const Box &from, size_t width, size_t height, size_t depth, CopyKind kind,
                       Stream *stream, bool synchronous, uint16_t call) {
  if (width == 0 || height == 0 || depth == 0)
    return kSuccess;
  if (to.pointer == nullptr || from.pointer == nullptr)
    return kInvalidValue;
  if ((height > 1 || depth > 1) && (width > to.pitch || width > from.pitch))
    return kInvalidPitch;
  const bool joined = depth == 1 || (to.rows == height && from.rows == height);
  if (joined)
    return copy_2d(to.at(0), to.pitch, from.at(0), from.pitch, width, height * depth, kind, stream, synchronous, call);
  for (size_t slice = 0; slice < depth; ++slice)
    if (Status status =
            copy_2d(to.at(slice), to.pitch, from.at(slice), from.pitch, width, height, kind, stream, synchronous, call))
      return status;
  return kSuccess;
}

// Sets a box. `width` is in elements. Rows that lie back to back are set at once.
inline Status set_box(void *to, unsigned value, size_t element_bytes, size_t pitch, size_t width, size_t height,
                      size_t depth, size_t slice_rows, Stream *stream, bool synchronous, uint16_t call) {
  const size_t row_bytes = width * element_bytes;
  if (row_bytes == 0 || height == 0 || depth == 0)
    return kSuccess;
  if (to == nullptr)
    return kInvalidValue;
  if ((height > 1 || depth > 1) && row_bytes > pitch)
    return kInvalidPitch;
  auto *at = static_cast<char *>(to);
  if (!inside(at, ((depth - 1) * slice_rows + height - 1) * pitch + row_bytes))
    return kInvalidValue;
  const bool rows_joined = height == 1 || row_bytes == pitch;
  const bool slices_joined = depth == 1 || (rows_joined && slice_rows == height && row_bytes == pitch);
  if (rows_joined && slices_joined)
    return set(at, value, element_bytes, width * height * depth, stream, synchronous, call);
  for (size_t z = 0; z < depth; ++z)
    for (size_t y = 0; y < height; ++y)
      if (Status status =
              set(at + (z * slice_rows + y) * pitch, value, element_bytes, width, stream, synchronous, call))
        return status;
  return kSuccess;
}

} // namespace eidolon
