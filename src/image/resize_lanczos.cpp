#include "image/resize_lanczos.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"

namespace gapless {
namespace {

constexpr int kPrecisionBits = 22;  // 32 minus 8 bits of pixel minus 2 bits of headroom
constexpr double kLanczosRadius = 3.0;
constexpr int kChannels = 3;

// A task of the vertical pass makes so many rows.
constexpr int kTaskRows = 32;

// Both passes are sums of weighted rows of bytes, made kLanes neighbouring bytes at a time. The
// horizontal pass gets there by turning kBlockRows rows of pixels into columns first.
constexpr int kBlockRows = 16;
constexpr int kLanes = kBlockRows * kChannels;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  if (x < -kLanczosRadius || x >= kLanczosRadius) return 0.0;
  return sinc(x) * sinc(x / kLanczosRadius);
}

// The taps of one axis: output o reads inputs first[o] .. first[o] + num_taps[o] - 1 with the
// weights at fixed_weights[o * max_taps].
struct AxisTaps {
  int max_taps = 0;
  std::vector<int> first;
  std::vector<int> num_taps;
  std::vector<std::int32_t> fixed_weights;

  const std::int32_t* weights(int o) const {
    return fixed_weights.data() + static_cast<std::size_t>(o) * static_cast<std::size_t>(max_taps);
  }
};

std::int32_t to_fixed(double weight) {
  const double scaled = weight * (1 << kPrecisionBits);
  return static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

AxisTaps make_taps(int in_size, int out_size) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(1.0, scale);
  const double support = kLanczosRadius * filter_scale;
  const double inverse_filter_scale = 1.0 / filter_scale;

  AxisTaps taps;
  taps.max_taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.first.resize(static_cast<std::size_t>(out_size));
  taps.num_taps.resize(static_cast<std::size_t>(out_size));
  taps.fixed_weights.resize(static_cast<std::size_t>(out_size) *
                            static_cast<std::size_t>(taps.max_taps));
  std::vector<double> weights(static_cast<std::size_t>(taps.max_taps));
  for (int o = 0; o < out_size; ++o) {
    const double centre = (o + 0.5) * scale;
    // Truncation, not floor: Pillow casts to int, and the lower end is cut at 0 anyway.
    const int begin = std::max(0, static_cast<int>(centre - support + 0.5));
    const int end = std::min(in_size, static_cast<int>(centre + support + 0.5));
    double sum = 0.0;
    for (int x = begin; x < end; ++x) {
      const double weight = lanczos((x - centre + 0.5) * inverse_filter_scale);
      weights[static_cast<std::size_t>(x - begin)] = weight;
      sum += weight;
    }
    const auto row = static_cast<std::size_t>(o);
    taps.first[row] = begin;
    taps.num_taps[row] = end - begin;
    for (int i = 0; i < end - begin; ++i) {
      double weight = weights[static_cast<std::size_t>(i)];
      if (sum != 0.0) weight /= sum;
      taps.fixed_weights[row * static_cast<std::size_t>(taps.max_taps) +
                         static_cast<std::size_t>(i)] = to_fixed(weight);
    }
  }
  return taps;
}

std::uint8_t clamp_to_byte(std::int32_t fixed) {
  return static_cast<std::uint8_t>(std::clamp(fixed >> kPrecisionBits, 0, 255));
}

// out[i] = clamp(sum over t of weights[t] * in[t * stride + i]) for i < num_lanes.
[[gnu::always_inline]] inline void weigh_lanes(const std::uint8_t* in, std::size_t stride,
                                               const std::int32_t* weights, int num_taps,
                                               int num_lanes, std::uint8_t* out) {
  std::int32_t sums[kLanes];
  for (int i = 0; i < num_lanes; ++i) sums[i] = 1 << (kPrecisionBits - 1);
  for (int t = 0; t < num_taps; ++t) {
    const std::int32_t weight = weights[t];
    for (int i = 0; i < num_lanes; ++i) sums[i] += in[i] * weight;
    in += stride;
  }
  for (int i = 0; i < num_lanes; ++i) out[i] = clamp_to_byte(sums[i]);
}

// One row of the vertical pass: row_bytes columns, kLanes at a time. The last chunk of a wide row
// steps back to end at the row's end, so only rows narrower than one chunk take the slow loop.
[[gnu::always_inline]] inline void weigh_row(const std::uint8_t* in, std::size_t row_bytes,
                                             const std::int32_t* weights, int num_taps,
                                             std::uint8_t* out) {
  if (row_bytes < kLanes) {
    weigh_lanes(in, row_bytes, weights, num_taps, static_cast<int>(row_bytes), out);
    return;
  }
  for (std::size_t begin = 0; begin < row_bytes; begin += kLanes) {
    const std::size_t at = std::min(begin, row_bytes - kLanes);
    weigh_lanes(in + at, row_bytes, weights, num_taps, kLanes, out + at);
  }
}

// One block of the horizontal pass: columns is [in_width][kLanes], out_columns [out_width][kLanes].
[[gnu::always_inline]] inline void weigh_columns(const std::uint8_t* columns, const AxisTaps& taps,
                                                 int out_width, std::uint8_t* out_columns) {
  for (int o = 0; o < out_width; ++o) {
    const auto index = static_cast<std::size_t>(o);
    weigh_lanes(columns + static_cast<std::size_t>(taps.first[index]) * kLanes, kLanes,
                taps.weights(o), taps.num_taps[index], kLanes, out_columns + index * kLanes);
  }
}

using WeighRow = void (*)(const std::uint8_t*, std::size_t, const std::int32_t*, int,
                          std::uint8_t*);
using WeighColumns = void (*)(const std::uint8_t*, const AxisTaps&, int, std::uint8_t*);

struct Kernels {
  WeighRow row;
  WeighColumns columns;
};

void weigh_row_portable(const std::uint8_t* in, std::size_t row_bytes, const std::int32_t* weights,
                        int num_taps, std::uint8_t* out) {
  weigh_row(in, row_bytes, weights, num_taps, out);
}
void weigh_columns_portable(const std::uint8_t* columns, const AxisTaps& taps, int out_width,
                            std::uint8_t* out_columns) {
  weigh_columns(columns, taps, out_width, out_columns);
}

#if defined(__x86_64__)
// The same loops compiled for AVX2, whose 32-bit multiply baseline x86-64 lacks.
[[gnu::target("avx2")]] void weigh_row_avx2(const std::uint8_t* in, std::size_t row_bytes,
                                            const std::int32_t* weights, int num_taps,
                                            std::uint8_t* out) {
  weigh_row(in, row_bytes, weights, num_taps, out);
}
[[gnu::target("avx2")]] void weigh_columns_avx2(const std::uint8_t* columns, const AxisTaps& taps,
                                                int out_width, std::uint8_t* out_columns) {
  weigh_columns(columns, taps, out_width, out_columns);
}

Kernels select_kernels() {
  if (__builtin_cpu_supports("avx2")) return {weigh_row_avx2, weigh_columns_avx2};
  return {weigh_row_portable, weigh_columns_portable};
}
#else
Kernels select_kernels() {
  return {weigh_row_portable, weigh_columns_portable};
}
#endif

// Calls task(0) to task(num_tasks - 1), on the pool's threads if there is one.
template <typename Task>
void for_each_task(ThreadPool* pool, int num_tasks, const Task& task) {
  if (pool != nullptr) {
    pool->parallel_for(num_tasks, [&](std::int64_t i) { task(static_cast<int>(i)); });
  } else {
    for (int i = 0; i < num_tasks; ++i) task(i);
  }
}

void resize_horizontally(const std::uint8_t* in, int in_width, int height, int out_width,
                         std::uint8_t* out, ThreadPool* pool) {
  const AxisTaps taps = make_taps(in_width, out_width);
  const Kernels kernels = select_kernels();
  const std::size_t in_row_bytes = static_cast<std::size_t>(in_width) * kChannels;
  const std::size_t out_row_bytes = static_cast<std::size_t>(out_width) * kChannels;
  for_each_task(pool, (height + kBlockRows - 1) / kBlockRows, [&](int block) {
    std::vector<std::uint8_t> columns(static_cast<std::size_t>(in_width) * kLanes);
    std::vector<std::uint8_t> out_columns(static_cast<std::size_t>(out_width) * kLanes);
    const int y = block * kBlockRows;
    const int num_rows = std::min(kBlockRows, height - y);
    for (int r = 0; r < num_rows; ++r) {
      const std::uint8_t* from = in + static_cast<std::size_t>(y + r) * in_row_bytes;
      std::uint8_t* to = columns.data() + r * kChannels;
      for (int x = 0; x < in_width; ++x, from += kChannels, to += kLanes) {
        std::memcpy(to, from, kChannels);
      }
    }
    kernels.columns(columns.data(), taps, out_width, out_columns.data());
    for (int r = 0; r < num_rows; ++r) {
      const std::uint8_t* from = out_columns.data() + r * kChannels;
      std::uint8_t* to = out + static_cast<std::size_t>(y + r) * out_row_bytes;
      for (int x = 0; x < out_width; ++x, from += kLanes, to += kChannels) {
        std::memcpy(to, from, kChannels);
      }
    }
  });
}

void resize_vertically(const std::uint8_t* in, int width, int in_height, int out_height,
                       std::uint8_t* out, ThreadPool* pool) {
  const AxisTaps taps = make_taps(in_height, out_height);
  const Kernels kernels = select_kernels();
  const std::size_t row_bytes = static_cast<std::size_t>(width) * kChannels;
  for_each_task(pool, (out_height + kTaskRows - 1) / kTaskRows, [&](int task) {
    const int end = std::min(out_height, (task + 1) * kTaskRows);
    for (int o = task * kTaskRows; o < end; ++o) {
      const auto index = static_cast<std::size_t>(o);
      kernels.row(in + static_cast<std::size_t>(taps.first[index]) * row_bytes, row_bytes,
                  taps.weights(o), taps.num_taps[index], out + index * row_bytes);
    }
  });
}

// Which pass goes first changes the rounding, so this is Pillow 13's rule to the letter.
bool vertical_first(const Image& image, int out_width, int out_height) {
  const int rows_removed = image.height - out_height;
  const int columns_removed = image.width - out_width;
  return rows_removed > 0 && rows_removed > 2 * columns_removed;
}

}  // namespace

void resize_lanczos_into(const Image& image, int out_width, int out_height, std::uint8_t* out_rgb,
                         ThreadPool* pool) {
  GAPLESS_CHECK(image.width > 0 && image.height > 0 && out_width > 0 && out_height > 0);
  const std::uint8_t* in = image.rgb.data();
  const bool horizontal = out_width != image.width;
  const bool vertical = out_height != image.height;
  if (horizontal && vertical && vertical_first(image, out_width, out_height)) {
    std::vector<std::uint8_t> middle(static_cast<std::size_t>(out_height) *
                                     static_cast<std::size_t>(image.width) * kChannels);
    resize_vertically(in, image.width, image.height, out_height, middle.data(), pool);
    resize_horizontally(middle.data(), image.width, out_height, out_width, out_rgb, pool);
  } else if (horizontal && vertical) {
    std::vector<std::uint8_t> middle(static_cast<std::size_t>(image.height) *
                                     static_cast<std::size_t>(out_width) * kChannels);
    resize_horizontally(in, image.width, image.height, out_width, middle.data(), pool);
    resize_vertically(middle.data(), out_width, image.height, out_height, out_rgb, pool);
  } else if (horizontal) {
    resize_horizontally(in, image.width, image.height, out_width, out_rgb, pool);
  } else if (vertical) {
    resize_vertically(in, image.width, image.height, out_height, out_rgb, pool);
  } else {
    std::copy(image.rgb.begin(), image.rgb.end(), out_rgb);
  }
}

Image resize_lanczos(const Image& image, int out_width, int out_height, ThreadPool* pool) {
  Image out{out_width, out_height, {}};
  out.rgb.resize(static_cast<std::size_t>(out_width) * static_cast<std::size_t>(out_height) *
                 kChannels);
  resize_lanczos_into(image, out_width, out_height, out.rgb.data(), pool);
  return out;
}

}  // namespace gapless
