// Products of bfloat16 in 16-bit whole numbers: the tiles of panel_linear.h.
//
// Each row of weights and of activations becomes, kStep numbers at a time, whole numbers times a scale of its own
// (whole_numbers.h); the sums of a step are added up in float32.
//
// Scales depend on a row or column alone and whole sums on no order, so bits do not depend on the batch.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/whole_numbers.h"
#include "kernels/kernels.h"

namespace gapless::cpu {

// Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class WholeNumberLinearTiles {
 public:
  static constexpr int kRows = 12, kColumns = 2 * Simd::kLanes, kStep = 96;
  static constexpr int kMaxChunk = 1152;
  static constexpr int kMaxPacked = 331'776;  // 648 KiB

  // Numbers of 8-bit floating point have too many sizes for whole numbers: their products are exact.
  static bool takes(const LinearParams& params) { return params.x_scales == nullptr; }

  void pack_columns(const Bf16* const (&columns)[kColumns], int group, int count) {
    for (int half = 0; half < 2; ++half) {
      const Bf16* sixteen[kLanes];
      for (int j = 0; j < kLanes; ++j) sixteen[j] = columns[half * kLanes + j];
      for (int at = 0; at < count; at += kStep) {
        const int step = steps_of(count) * group + at / kStep;
        Numbers::pack_columns(sixteen, smaller(kStep, count - at), kWeightMax,
                              columns_[step][0] + half * kLanes, kColumns,
                              column_scales_[step] + half * kLanes);
        for (auto& column : sixteen) column += kStep;
      }
    }
  }

  void pack_rows(const Bf16* x, std::int64_t stride, int num_rows, int count) {
    for (int i = 0; i < num_rows; ++i) {
      for (int at = 0; at < count; at += kStep) {
        row_scales_[at / kStep][i] = Numbers::pack_row(
            x + i * stride + at, smaller(kStep, count - at), kRowMax, rows_[i] + at / 2);
      }
    }
  }

  // sums = the sums of this chunk, or += them.
  void multiply(int num_rows, int group, int count, bool is_first, float* sums,
                std::int64_t stride) const {
    with_count<kRows>(num_rows, [&]<int kCount>() {
      int step = steps_of(count) * group;
      for (int at = 0; at < count; at += kStep, ++step) {
        const int num_pairs = (smaller(kStep, count - at) + 1) / 2;
        if (is_first && at == 0) {
          multiply_step<kCount, true>(at, step, num_pairs, sums, stride);
        } else {
          multiply_step<kCount, false>(at, step, num_pairs, sums, stride);
        }
      }
    });
  }

 private:
  using Numbers = WholeNumbers<Simd>;
  static constexpr float kRowMax = 8191, kWeightMax = 2730;
  static_assert(kStep * 8191ll * 2730 <= 0x7fffffff, "a step's sums are exact");
  static constexpr int kLanes = Numbers::kLanes;
  static constexpr int kRowStride = kMaxChunk / 2 + 16;  // rows do not meet in the same cache sets

  static constexpr int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr int steps_of(int count) { return (count + kStep - 1) / kStep; }

  template <int kCount, bool kIsFirst>
  [[gnu::always_inline]] void multiply_step(int at, int step, int num_pairs, float* to,
                                            std::int64_t stride) const {
    __m512i sums[kCount][2];
    Numbers::template multiply<kCount, 2, kRowStride>(rows_[0] + at / 2, columns_[step][0],
                                                      kColumns, num_pairs, sums);
    for (int i = 0; i < kCount; ++i) {
      const __m512 row_scale = _mm512_set1_ps(row_scales_[at / kStep][i]);
      for (int v = 0; v < 2; ++v) {
        float* const sum = to + i * stride + v * kLanes;
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][v]), row_scale);
        const __m512 scale = _mm512_load_ps(column_scales_[step] + v * kLanes);
        const __m512 so_far = kIsFirst ? _mm512_setzero_ps() : _mm512_load_ps(sum);
        _mm512_store_ps(sum, _mm512_fmadd_ps(scaled, scale, so_far));
      }
    }
  }

  alignas(64) float row_scales_[kMaxChunk / kStep][kRows];
  alignas(64) std::int32_t rows_[kRows][kRowStride];  // pairs
  // [group][step along k], pairs along k; columns in the lanes.
  alignas(64) std::int32_t columns_[kMaxPacked / kStep / kColumns][kStep / 2][kColumns];
  alignas(64) float column_scales_[kMaxPacked / kStep / kColumns][kColumns];
};

}  // namespace gapless::cpu
