// Products of bfloat16 with AMX: the tiles of panel_linear.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/kernels.h"

namespace gapless::cpu {

// 32 rows by 32 columns: four tiles of sums. Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class AmxLinearTiles {
 public:
  static constexpr int kRows = 2 * kAmxRows, kColumns = 2 * kAmxRows, kStep = kAmxStep;
  static constexpr int kMaxChunk = 608;       // 32 rows of it are most of the first-level cache
  static constexpr int kMaxPacked = 331'776;  // 648 KiB

  static bool takes(const LinearParams&) { return true; }

  void pack_columns(const Bf16* const (&columns)[kColumns], int group, int count) {
    Bf16* to = columns_of(group, count);
    for (int half = 0; half < 2; ++half) {
      const Bf16* sixteen[kAmxRows];
      for (int j = 0; j < kAmxRows; ++j) sixteen[j] = columns[half * kAmxRows + j];
      for (int at = 0; at < count; at += kAmxStep) {
        pack_amx_columns<Simd>(sixteen, at, smaller(kAmxStep, count - at), to);
        to += kAmxNumbers;
      }
    }
  }

  // Those past the end repeat the last one.
  void pack_rows(const Bf16* x, std::int64_t stride, int num_rows, int count) {
    for (int i = 0; i < kRows; ++i) {
      const Bf16* from = x + smaller(i, num_rows - 1) * stride;
      Bf16* to = rows_ + i * kAmxStep;
      for (int at = 0; at < count; at += kAmxStep) {
        copy_amx_row<Simd>(from + at, smaller(kAmxStep, count - at), to);
        to += 2 * kAmxNumbers;
      }
    }
  }

  // sums = the sums of this chunk, or += them.
  void multiply(int, int group, int count, bool is_first, float* sums, std::int64_t stride) const {
    constexpr std::int64_t kRow = kAmxStep * sizeof(Bf16);
    const std::int64_t sum_row = stride * static_cast<int>(sizeof(float));
    float* const right = sums + kAmxRows;
    float *const lower = sums + kAmxRows * stride, *const lower_right = lower + kAmxRows;
    if (is_first) {
      AmxTiles::clear<0>(), AmxTiles::clear<1>(), AmxTiles::clear<2>(), AmxTiles::clear<3>();
    } else {
      AmxTiles::load<0>(sums, sum_row), AmxTiles::load<1>(right, sum_row);
      AmxTiles::load<2>(lower, sum_row), AmxTiles::load<3>(lower_right, sum_row);
    }
    const int num_tiles = tiles_of(count);
    const Bf16* rows = rows_;
    const Bf16* columns = columns_of(group, count);
    const Bf16* more_columns = columns + std::int64_t{num_tiles} * kAmxNumbers;
    for (int tile = 0; tile < num_tiles; ++tile) {
      AmxTiles::load<4>(rows, kRow), AmxTiles::load<6>(columns, kRow);
      AmxTiles::add_products<0, 4, 6>();
      AmxTiles::load<7>(more_columns, kRow);
      AmxTiles::add_products<1, 4, 7>();
      AmxTiles::load<5>(rows + kAmxNumbers, kRow);
      AmxTiles::add_products<2, 5, 6>();
      AmxTiles::add_products<3, 5, 7>();
      rows += 2 * kAmxNumbers, columns += kAmxNumbers, more_columns += kAmxNumbers;
    }
    AmxTiles::store<0>(sums, sum_row), AmxTiles::store<1>(right, sum_row);
    AmxTiles::store<2>(lower, sum_row), AmxTiles::store<3>(lower_right, sum_row);
  }

 private:
  static constexpr int smaller(int a, int b) { return a < b ? a : b; }
  static constexpr int tiles_of(int count) { return (count + kAmxStep - 1) / kAmxStep; }

  // [group][half][tiles along k].
  Bf16* columns_of(int group, int count) {
    return columns_ + std::int64_t{2} * group * tiles_of(count) * kAmxNumbers;
  }
  const Bf16* columns_of(int group, int count) const {
    return const_cast<AmxLinearTiles*>(this)->columns_of(group, count);
  }

  const AmxTiles tiles_;
  alignas(64) Bf16 rows_[kRows * kMaxChunk];  // [tiles along k][32]
  alignas(64) Bf16 columns_[kMaxPacked];
};

}  // namespace gapless::cpu
