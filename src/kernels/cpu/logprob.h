// Log probabilities of one row of logits: SampleParams in kernels.h says what they are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "step/row_state.h"

namespace gapless::cpu {

class Logprobs {
 public:
  // Two passes over the row, whose logits must outlive this.
  Logprobs(const float* logits, int vocab) : logits_(logits) {
    for (int i = 0; i < vocab; ++i) {
      if (std::isfinite(logits[i])) largest_ = std::max<double>(largest_, logits[i]);
    }
    double sum = 0;
    for (int i = 0; i < vocab; ++i) {
      if (std::isfinite(logits[i])) sum += std::exp(logits[i] - largest_);
    }
    log_sum_ = std::log(sum);
  }

  float of(std::int32_t token) const {
    if (!std::isfinite(logits_[token])) return kImpossibleLogprob;
    return static_cast<float>(logits_[token] - largest_ - log_sum_);
  }

 private:
  const float* logits_;
  double largest_ = -INFINITY;
  double log_sum_ = 0;
};

}  // namespace gapless::cpu
