// Shapes of Moondream 2, and operands of such shapes.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "bench/cuda_bench.h"

namespace gapless::bench {

inline constexpr int kDim = 2048, kFfDim = 8192, kVocab = 51200, kLayers = 24;
inline constexpr int kHeads = 32, kHeadDim = 64, kRotaryDim = 32;
inline constexpr int kContext = 850, kMaxContext = 2048;
inline constexpr int kVisionDim = 1152, kPatches = 729;

inline LinearWeights weights(CudaBench& b, int in, int out) {
  const float stddev = 1.0f / static_cast<float>(in) * 40.0f;
  return {.weight = b.noise(std::int64_t{in} * out, stddev),
          .bias = b.noise(out),
          .in = in,
          .out = out};
}

// 0, 1, 2, ...
inline std::vector<std::int32_t> seats(int count) {
  std::vector<std::int32_t> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

// Rows in the middle of their answers.
inline std::vector<RowState> row_states(int rows, float temperature, float top_p) {
  std::vector<RowState> states(static_cast<std::size_t>(rows));
  for (int i = 0; i < rows; ++i) {
    RowState& state = states[static_cast<std::size_t>(i)];
    state.position = kContext - 1;
    state.max_generated = 1 << 30;
    state.sampling.temperature = temperature;
    state.sampling.top_p = top_p;
    state.sampling.seed = static_cast<std::uint64_t>(i);
  }
  return states;
}

}  // namespace gapless::bench
