// Products of bfloat16 with AMX: the tiles of panel_linear.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear_kernel.h"
#include "kernels/kernels.h"

namespace gapless::cpu {

// 32 rows by 32 columns: four tiles of sums. Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class AmxLinearTiles {
 public:
  static constexpr int kRows = 2 * kAmxRows, kColumns = 2 * kAmxRows, kStep = kAmxStep;
  static constexpr int kMaxSteps = 72;  // 144 KiB of rows
  struct RowStep {
    alignas(64) Bf16 numbers[2][kAmxNumbers];
  };
  using ColumnStep = RowStep;

  static bool takes(const LinearParams&) { return true; }

  static void pack_columns(const Bf16* const (&columns)[kColumns], int in, ColumnStep* to) {
    for (int half = 0; half < 2; ++half) {
      const Bf16* sixteen[kAmxRows];
      for (int j = 0; j < kAmxRows; ++j) sixteen[j] = columns[half * kAmxRows + j];
      for (int at = 0; at < in; at += kStep) {
        pack_amx_columns<Simd>(sixteen, at, in - at < kStep ? in - at : kStep,
                               to[at / kStep].numbers[half]);
      }
    }
  }

  // Those past the end repeat the last one.
  static void pack_rows(const Bf16* x, std::int64_t stride, int num_rows, int in, RowStep* to) {
    for (int i = 0; i < kRows; ++i) {
      const Bf16* from = x + (i < num_rows ? i : num_rows - 1) * stride;
      for (int at = 0; at < in; at += kStep) {
        copy_amx_row<Simd>(from + at, in - at < kStep ? in - at : kStep,
                           to[at / kStep].numbers[0] + i * kAmxStep);
      }
    }
  }

  // sums = the sums of these steps, or += them.
  void multiply(const RowStep* rows, const ColumnStep* columns, int, int num_steps, bool is_first,
                const NextRows& next, float* sums) const {
    constexpr std::int64_t kRowBytes = kAmxStep * sizeof(Bf16);
    constexpr std::int64_t kSumBytes = kColumns * sizeof(float);
    float* const right = sums + kAmxRows;
    float *const lower = sums + kAmxRows * kColumns, *const lower_right = lower + kAmxRows;
    if (is_first) {
      AmxTiles::clear<0>(), AmxTiles::clear<1>(), AmxTiles::clear<2>(), AmxTiles::clear<3>();
    } else {
      AmxTiles::load<0>(sums, kSumBytes), AmxTiles::load<1>(right, kSumBytes);
      AmxTiles::load<2>(lower, kSumBytes), AmxTiles::load<3>(lower_right, kSumBytes);
    }
    for (int step = 0; step < num_steps; ++step) {
      for (int i = 0; i < next.count; ++i) {
        __builtin_prefetch(next.rows + i * next.stride + step * kStep, 0, 2);
      }
      AmxTiles::load<4>(rows[step].numbers[0], kRowBytes), AmxTiles::space();
      AmxTiles::load<6>(columns[step].numbers[0], kRowBytes), AmxTiles::space();
      AmxTiles::add_products<0, 4, 6>(), AmxTiles::space();
      AmxTiles::load<7>(columns[step].numbers[1], kRowBytes), AmxTiles::space();
      AmxTiles::add_products<1, 4, 7>(), AmxTiles::space();
      AmxTiles::load<5>(rows[step].numbers[1], kRowBytes), AmxTiles::space();
      AmxTiles::add_products<2, 5, 6>(), AmxTiles::space();
      AmxTiles::add_products<3, 5, 7>(), AmxTiles::space();
    }
    AmxTiles::store<0>(sums, kSumBytes), AmxTiles::store<1>(right, kSumBytes);
    AmxTiles::store<2>(lower, kSumBytes), AmxTiles::store<3>(lower_right, kSumBytes);
  }

 private:
  const AmxTiles tiles_;
};

}  // namespace gapless::cpu
