#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/limits.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::reference {

void choose_experts(std::span<const float> logits, std::span<ChosenExpert> chosen, DType round_as) {
  std::array<bool, kMaxExperts> taken{};
  for (ChosenExpert& choice : chosen) {
    int best = -1;
    for (std::size_t e = 0; e < logits.size(); ++e) {
      const bool is_better = best < 0 || logits[e] > logits[static_cast<std::size_t>(best)];
      if (!taken[e] && is_better) best = static_cast<int>(e);
    }
    taken[static_cast<std::size_t>(best)] = true;
    choice.expert = best;
  }
  const auto logit = [&](const ChosenExpert& choice) {
    return logits[static_cast<std::size_t>(choice.expert)];
  };
  const float largest = logit(chosen.front());
  float sum = 0;
  for (ChosenExpert& choice : chosen) {
    choice.weight = std::exp(logit(choice) - largest);
    sum += choice.weight;
  }
  for (ChosenExpert& choice : chosen) choice.weight = round_to(round_as, choice.weight / sum);
}

LinearWeights expert_of(const LinearWeights& first, int index) {
  LinearWeights weights = first;
  weights.weight = static_cast<const float*>(first.weight) +
                   static_cast<std::int64_t>(index) * first.in * first.out;
  return weights;
}

namespace {

void round_each(std::vector<float>& values, DType round_as) {
  for (float& value : values) value = round_to(round_as, value);
}

// The first `size` numbers.
void round_row_to_fp8(std::vector<float>& inner, int size) {
  float scale = 1;
  rows_to_fp8({.x = inner.data(),
               .x_stride = size,
               .y = inner.data(),
               .y_stride = size,
               .scales = &scale,
               .num_rows = 1,
               .dim = size});
}

}  // namespace

void experts(const ExpertsParams& params, DType round_as) {
  const FeedForward& ff = params.ff;
  const std::int64_t dim = ff.up.in;
  std::vector<float> logits(static_cast<std::size_t>(ff.num_experts));
  std::vector<ChosenExpert> chosen(static_cast<std::size_t>(ff.experts_per_token));
  std::vector<float> inner(static_cast<std::size_t>(ff.up.out)), out(static_cast<std::size_t>(dim));
  // Rows in 8 bits have their scales multiplied in (fp8.cpp), weights too.
  const bool is_fp8 = params.x_fp8 != nullptr;
  const auto in_format = [&](const LinearWeights& weights) {
    LinearWeights read = weights;
    if (is_fp8) read.weight = weights.fp8;
    return read;
  };
  const LinearWeights up = in_format(ff.up), down = in_format(ff.down);
  const auto product = [](const float* x, const LinearWeights& weights, std::vector<float>& y) {
    linear({.x = x,
            .x_stride = weights.in,
            .weights = weights,
            .y = y.data(),
            .y_stride = weights.out,
            .y_dtype = DType::kF32,
            .num_rows = 1});
  };

  for (std::int64_t r = 0; r < params.num_rows; ++r) {
    const float* x = static_cast<const float*>(params.x) + r * dim;
    if (params.logits != nullptr) {
      std::copy_n(static_cast<const float*>(params.logits) + r * ff.num_experts, ff.num_experts,
                  logits.begin());
    } else {
      product(x, ff.router, logits);
      round_each(logits, round_as);
    }
    choose_experts(logits, chosen, round_as);
    if (is_fp8) x = static_cast<const float*>(params.x_fp8) + r * params.x_fp8_stride;
    std::vector<double> sum(static_cast<std::size_t>(dim));
    for (const ChosenExpert& choice : chosen) {
      product(x, expert_of(up, choice.expert), inner);
      if (is_fp8) round_each(inner, round_as);
      gate({.x = inner.data(),
            .x_stride = ff.up.out,
            .y = inner.data(),
            .y_stride = ff.up.out,
            .num_rows = 1,
            .dim = ff.inner(),
            .activation = ff.activation,
            .up_offset = ff.up_offset});
      if (is_fp8) {
        round_each(inner, round_as);
        round_row_to_fp8(inner, ff.inner());
      }
      product(inner.data(), expert_of(down, choice.expert), out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        sum[i] += double{choice.weight} * round_to(round_as, out[i]);
      }
    }
    const float* residual = static_cast<const float*>(params.residual) + r * dim;
    float* y = static_cast<float*>(params.y) + r * dim;
    for (std::size_t i = 0; i < sum.size(); ++i) y[i] = static_cast<float>(residual[i] + sum[i]);
  }
}

}  // namespace gapless::reference
