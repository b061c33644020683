// Shapes of Moondream 2, and operands of such shapes.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "bench/cuda_bench.h"

namespace gapless::bench {

inline constexpr int kDim = 2048, kFfDim = 8192, kVocab = 51200, kLayers = 24;
inline constexpr int kHeads = 32, kHeadDim = 64, kRotaryDim = 32, kMaxContext = 2048;
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

}  // namespace gapless::bench
