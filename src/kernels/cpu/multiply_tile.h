// A small tile of a matrix product whose right side is packed: its columns lie in the lanes.
//
// Each output is one chain of fused multiply-adds along k, in rising order. So its bits depend on its
// row and column alone, whatever tile, pack or launch it is computed in (row invariance, kernels.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/element.h"

namespace gapless::cpu {

// c[i * c_stride + j] += a[i * kAStride + k] * b[k * b_stride + j] for kRows rows and kVectors vectors of
// columns, over k in [0, count).
template <typename Simd, int kRows, int kVectors, int kAStride>
[[gnu::always_inline]] inline void multiply_tile(const float* a, const float* b,
                                                 std::int64_t b_stride, int count, float* c,
                                                 std::int64_t c_stride) {
  using Vector = typename Simd::Vector;
  Vector sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = Simd::load(c + i * c_stride + v * Simd::kLanes);
    }
  }
  for (int k = 0; k < count; ++k) {
    Vector columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = Simd::load(b + v * Simd::kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vector x = Simd::broadcast(a[i * kAStride]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Simd::fma(x, columns[v], sums[i][v]);
    }
    ++a;
    b += b_stride;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      Simd::store(c + i * c_stride + v * Simd::kLanes, sums[i][v]);
    }
  }
}

// Packs rows into columns: to[k * to_stride + j] = element k of rows[j], as float32, for Simd::kLanes
// rows and k in [0, count). Writes up to the next multiple of 2 * Simd::kLanes rows of `to`.
template <typename Simd>
[[gnu::always_inline]] inline void pack_columns(const float* const (&rows)[Simd::kLanes], int count,
                                                float* to, std::int64_t to_stride) {
  for (int k = 0; k < count; k += Simd::kLanes) {
    typename Simd::Vector v[Simd::kLanes];
    const int left = count - k;
    for (int j = 0; j < Simd::kLanes; ++j) {
      v[j] = left >= Simd::kLanes ? Simd::load(rows[j] + k) : Simd::load_first(rows[j] + k, left);
    }
    Simd::transpose(v);
    for (int i = 0; i < Simd::kLanes; ++i) Simd::store(to + (k + i) * to_stride, v[i]);
  }
}

// 2 * Simd::kLanes numbers as the lanes' pairs (Simd::even, Simd::odd); those from `count` on are 0.
template <typename Simd>
[[gnu::always_inline]] inline typename Simd::Vector load_pairs(const Bf16* from, int count) {
  // The loads of simd_*.h may alias anything.
  if (count >= 2 * Simd::kLanes) return Simd::load(reinterpret_cast<const float*>(from));
  if constexpr (requires { Simd::load_first_pairs(from, count); }) {
    return Simd::load_first_pairs(from, count);
  }
  Bf16 lanes[2 * Simd::kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = from[i];
  return Simd::load(reinterpret_cast<const float*>(lanes));
}

template <typename Simd>
[[gnu::always_inline]] inline void pack_columns(const Bf16* const (&rows)[Simd::kLanes], int count,
                                                float* to, std::int64_t to_stride) {
  for (int k = 0; k < count; k += 2 * Simd::kLanes) {
    typename Simd::Vector v[Simd::kLanes];
    for (int j = 0; j < Simd::kLanes; ++j) v[j] = load_pairs<Simd>(rows[j] + k, count - k);
    Simd::transpose(v);
    for (int i = 0; i < Simd::kLanes; ++i) {
      Simd::store(to + (k + 2 * i) * to_stride, Simd::even(v[i]));
      Simd::store(to + (k + 2 * i + 1) * to_stride, Simd::odd(v[i]));
    }
  }
}

}  // namespace gapless::cpu
