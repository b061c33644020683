// How a user wants tokens to be picked. SampleParams in kernels/kernels.h says what each setting does
// and where its formula comes from.
//
// Set once, when a sequence gets its row, and never changed by the device. Plain bytes, shared by
// the host, the CPU kernels and the CUDA kernels.
#pragma once

#include <cstdint>

namespace gapless {

struct SamplingSettings {
  float temperature = 0;              // <= 0: greedy
  float top_p = 1;                    // (0, 1]
  float min_p = 0;                    // [0, 1]
  std::int32_t top_k = 0;             // 0: off
  float repetition_penalty = 1;       // 1: off; tokens of the prompt and of the answer
  float presence_penalty = 0;         // tokens of the answer
  float frequency_penalty = 0;        // tokens of the answer, for each time
  std::int32_t min_tokens = 0;        // no stop id before so many tokens
  std::int32_t num_top_logprobs = 0;  // alternatives reported beside each token, <= kMaxTopLogprobs
  std::uint64_t seed = 0;             // Philox key; the counter is (num_generated, 0, 0, 0)
};

}  // namespace gapless
