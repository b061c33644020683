// Packed products of bfloat16 in 16-bit whole numbers, with AVX-512 VNNI.
//
// VPDPWSSD multiplies twice as many numbers in a cycle as float32's multiply-add; VDPBF16PS, on the
// processors that this was measured on, half as many (bench/results/cpu-16bit.json). So each row of
// weights and of activations becomes, kStep numbers at a time, whole numbers times a scale of its own:
// the largest becomes kWeightMax or kRowMax. The sums of a step are exact in 32 bits, and are added up in
// float32. What is lost is at most half a unit of such a number: 2^-14 of the largest of its step for a
// row, 2^-13 for weights, while bfloat16 itself keeps 2^-9 of each number.
//
// Scales depend on a row or column alone and whole sums on no order, so bits do not depend on the batch.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"

namespace gapless::cpu {

// Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class WholeNumberLinear {
 public:
  static constexpr int kMaxRows = 384, kMaxColumns = 192;

  // At most kMaxRows rows and kMaxColumns columns.
  WholeNumberLinear(const LinearParams& params, const LinearBlock& block)
      : p_(params),
        row_(block.row_begin),
        num_rows_(static_cast<int>(block.row_end - block.row_begin)),
        column_(block.column_begin),
        num_columns_(block.column_end - block.column_begin) {}

  void run() {
    __builtin_memset(sums_, 0, static_cast<std::size_t>(num_rows_) * sizeof(sums_[0]));
    for (int k = 0; k < p_.weights.in; k += kStep) {
      const int count = p_.weights.in - k < kStep ? p_.weights.in - k : kStep;
      load_rows(k, count);
      for (int at = 0; at < num_columns_; at += kGroup) {
        load_columns(at, k, count);
        for (int i = 0; i < num_rows_; i += kTileRows) {
          const int left = num_rows_ - i;
          with_count<kTileRows>(left < kTileRows ? left : kTileRows,
                                [&]<int kRows>() { multiply<kRows>(i, at, (count + 1) / 2); });
        }
      }
    }
    finish_linear_rows<Simd, Bf16>(p_, sums_[0], kMaxColumns, row_, num_rows_, column_,
                                   num_columns_);
  }

 private:
  static constexpr int kStep = 64;
  static constexpr float kRowMax = 8191, kWeightMax = 4095;
  static_assert(kStep * 8191ll * 4095 <= 0x7fffffff, "a step's sums are exact");
  static constexpr float kSmallest =
      0x1p-100f;  // smaller numbers become 0: the factor would overflow
  static constexpr int kLanes = 16, kGroup = 2 * kLanes, kTileRows = 12;
  static constexpr int kPairs = kStep / 2, kXStride = kPairs + 16;

  // The largest size of `count` numbers; not a number if one of them is not.
  [[gnu::always_inline]] static float largest(const Bf16* from, int count) {
    __m512i most = _mm512_setzero_si512();
    const __m512i size = _mm512_set1_epi16(0x7fff);
    for (int k = 0; k < count; k += kGroup) {
      const __m512i pairs = _mm512_castps_si512(load_pairs<Simd>(from + k, count - k));
      most = _mm512_max_epu16(most, _mm512_and_si512(pairs, size));
    }
    const __m512i even = _mm512_slli_epi32(most, 16);
    const __m512i odd = _mm512_and_si512(most, _mm512_set1_epi32(-0x10000));
    return bits_to_float(_mm512_reduce_max_epu32(_mm512_max_epu32(even, odd)));
  }
  [[gnu::always_inline]] static float bits_to_float(std::uint32_t bits) {
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
    const __m512i even = _mm512_cvtps_epi32(_mm512_mul_ps(Simd::even(pairs), factor));
    const __m512i odd = _mm512_cvtps_epi32(_mm512_mul_ps(Simd::odd(pairs), factor));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, even, _mm512_slli_epi32(odd, 16));
  }

  void load_rows(int k, int count) {
    for (int i = 0; i < num_rows_; ++i) {
      const Bf16* x = static_cast<const Bf16*>(p_.x) + (row_ + i) * p_.x_stride + k;
      const float most = largest(x, count);
      const __m512 factor = _mm512_set1_ps(factor_of(most, kRowMax));
      for (int at = 0; at < count; at += kGroup) {
        _mm512_storeu_si512(x_[i] + at / 2, to_whole(load_pairs<Simd>(x + at, count - at), factor));
      }
      x_scales_[i] = most * (1 / kRowMax);
    }
  }

  void load_columns(int first, int k, int count) {
    const Bf16* weight =
        static_cast<const Bf16*>(p_.weights.weight) + std::int64_t{column_} * p_.weights.in + k;
    for (int half = 0; half < 2; ++half) {
      const Bf16* columns[kLanes];
      find_columns(weight, p_.weights.in, num_columns_, first + half * kLanes, columns);
      pack_columns(columns, count, half);
    }
  }

  // Sixteen columns: pairs of bfloat16 first, then, their largest sizes being known, whole numbers.
  [[gnu::always_inline]] void pack_columns(const Bf16* const (&columns)[kLanes], int count,
                                           int half) {
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
        _mm512_store_si512(w_[num_pairs + i] + half * kLanes, pairs);
      }
    }
    const __m512i even = _mm512_slli_epi32(most, 16);
    const __m512i odd = _mm512_and_si512(most, _mm512_set1_epi32(-0x10000));
    const __m512 largest = _mm512_castsi512_ps(_mm512_max_epu32(even, odd));
    const __mmask16 counts = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(kSmallest), _CMP_GT_OQ);
    const __m512 factor = _mm512_maskz_div_ps(counts, _mm512_set1_ps(kWeightMax), largest);
    _mm512_store_ps(w_scales_ + half * kLanes,
                    _mm512_mul_ps(largest, _mm512_set1_ps(1 / kWeightMax)));
    for (int pair = 0; pair < num_pairs; ++pair) {
      std::int32_t* at = w_[pair] + half * kLanes;
      _mm512_store_si512(at, to_whole(_mm512_castsi512_ps(_mm512_load_si512(at)), factor));
    }
  }

  // For each lane: sum + a0 b0 + a1 b1. Not by the intrinsic, whose sums gcc 12 copies and spills: that
  // takes twice the time.
  [[gnu::always_inline]] static __m512i plus_products(__m512i sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }

  // Rows from `row` on and the group of columns at `at`: this step's sums.
  template <int kRows>
  [[gnu::always_inline]] void multiply(int row, int at, int num_pairs) {
    __m512i sums[kRows][2];
    for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
    const std::int32_t* x = x_[row];
    const std::int32_t* w = w_[0];
    for (int pair = 0; pair < num_pairs; ++pair) {
      const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + kLanes);
      for (int i = 0; i < kRows; ++i) {
        const __m512i numbers = _mm512_set1_epi32(x[i * kXStride]);
        sums[i][0] = plus_products(sums[i][0], numbers, w0);
        sums[i][1] = plus_products(sums[i][1], numbers, w1);
      }
      ++x;
      w += kGroup;
    }
    for (int i = 0; i < kRows; ++i) {
      const __m512 x_scale = _mm512_set1_ps(x_scales_[row + i]);
      for (int v = 0; v < 2; ++v) {
        float* to = sums_[row + i] + at + v * kLanes;
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][v]), x_scale);
        const __m512 scale = _mm512_load_ps(w_scales_ + v * kLanes);
        _mm512_storeu_ps(to, _mm512_fmadd_ps(scaled, scale, _mm512_loadu_ps(to)));
      }
    }
  }

  const LinearParams& p_;
  const std::int64_t row_;
  const int num_rows_, column_, num_columns_;
  alignas(64) std::int32_t w_[kPairs][kGroup];  // pairs along k; columns in the lanes
  alignas(64) float w_scales_[kGroup];
  alignas(64) std::int32_t x_[kMaxRows][kXStride];  // pairs
  float x_scales_[kMaxRows];
  alignas(64) float sums_[kMaxRows][kMaxColumns];
};

}  // namespace gapless::cpu
