// The workspace of convolutions. It comes out of the framework's caching allocator, so it decides the allocator's
// peaks.
//
// cuDNN chooses an engine by unpublished heuristics. Where a convolution was measured on the emulated GPU, a table
// gives its workspace. Elsewhere a rule does that follows from the measurements. Engines work on channels-last tensors
// whose channels are padded to 16 bytes, so other layouts and odd channel counts are copied. Filter gradients are
// summed from parts in 32 bits.
#include "cudnn_internal.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace eidolon::dnn {
namespace {

struct Entry {
  uint64_t key;
  uint32_t bytes;
};
constexpr Entry kMeasured[] = {
#include "cudnn_workspace_sm90.inc"
};

uint64_t key(const Convolution &c) {
  Hash hash;
  const auto add = [&](const int64_t *values, int n) { hash.add(values, static_cast<size_t>(n) * sizeof *values); };
  const int64_t head[] = {c.direction == Direction::kForward        ? 0
                          : c.direction == Direction::kDataGradient ? 1
                                                                    : 2,
                          c.x.type, c.x.n};
  add(head, 3);
  for (const Tensor *tensor : {&c.x, &c.w, &c.y}) {
    add(tensor->dims, tensor->n);
    add(tensor->strides, tensor->n);
  }
  add(c.stride, c.spatial);
  add(c.pad, c.spatial);
  add(c.dilation, c.spatial);
  return hash.get();
}

int64_t product(const int64_t *values, int n) {
  int64_t out = 1;
  for (int i = 0; i < n; ++i)
    out *= values[i];
  return out;
}
int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

int64_t rule(const Convolution &c) {
  const int64_t in = c.x.dims[1], out = c.w.dims[0], in_per_group = c.w.dims[1];
  const int64_t groups = in / in_per_group;
  if (groups == in && groups > 1) // depth-wise engines work in place
    return 0;
  const int64_t element = bits_of(c.x.type) / 8;
  if (element < 1 || element > 4)
    return 0;
  const int64_t vector = 16 / element; // channels that are read at once
  const int64_t plane = product(c.x.dims + 2, c.spatial), window = product(c.w.dims + 2, c.spatial);
  const int64_t x_bytes = c.x.dims[0] * round_up(in, vector) * plane * element;
  const int64_t y_bytes = c.y.dims[0] * round_up(out, vector) * product(c.y.dims + 2, c.spatial) * element;
  const int64_t w_bytes = round_up(out, vector) * round_up(in_per_group, vector) * window * element;
  bool pointwise = window == 1;
  for (int i = 0; i < c.spatial; ++i)
    pointwise = pointwise && c.stride[i] == 1 && c.pad[i] == 0;
  const bool last = c.x.channels_last() || plane == 1;

  int64_t bytes = 0;
  if (!last && (!pointwise || plane < 784)) // large planes with a 1x1 filter are multiplied as they are
    bytes = x_bytes + y_bytes + w_bytes;
  else if (last && plane > 1) {
    const bool grouped = groups > 1;
    if (in % vector != 0 || grouped)
      bytes += x_bytes;
    if (out % vector != 0 || grouped)
      bytes += y_bytes;
    if (in % vector != 0 || out % vector != 0 || grouped)
      bytes += w_bytes;
  }
  if (c.direction == Direction::kFilterGradient && plane > 1) {
    constexpr int64_t kTile = 128;
    const int64_t tiles = std::max<int64_t>(1, divide_up(out, kTile) * divide_up(in_per_group * window, kTile));
    const int64_t parts = std::clamp<int64_t>(std::max(config().gpu.sm_count, 1) / tiles, 1, 64);
    if (parts > 1)
      bytes += out * in_per_group * window * 4 * parts;
  }
  return bytes;
}

} // namespace

int64_t workspace_bytes(const Convolution &convolution) {
  const Gpu &gpu = config().gpu;
  if (gpu.cc_major == 9 && gpu.cc_minor == 0) {
    const uint64_t wanted = key(convolution);
    const Entry *found = std::lower_bound(std::begin(kMeasured), std::end(kMeasured), wanted,
                                          [](const Entry &entry, uint64_t value) { return entry.key < value; });
    if (found != std::end(kMeasured) && found->key == wanted)
      return found->bytes;
  }
  return rule(convolution);
}

} // namespace eidolon::dnn
