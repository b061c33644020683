// A small tile of dot products, the heart of the matrix products and of the attention scores.
//
// Every product runs along k in one fixed order: lane l sums the elements l, l + kLanes, ..., then
// the lanes are added by Simd::store_sums. The order depends on k alone, not on the tile, so an
// output's bits do not depend on which rows or columns share its tile (row invariance, kernels.h).
// Both operands are contiguous along k, so nothing is packed.
#pragma once

#include <cstdint>

namespace gapless::cpu {

inline constexpr int kTileColumns = 4;

// out[i * out_stride + j] = x_i . w_j for kRows rows x_i = x + i * x_stride and four columns.
template <typename Simd, int kRows>
[[gnu::always_inline]] inline void dot_tile(const float* x, std::int64_t x_stride,
                                            const float* const (&w)[kTileColumns], int k,
                                            float* out, std::int64_t out_stride) {
  using Vector = typename Simd::Vector;
  Vector sums[kRows][kTileColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kTileColumns; ++j) sums[i][j] = Simd::zero();
  }
  auto accumulate = [&](auto load) {
    Vector x_lanes[kRows];
    for (int i = 0; i < kRows; ++i) x_lanes[i] = load(x + i * x_stride);
    for (int j = 0; j < kTileColumns; ++j) {
      const Vector w_lanes = load(w[j]);
      for (int i = 0; i < kRows; ++i) sums[i][j] = Simd::fma(x_lanes[i], w_lanes, sums[i][j]);
    }
  };
  int at = 0;
  for (; at + Simd::kLanes <= k; at += Simd::kLanes) {
    accumulate([at](const float* from)
                   __attribute__((always_inline)) { return Simd::load(from + at); });
  }
  if (at < k) {
    accumulate([ at, k ](const float* from)
                   __attribute__((always_inline)) { return Simd::load_first(from + at, k - at); });
  }
  for (int i = 0; i < kRows; ++i) {
    Simd::store_sums(out + i * out_stride, sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
  }
}

// Calls function<count>() for a count in 1 .. kMax that is known at run time only.
template <int kMax, typename Function>
[[gnu::always_inline]] inline void with_count(int count, Function function) {
  if constexpr (kMax > 1) {
    if (count < kMax) return with_count<kMax - 1>(count, function);
  }
  function.template operator()<kMax>();
}

}  // namespace gapless::cpu
