// Copies and sets: the records, and what happens to known bytes.
#include <cstring>

#include "internal.h"

namespace eidolon {
namespace {

bool pinned(const void *pointer) {
  PointerInfo::Type type = pointer_info(pointer).type;
  return type == PointerInfo::kHost || type == PointerInfo::kManaged;
}

constexpr size_t kPage = 4096; // whole pages go a faster way within the device (measured)

uint32_t copy_signature(signatures::CopyName name, bool is_pinned, bool pages) {
  return signature(name, signatures::Copy{.pinned = is_pinned, .pages = pages});
}

// Moves (or forgets) the bytes of one row.
void move_bytes(void *to, const void *from, size_t bytes, CopyKind kind) {
  switch (kind) {
  case CopyKind::kHostToDevice:
    if (bytes <= config().known_limit)
      value_write(to, bytes, from);
    else
      value_unknown(to, bytes);
    break;
  case CopyKind::kDeviceToHost:
    value_read_ordered(from, bytes, to);
    break;
  case CopyKind::kDeviceToDevice:
    value_copy(to, from, bytes);
    break;
  default:
    memmove(to, from, bytes);
  }
}

} // namespace

Status copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
               CopyKind kind, Stream *stream, bool synchronous, uint16_t call) {
  if (width == 0 || height == 0)
    return kSuccess;
  if (to == nullptr || from == nullptr)
    return kInvalidValue;
  bool to_device = is_device(to), from_device = is_device(from);
  const CopyKind seen = to_device ? (from_device ? CopyKind::kDeviceToDevice : CopyKind::kHostToDevice)
                                  : (from_device ? CopyKind::kDeviceToHost : CopyKind::kHostToHost);
  if (kind != CopyKind::kByAddress && kind != seen)
    return kInvalidValue; // what the driver answers to a direction that contradicts the addresses
  const bool within_devices = seen == CopyKind::kDeviceToDevice, up = seen == CopyKind::kHostToDevice,
             down = seen == CopyKind::kDeviceToHost;
  static constexpr signatures::CopyName kNames[] = {"h2h", "h2d", "d2h", "d2d"};
  signatures::CopyName name = kNames[static_cast<int>(seen)];
  if (within_devices && pointer_info(to).device != pointer_info(from).device)
    name = "p2p";
  const void *host = up ? from : down ? to : nullptr;
  const bool is_pinned = host != nullptr && pinned(host);
  const size_t bytes = width * height;
  const uint32_t sig = copy_signature(name, is_pinned, within_devices && bytes % kPage == 0);
  auto rows = [=] {
    for (size_t row = 0; row < height; ++row)
      move_bytes(static_cast<char *>(to) + row * to_pitch, static_cast<const char *>(from) + row * from_pitch, width,
                 seen);
  };
  if (in_capture(stream)) {
    if (synchronous)
      return kCaptureUnsupported;
    capture_node(stream, NodeType::kCopy, [=](Stream *lane, uint8_t flags) {
      emit_work({.kind = Kind::kCopy, .flags = flags, .stream = lane, .sig = sig, .value = bytes});
      rows();
    });
    return kSuccess;
  }
  count_launch();
  emit_work({.kind = Kind::kCopy, .call = call, .stream = stream, .sig = sig, .value = bytes});
  // CUDA programming guide, "API synchronization behavior": copies from device to pageable memory return once the copy
  // has completed; those to the device once the bytes are staged, which for more than 64 KiB is a stream's wait.
  constexpr size_t kStaged = 64 << 10;
  const bool waits = (synchronous && !within_devices) || (!is_pinned && (down || (up && bytes > kStaged))) ||
                     seen == CopyKind::kHostToHost;
  if (waits)
    stream_synchronize(stream, 0);
  if (waits && down)
    for (size_t row = 0; row < height; ++row)
      value_settle(static_cast<const char *>(from) + row * from_pitch, width);
  rows();
  return kSuccess;
}

Status copy(void *to, const void *from, size_t bytes, CopyKind kind, Stream *stream, bool synchronous, uint16_t call) {
  return copy_2d(to, bytes, from, bytes, bytes, 1, kind, stream, synchronous, call);
}

Status set(void *to, unsigned value, size_t element_bytes, size_t count, Stream *stream, bool synchronous,
           uint16_t call) {
  const size_t bytes = element_bytes * count;
  if (bytes == 0)
    return kSuccess;
  if (!is_device(to)) {
    if (!pinned(to))
      return kInvalidValue;
    fill_bytes(to, bytes, value, element_bytes);
    return kSuccess;
  }
  auto fill = [=] {
    if (bytes <= config().known_limit)
      value_fill(to, bytes, value, element_bytes);
    else
      value_unknown(to, bytes);
  };
  const uint32_t sig = signature("set", signatures::Set{});
  if (in_capture(stream)) {
    if (synchronous)
      return kCaptureUnsupported;
    capture_node(stream, NodeType::kSet, [=](Stream *lane, uint8_t flags) {
      emit_work({.kind = Kind::kSet, .flags = flags, .stream = lane, .sig = sig, .value = bytes});
      fill();
    });
    return kSuccess;
  }
  count_launch();
  emit_work({.kind = Kind::kSet, .call = call, .stream = stream, .sig = sig, .value = bytes});
  fill();
  return kSuccess;
}

} // namespace eidolon
