// A small tile of dot products, the heart of the matrix products and of the attention scores.
//
// Every product runs along k in one fixed order: lane l sums the elements l, l + kLanes, ..., of
// bfloat16 the elements 2 l, 2 l + 1, 2 (l + kLanes), ...; then the lanes are added by
// Simd::store_sums. The order depends on k alone, not on the tile, so an output's bits do not depend
// on which rows or columns share its tile (row invariance, kernels.h). Both operands are contiguous
// along k, so nothing is packed: this is the form for few rows, whose time is that of reading the
// weights once.
#pragma once

#include <cstdint>

#include "kernels/cpu/multiply_tile.h"

namespace gapless::cpu {

inline constexpr int kTileColumns = 4;

// What one step along k reads of a row: kSize elements, as kParts vectors.
template <typename Simd, typename T>
struct DotStep;

template <typename Simd>
struct DotStep<Simd, float> {
  static constexpr int kSize = Simd::kLanes, kParts = 1;
  [[gnu::always_inline]] static void load(const float* from, int count,
                                          typename Simd::Vector (&parts)[1]) {
    parts[0] = count >= kSize ? Simd::load(from) : Simd::load_first(from, count);
  }
};

template <typename Simd>
struct DotStep<Simd, Bf16> {
  static constexpr int kSize = 2 * Simd::kLanes, kParts = 2;
  [[gnu::always_inline]] static void load(const Bf16* from, int count,
                                          typename Simd::Vector (&parts)[2]) {
    const auto pairs = load_pairs<Simd>(from, count);
    parts[0] = Simd::even(pairs);
    parts[1] = Simd::odd(pairs);
  }
};

// out[i * out_stride + j] = x_i . w_j for kRows rows x_i = x + i * x_stride and four columns.
template <typename Simd, int kRows, typename T>
[[gnu::always_inline]] inline void dot_tile(const T* x, std::int64_t x_stride,
                                            const T* const (&w)[kTileColumns], int k, float* out,
                                            std::int64_t out_stride) {
  using Vector = typename Simd::Vector;
  using Step = DotStep<Simd, T>;
  Vector sums[kRows][kTileColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kTileColumns; ++j) sums[i][j] = Simd::zero();
  }
  auto accumulate = [&](int at, int count) __attribute__((always_inline)) {
    Vector x_lanes[kRows][Step::kParts];
    for (int i = 0; i < kRows; ++i) Step::load(x + i * x_stride + at, count, x_lanes[i]);
    for (int j = 0; j < kTileColumns; ++j) {
      Vector w_lanes[Step::kParts];
      Step::load(w[j] + at, count, w_lanes);
      // The columns after these: a processor fetches ahead inside a page only, and a column of
      // bfloat16 often is one.
      if constexpr (kRows == 1 && Step::kParts == 2)
        __builtin_prefetch(w[j] + at + std::int64_t{kTileColumns} * k);
      for (int part = 0; part < Step::kParts; ++part) {
        for (int i = 0; i < kRows; ++i) {
          sums[i][j] = Simd::fma(x_lanes[i][part], w_lanes[part], sums[i][j]);
        }
      }
    }
  };
  int at = 0;
  for (; at + Step::kSize <= k; at += Step::kSize) accumulate(at, Step::kSize);
  if (at < k) accumulate(at, k - at);
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
