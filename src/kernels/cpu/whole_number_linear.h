// Products of bfloat16 in 16-bit whole numbers: the tiles of panel_linear.h.
//
// Each row of weights and of activations becomes, kStep numbers at a time, whole numbers times a scale of its own
// (whole_numbers.h); the sums of a step are added up in float32.
//
// Scales depend on a row or column alone and whole sums on no order, so bits do not depend on the batch.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/linear_kernel.h"
#include "kernels/cpu/whole_numbers.h"
#include "kernels/kernels.h"

namespace gapless::cpu {

// Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class WholeNumberLinearTiles {
 public:
  static constexpr int kRows = 12, kColumns = 2 * Simd::kLanes, kStep = 96;
  static constexpr int kMaxSteps = 24;
  struct RowStep {
    alignas(64) std::int32_t pairs[kRows][kStep / 2];
    float scales[kRows];
  };
  struct ColumnStep {
    alignas(64) std::int32_t pairs[kStep / 2][kColumns];
    float scales[kColumns];
  };

  // Numbers of 8-bit floating point have too many sizes for whole numbers: their products are exact.
  static bool takes(const LinearParams& params) { return params.x_scales == nullptr; }

  static void pack_columns(const Bf16* const (&columns)[kColumns], int in, ColumnStep* to) {
    if (in % kStep != 0) to[in / kStep] = {};
    for (int half = 0; half < 2; ++half) {
      const Bf16* sixteen[kLanes];
      for (int j = 0; j < kLanes; ++j) sixteen[j] = columns[half * kLanes + j];
      for (int at = 0; at < in; at += kStep) {
        ColumnStep& step = to[at / kStep];
        Numbers::pack_columns(sixteen, smaller(kStep, in - at), kWeightMax,
                              step.pairs[0] + half * kLanes, kColumns, step.scales + half * kLanes);
        for (auto& column : sixteen) column += kStep;
      }
    }
  }

  static void pack_rows(const Bf16* x, std::int64_t stride, int num_rows, int in, RowStep* to) {
    if (in % kStep != 0) to[in / kStep] = {};
    for (int i = 0; i < num_rows; ++i) {
      for (int at = 0; at < in; at += kStep) {
        RowStep& step = to[at / kStep];
        step.scales[i] =
            Numbers::pack_row(x + i * stride + at, smaller(kStep, in - at), kRowMax, step.pairs[i]);
      }
    }
  }

  // sums = the sums of these steps, or += them. Past the end of k both sides are 0.
  void multiply(const RowStep* rows, const ColumnStep* columns, int num_rows, int num_steps,
                bool is_first, const NextRows&, float* sums) const {
    with_count<kRows>(num_rows, [&]<int kCount>() {
      multiply_step<kCount>(rows[0], columns[0], is_first, sums);
      for (int step = 1; step < num_steps; ++step) {
        multiply_step<kCount>(rows[step], columns[step], false, sums);
      }
    });
  }

 private:
  using Numbers = WholeNumbers<Simd>;
  static constexpr float kRowMax = 8191, kWeightMax = 2730;
  static_assert(kStep * 8191ll * 2730 <= 0x7fffffff, "a step's sums are exact");
  static constexpr int kLanes = Numbers::kLanes;

  static constexpr int smaller(int a, int b) { return a < b ? a : b; }

  template <int kCount>
  [[gnu::always_inline]] static void multiply_step(const RowStep& rows, const ColumnStep& columns,
                                                   bool is_first, float* to) {
    __m512i sums[kCount][2];
    Numbers::template multiply<kCount, 2, kStep / 2>(rows.pairs[0], columns.pairs[0], kColumns,
                                                     kStep / 2, sums);
    const __m512 scales[2] = {_mm512_load_ps(columns.scales),
                              _mm512_load_ps(columns.scales + kLanes)};
    for (int i = 0; i < kCount; ++i) {
      const __m512 row_scale = _mm512_set1_ps(rows.scales[i]);
      for (int v = 0; v < 2; ++v) {
        float* const sum = to + i * kColumns + v * kLanes;
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][v]), row_scale);
        const __m512 so_far = is_first ? _mm512_setzero_ps() : _mm512_load_ps(sum);
        _mm512_store_ps(sum, _mm512_fmadd_ps(scaled, scales[v], so_far));
      }
    }
    asm volatile(
        "" ::
            : "memory");  // gcc 12 would keep the sums of two steps in registers, and spill
  }
};

}  // namespace gapless::cpu
