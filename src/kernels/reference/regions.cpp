#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {
namespace {

// fc2(gelu(fc1(hidden))).
std::vector<float> region_logits(const float* hidden, const LinearWeights& fc1,
                                 const LinearWeights& fc2) {
  std::vector<float> inner(static_cast<std::size_t>(fc1.out));
  std::vector<float> logits(static_cast<std::size_t>(fc2.out));
  linear({.x = hidden,
          .x_stride = fc1.in,
          .weights = fc1,
          .y = inner.data(),
          .y_stride = fc1.out,
          .y_dtype = DType::kF32,
          .num_rows = 1,
          .activation = Activation::kGeluTanh});
  linear({.x = inner.data(),
          .x_stride = fc2.in,
          .weights = fc2,
          .y = logits.data(),
          .y_stride = fc2.out,
          .y_dtype = DType::kF32,
          .num_rows = 1});
  return logits;
}

// Index of the largest value, the lowest index among equals.
int argmax(const float* values, int count) {
  return static_cast<int>(std::max_element(values, values + count) - values);
}

}  // namespace

float coordinate_of_bin(int bin, int num_bins) {
  return static_cast<float>(static_cast<double>(bin) / (num_bins - 1));
}

float size_of_bin(int bin, int num_bins) {
  return static_cast<float>(std::exp2(10.0 * bin / (num_bins - 1) - 10.0));
}

void decode_regions(const DecodeRegionsParams& params) {
  const RegionDecoderWeights& weights = params.weights;
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    if (params.rows[i] < 0) continue;
    const RowState& row = params.row_states[params.rows[i]];
    if (row.done != 0 || (row.flags & kRowDecodesRegions) == 0) continue;
    const float* hidden = static_cast<const float*>(params.hidden) + i * params.dim;
    float* values = params.values + i * 2;

    if (params.tokens[i] == params.coord_id) {
      const auto logits = region_logits(hidden, weights.coord_fc1, weights.coord_fc2);
      const int num_bins = weights.coord_fc2.out;
      values[0] = coordinate_of_bin(argmax(logits.data(), num_bins), num_bins);
      values[1] = 0;
    } else if (params.tokens[i] == params.size_id) {
      const auto logits = region_logits(hidden, weights.size_fc1, weights.size_fc2);
      const int num_bins = weights.size_fc2.out / 2;
      values[0] = size_of_bin(argmax(logits.data(), num_bins), num_bins);
      values[1] = size_of_bin(argmax(logits.data() + num_bins, num_bins), num_bins);
    }
  }
}

}  // namespace gapless::reference
