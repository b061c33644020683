// Numbers as whole numbers of 16 bits times a scale of their row, with AVX-512 VNNI.
//
// VPDPWSSD multiplies twice as many numbers in a cycle as float32's multiply-add. So 64 numbers at a time that
// share a scale become whole numbers: the largest becomes `max`, and the sums of their products are exact in 32 bits.
// What is lost is at most half a unit of such a number: 2^-14 of the largest for 8191, 2^-13 for 4095, while
// bfloat16 itself keeps 2^-9 of each number.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/multiply_tile.h"

namespace gapless::cpu {

// Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
struct WholeNumbers {
  static constexpr int kLanes = 16, kGroup = 2 * kLanes;
  // Smaller numbers become 0: the factor would overflow.
  static constexpr float kSmallest = 0x1p-100f;

  // The largest size of `count` numbers; not a number if one of them is not.
  [[gnu::always_inline]] static float largest(const Bf16* from, int count) {
    __m512i most = _mm512_setzero_si512();
    const __m512i size = _mm512_set1_epi16(0x7fff);
    for (int k = 0; k < count; k += kGroup) {
      const __m512i pairs = _mm512_castps_si512(load_pairs<Simd>(from + k, count - k));
      most = _mm512_max_epu16(most, _mm512_and_si512(pairs, size));
    }
    const std::uint32_t bits = _mm512_reduce_max_epu32(larger_half(most));
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
  }

  // Of numbers of up to `most`, so that they become whole numbers of up to `max`.
  [[gnu::always_inline]] static float factor_of(float most, float max) {
    return most > kSmallest ? max / most : 0;
  }

  // Pairs of bfloat16 to pairs of whole numbers of 16 bits.
  [[gnu::always_inline]] static __m512i to_whole(__m512 pairs, __m512 factor) {
    return join(_mm512_cvtps_epi32(_mm512_mul_ps(Simd::even(pairs), factor)),
                _mm512_cvtps_epi32(_mm512_mul_ps(Simd::odd(pairs), factor)));
  }
  // In each lane a pair: the lower halves of both.
  [[gnu::always_inline]] static __m512i join(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, even, _mm512_slli_epi32(odd, 16));
  }

  // A row of `count` numbers; `to` has room for the next multiple of kGroup. Returns the scale.
  [[gnu::always_inline]] static float pack_row(const Bf16* from, int count, float max,
                                               std::int32_t* to) {
    const float most = largest(from, count);
    const __m512 factor = _mm512_set1_ps(factor_of(most, max));
    for (int at = 0; at < count; at += kGroup) {
      _mm512_storeu_si512(to + at / 2, to_whole(load_pairs<Simd>(from + at, count - at), factor));
    }
    return most * (1 / max);
  }

  // Sixteen columns side by side: pairs of bfloat16 first, then, their largest sizes being known, whole numbers. to[pair *
  // stride + j] is a pair of column j, for the next multiple of kGroup numbers.
  [[gnu::always_inline]] static void pack_columns(const Bf16* const (&columns)[kLanes], int count,
                                                  float max, std::int32_t* to, int stride,
                                                  float* scales) {
    __m512i most = _mm512_setzero_si512();
    const __m512i size = _mm512_set1_epi16(0x7fff);
    int num_pairs = 0;
    for (; 2 * num_pairs < count; num_pairs += kLanes) {
      __m512 v[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        v[j] = load_pairs<Simd>(columns[j] + 2 * num_pairs, count - 2 * num_pairs);
      }
      Simd::transpose(v);
      for (int i = 0; i < kLanes; ++i) {
        const __m512i pairs = _mm512_castps_si512(v[i]);
        most = _mm512_max_epu16(most, _mm512_and_si512(pairs, size));
        _mm512_store_si512(to + (num_pairs + i) * stride, pairs);
      }
    }
    const __m512 largest = _mm512_castsi512_ps(larger_half(most));
    const __mmask16 counts = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(kSmallest), _CMP_GT_OQ);
    const __m512 factor = _mm512_maskz_div_ps(counts, _mm512_set1_ps(max), largest);
    _mm512_store_ps(scales, _mm512_mul_ps(largest, _mm512_set1_ps(1 / max)));
    for (int pair = 0; pair < num_pairs; ++pair) {
      std::int32_t* at = to + pair * stride;
      _mm512_store_si512(at, to_whole(_mm512_castsi512_ps(_mm512_load_si512(at)), factor));
    }
  }

  // For each lane: sum + a0 b0 + a1 b1. Not by the intrinsic, whose sums gcc 12 copies and spills: that
  // takes twice the time.
  [[gnu::always_inline]] static __m512i plus_products(__m512i sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }

  // sums[i][v] = row i times the columns of vector v: x[i * kXStride + pair] and w[pair * w_stride + v * kLanes].
  template <int kRows, int kVectors, int kXStride>
  [[gnu::always_inline]] static void multiply(const std::int32_t* x, const std::int32_t* w,
                                              int w_stride, int num_pairs,
                                              __m512i (&sums)[kRows][kVectors]) {
    for (auto& row : sums) {
      for (__m512i& sum : row) sum = _mm512_setzero_si512();
    }
    for (int pair = 0; pair < num_pairs; ++pair) {
      __m512i columns[kVectors];
      for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_load_si512(w + v * kLanes);
      for (int i = 0; i < kRows; ++i) {
        const __m512i numbers = _mm512_set1_epi32(x[i * kXStride]);
        for (int v = 0; v < kVectors; ++v) {
          sums[i][v] = plus_products(sums[i][v], numbers, columns[v]);
        }
      }
      ++x;
      w += w_stride;
    }
  }

 private:
  // Of two sizes of bfloat16 in each lane the larger, as float32.
  [[gnu::always_inline]] static __m512i larger_half(__m512i sizes) {
    return _mm512_max_epu32(_mm512_slli_epi32(sizes, 16),
                            _mm512_and_si512(sizes, _mm512_set1_epi32(-0x10000)));
  }
};

}  // namespace gapless::cpu
