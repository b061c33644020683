#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/coordinate_bin.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"

namespace gapless::cpu {
namespace {

// cos and sin of z = (2 pi v) W, all cosines first, each step rounded to T.
template <typename T>
void fourier_features(const float* values, int num_values, const T* frequencies, int num_features,
                      T* features) {
  constexpr auto kTwoPi = static_cast<float>(2.0 * std::numbers::pi);
  const auto round = [](float value) { return to_float(rounded<T>(value)); };
  const int half = num_features / 2;
  for (int j = 0; j < half; ++j) {
    float z = 0;
    for (int v = 0; v < num_values; ++v) {
      z += round(kTwoPi * round(values[v])) * to_float(frequencies[v * half + j]);
    }
    features[j] = rounded<T>(std::cos(round(z)));
    features[half + j] = rounded<T>(std::sin(round(z)));
  }
}

template <typename T>
void embed_region(const VectorOps& ops, const RegionEncoderWeights& weights,
                  const TokenInput& input, T* out) {
  const bool is_size = input.kind == InputKind::kSize;
  if (!is_size && weights.coord_table != nullptr) {
    const int bin = bin_of_coordinate(input.x, weights.num_bins, weights.coord_divisor);
    const std::int64_t dim = weights.coord_encoder.out;
    if (bin >= 0) {
      std::copy_n(static_cast<const T*>(weights.coord_table) + bin * dim, dim, out);
      return;
    }
  }
  const LinearWeights& encoder = is_size ? weights.size_encoder : weights.coord_encoder;
  const void* frequencies = is_size ? weights.size_features : weights.coord_features;
  const float values[2] = {input.x, input.y};
  T features[kMaxRegionFeatures];
  fourier_features(values, is_size ? 2 : 1, static_cast<const T*>(frequencies), encoder.in,
                   features);
  linear(ops, {.x = features,
               .x_stride = encoder.in,
               .weights = encoder,
               .y = out,
               .y_stride = encoder.out,
               .y_dtype = ops.dtype,
               .num_rows = 1});
}

template <typename T>
void embed_as(const VectorOps& ops, const EmbedParams& params) {
  const std::int64_t dim = params.dim;
  const auto* bytes = reinterpret_cast<const unsigned char*>(params.inputs);
  for (std::int64_t i = 0; i < params.num_tokens; ++i) {
    const std::int64_t at = params.index != nullptr ? params.index[i] : i;
    T* out = static_cast<T*>(params.out) + i * dim;
    if (at < 0) {
      std::fill_n(out, dim, T{});
      continue;
    }
    const auto& input =
        *reinterpret_cast<const TokenInput*>(bytes + at * params.input_stride_bytes);
    if (input.kind == InputKind::kCoord || input.kind == InputKind::kSize) {
      embed_region(ops, params.region, input, out);
    } else if (input.kind == InputKind::kImage) {
      std::copy_n(static_cast<const T*>(params.image_embeddings) + input.id * dim, dim, out);
    } else {
      const std::int64_t id = input.id >= 0 && input.id < params.vocab ? input.id : 0;
      std::copy_n(static_cast<const T*>(params.wte) + id * dim, dim, out);
    }
  }
}

}  // namespace

void embed(const VectorOps& ops, const EmbedParams& params) {
  with_element(ops.dtype, [&]<typename T>() { embed_as<T>(ops, params); });
}

}  // namespace gapless::cpu
