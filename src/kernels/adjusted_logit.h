// A candidate's logit after biases and penalties, the same bits on the CPU and on a GPU: step 2 of
// SampleParams in kernels.h. (The oracle in reference/ has its own.)
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "step/row_state.h"
#include "step/token_memory.h"

namespace gapless {

GAPLESS_HOST_DEVICE inline float adjusted_logit(float logit, const SamplingSettings& settings,
                                                std::uint16_t uses, float bias) {
  logit += bias;
  if (uses == 0) return logit;
  const float penalty = settings.repetition_penalty;
  logit = logit > 0 ? logit / penalty : logit * penalty;
  const int num_generated = uses & kMaxTokenUses;
  if (num_generated == 0) return logit;
  return fmaf(-settings.frequency_penalty, static_cast<float>(num_generated), logit) -
         settings.presence_penalty;
}

// Whether this row's next token is picked by other logits than the model's, or without stop ids.
GAPLESS_HOST_DEVICE inline bool is_adjusted(const RowState& row) {
  return (row.flags & kRowAdjustsLogits) != 0 || row.num_generated < row.sampling.min_tokens;
}

// A stop id before min_tokens.
GAPLESS_HOST_DEVICE inline bool is_held_back(const RowState& row, std::int32_t token) {
  if (row.num_generated >= row.sampling.min_tokens) return false;
  for (int i = 0; i < row.num_stop_ids; ++i) {
    if (row.stop_ids[i] == token) return true;
  }
  return false;
}

}  // namespace gapless
