#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_ops.h"

namespace gapless::reference {
namespace {

// Those of one product.
std::vector<float> product(const float* x, const LinearWeights& weights, Activation activation) {
  std::vector<float> y(static_cast<std::size_t>(weights.out));
  linear({.x = x,
          .x_stride = weights.in,
          .weights = weights,
          .y = y.data(),
          .y_stride = weights.out,
          .y_dtype = DType::kF32,
          .num_rows = 1,
          .activation = activation});
  return y;
}

std::vector<float> region_logits(std::vector<float> hidden, const NormWeights (&norms)[2],
                                 const LinearWeights& fc1, const LinearWeights& fc2) {
  const int dim = static_cast<int>(hidden.size());
  for (const NormWeights& norm : norms) {
    if (norm.gamma != nullptr) norm_row(norm, hidden.data(), hidden.data(), dim);
  }
  if (fc1.out > 0) hidden = product(hidden.data(), fc1, Activation::kGeluTanh);
  return product(hidden.data(), fc2, Activation::kNone);
}

// Index of the largest value, the lowest index among equals.
int argmax(const float* values, int count) {
  return static_cast<int>(std::max_element(values, values + count) - values);
}

}  // namespace

float confidence_of_best(const float* logits, int num_bins) {
  const double largest = *std::max_element(logits, logits + num_bins);
  double sum = 0;
  for (int i = 0; i < num_bins; ++i) sum += std::exp(logits[i] - largest);
  return static_cast<float>(1 / sum);
}

float coordinate_of_bin(int bin, int num_bins) {
  return coordinate_of_bin(bin, num_bins, 0);
}

float coordinate_of_bin(int bin, int num_bins, int divisor) {
  return static_cast<float>(static_cast<double>(bin) / (divisor > 0 ? divisor : num_bins - 1));
}

float size_of_bin(int bin, int num_bins) {
  return static_cast<float>(std::exp2(10.0 * bin / (num_bins - 1) - 10.0));
}

float size_of_bin(int bin, int num_bins, bool linear) {
  return linear ? coordinate_of_bin(bin, num_bins, num_bins) : size_of_bin(bin, num_bins);
}

void decode_regions(const DecodeRegionsParams& params) {
  const RegionDecoderWeights& weights = params.weights;
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    if (params.rows[i] < 0) continue;
    const RowState& row = params.row_states[params.rows[i]];
    if (row.done != 0 || (row.flags & kRowDecodesRegions) == 0) continue;
    const float* row_begin = static_cast<const float*>(params.hidden) + i * params.dim;
    const std::vector<float> hidden(row_begin, row_begin + params.dim);
    float* values = params.values + i * 2;
    const bool wants_confidence = (row.flags & kRowWantsConfidence) != 0;

    if (params.tokens[i] == params.coord_id) {
      const auto logits =
          region_logits(hidden, weights.norms, weights.coord_fc1, weights.coord_fc2);
      const int num_bins = weights.coord_fc2.out;
      values[0] =
          coordinate_of_bin(argmax(logits.data(), num_bins), num_bins, params.coord_divisor);
      values[1] = 0;
      if (wants_confidence) {
        params.confidences[i].x = confidence_of_best(logits.data(), num_bins);
        params.confidences[i].y = 0;
      }
    } else if (params.tokens[i] == params.size_id) {
      const auto logits = region_logits(hidden, weights.norms, weights.size_fc1, weights.size_fc2);
      const int num_bins = weights.size_fc2.out / 2;
      values[0] = size_of_bin(argmax(logits.data(), num_bins), num_bins, params.linear_sizes);
      values[1] =
          size_of_bin(argmax(logits.data() + num_bins, num_bins), num_bins, params.linear_sizes);
      if (wants_confidence) {
        params.confidences[i].x = confidence_of_best(logits.data(), num_bins);
        params.confidences[i].y = confidence_of_best(logits.data() + num_bins, num_bins);
      }
    }
  }
}

}  // namespace gapless::reference
