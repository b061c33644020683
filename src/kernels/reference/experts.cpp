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

void experts(const ExpertsParams& params, DType round_as) {
  const FeedForward& ff = params.ff;
  const std::int64_t dim = ff.up.in;
  std::vector<float> logits(static_cast<std::size_t>(ff.num_experts));
  std::vector<ChosenExpert> chosen(static_cast<std::size_t>(ff.experts_per_token));
  std::vector<float> inner(static_cast<std::size_t>(ff.up.out)), out(static_cast<std::size_t>(dim));
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
      for (float& logit : logits) logit = round_to(round_as, logit);
    }
    choose_experts(logits, chosen, round_as);
    std::vector<double> sum(static_cast<std::size_t>(dim));
    for (const ChosenExpert& choice : chosen) {
      product(x, expert_of(ff.up, choice.expert), inner);
      gate({.x = inner.data(),
            .x_stride = ff.up.out,
            .y = inner.data(),
            .y_stride = ff.up.out,
            .num_rows = 1,
            .dim = ff.inner(),
            .activation = ff.activation,
            .up_offset = ff.up_offset});
      product(inner.data(), expert_of(ff.down, choice.expert), out);
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
