#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {
namespace {

const TokenInput& input_at(const EmbedParams& params, std::int64_t i) {
  const std::int64_t index = params.index != nullptr ? params.index[i] : i;
  const auto* bytes = reinterpret_cast<const unsigned char*>(params.inputs);
  return *reinterpret_cast<const TokenInput*>(bytes + index * params.input_stride_bytes);
}

// cos and sin of z = (2 pi v) W, all cosines first; v has num_values elements, W is
// [num_values, num_features / 2]. Every step rounds to T, as the published reference does.
std::vector<float> fourier_features(const float* values, int num_values, const float* frequencies,
                                    int num_features, DType round_as) {
  const int half = num_features / 2;
  std::vector<float> features(static_cast<std::size_t>(num_features));
  for (int j = 0; j < half; ++j) {
    double z = 0;
    for (int v = 0; v < num_values; ++v) {
      const float value = round_to(round_as, values[v]);
      const auto two_pi = static_cast<float>(2.0 * std::numbers::pi);
      const float scaled = round_to(round_as, two_pi * value);
      z += static_cast<double>(scaled) * frequencies[v * half + j];
    }
    const float rounded = round_to(round_as, static_cast<float>(z));
    features[j] = round_to(round_as, std::cos(rounded));
    features[half + j] = round_to(round_as, std::sin(rounded));
  }
  return features;
}

// Of a coordinate that the table holds; else nullptr.
const float* table_row(const RegionEncoderWeights& region, const TokenInput& input,
                       std::int64_t dim) {
  if (input.kind != InputKind::kCoord) return nullptr;
  for (int bin = 0; region.coord_table != nullptr && bin < region.num_bins; ++bin) {
    if (coordinate_of_bin(bin, region.num_bins, region.coord_divisor) == input.x) {
      return static_cast<const float*>(region.coord_table) + bin * dim;
    }
  }
  return nullptr;
}

}  // namespace

void embed(const EmbedParams& params, DType round_as) {
  const std::int64_t dim = params.dim;
  for (std::int64_t i = 0; i < params.num_tokens; ++i) {
    float* out = static_cast<float*>(params.out) + i * dim;
    if (params.index != nullptr && params.index[i] < 0) {
      std::fill(out, out + dim, 0.0f);
      continue;
    }
    const TokenInput& input = input_at(params, i);
    if (const float* row = table_row(params.region, input, dim)) {
      std::copy(row, row + dim, out);
      continue;
    }
    if (input.kind == InputKind::kCoord || input.kind == InputKind::kSize) {
      const bool is_size = input.kind == InputKind::kSize;
      const LinearWeights& encoder =
          is_size ? params.region.size_encoder : params.region.coord_encoder;
      const void* frequencies =
          is_size ? params.region.size_features : params.region.coord_features;
      const float values[2] = {input.x, input.y};
      const std::vector<float> features = fourier_features(
          values, is_size ? 2 : 1, static_cast<const float*>(frequencies), encoder.in, round_as);
      linear({.x = features.data(),
              .x_stride = encoder.in,
              .weights = encoder,
              .y = out,
              .y_stride = dim,
              .y_dtype = DType::kF32,
              .num_rows = 1});
      continue;
    }
    const bool is_image = input.kind == InputKind::kImage;
    const bool is_known_text = input.id >= 0 && input.id < params.vocab;
    const std::int64_t id = is_image || is_known_text ? input.id : 0;
    const void* table = is_image ? params.image_embeddings : params.wte;
    const float* from = static_cast<const float*>(table) + id * dim;
    for (std::int64_t d = 0; d < dim; ++d) out[d] = from[d];
  }
}

}  // namespace gapless::reference
