// Packed products of bfloat16 in 16-bit whole numbers.
//
// Each row of weights and of activations becomes, kStep numbers at a time, whole numbers times a scale of its own
// (whole_numbers.h); the sums of a step are added up in float32.
//
// Scales depend on a row or column alone and whole sums on no order, so bits do not depend on the batch.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"
#include "kernels/cpu/whole_numbers.h"

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
  using Numbers = WholeNumbers<Simd>;
  static constexpr int kStep = 64;
  static constexpr float kRowMax = 8191, kWeightMax = 4095;
  static_assert(kStep * 8191ll * 4095 <= 0x7fffffff, "a step's sums are exact");
  static constexpr int kLanes = Numbers::kLanes, kGroup = Numbers::kGroup, kTileRows = 12;
  static constexpr int kPairs = kStep / 2, kXStride = kPairs + 16;

  void load_rows(int k, int count) {
    for (int i = 0; i < num_rows_; ++i) {
      const Bf16* x = static_cast<const Bf16*>(p_.x) + (row_ + i) * p_.x_stride + k;
      x_scales_[i] = Numbers::pack_row(x, count, kRowMax, x_[i]);
    }
  }

  void load_columns(int first, int k, int count) {
    const Bf16* weight =
        static_cast<const Bf16*>(p_.weights.weight) + std::int64_t{column_} * p_.weights.in + k;
    for (int half = 0; half < 2; ++half) {
      const Bf16* columns[kLanes];
      find_columns(weight, p_.weights.in, num_columns_, first + half * kLanes, columns);
      Numbers::pack_columns(columns, count, kWeightMax, w_[0] + half * kLanes, kGroup,
                            w_scales_ + half * kLanes);
    }
  }

  // Rows from `row` on and the group of columns at `at`: this step's sums.
  template <int kRows>
  [[gnu::always_inline]] void multiply(int row, int at, int num_pairs) {
    __m512i sums[kRows][2];
    Numbers::template multiply<kRows, 2, kXStride>(x_[row], w_[0], kGroup, num_pairs, sums);
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
