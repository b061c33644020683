// Greedy choices against the oracle's.
#pragma once

#include <span>

#include "model/moondream/model_config.h"
#include "step/row_state.h"
#include "tests/golden/golden_case.h"

namespace gapless {

// How far apart two logits may be and still be exchanged by rounding; 0: never.
struct ChoiceErrors {
  double token = 0;
  double coord = 0;
  double size = 0;
};

// `outputs` are all steps of one row, the first one sampled by the prefill. Fails the running test
// at the first choice that differs by more than rounding explains, and compares nothing behind a
// choice that differs.
void compare_choices(const GoldenRequest& expected, std::span<const StepOutput> outputs,
                     const ModelConfig& config, const ChoiceErrors& errors);

}  // namespace gapless
