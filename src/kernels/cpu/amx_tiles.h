// The eight tile registers of AMX, 16 rows of 64 bytes each, and their products of bfloat16.
//
// TDPBF16PS adds to each number of a tile of float32 a chain of products in rising order of k, whatever the tile's other rows
// and columns are: so a row's bits do not depend on its batch. Numbers below 2^-126 count as 0.
#pragma once

#include <cstdint>

#include "kernels/cpu/multiply_tile.h"

namespace gapless::cpu {

inline constexpr int kAmxRows = 16;
inline constexpr int kAmxStep = 32;                      // numbers of bfloat16 in a row of a tile
inline constexpr int kAmxNumbers = kAmxRows * kAmxStep;  // in a tile

// While one lives, its thread can use the tiles. Assembly, since gcc 12's intrinsics do not say that they read and write memory.
class AmxTiles {
 public:
  [[gnu::always_inline]] AmxTiles() {
    struct Shape {
      std::uint8_t palette = 1, reserved[15] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Shape) == 64);
    const Shape shape;
    asm volatile("ldtilecfg %0" ::"m"(shape));
  }
  [[gnu::always_inline]] ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  [[gnu::always_inline]] static void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  // Rows are `stride` bytes apart.
  template <int kTile>
  [[gnu::always_inline]] static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  // sums[i][j] += rows[i][2 p] columns[p][2 j] + rows[i][2 p + 1] columns[p][2 j + 1] over the pairs p.
  template <int kSums, int kRows, int kColumns>
  [[gnu::always_inline]] static void add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kRows), "i"(kColumns));
  }
  // Where another thread shares the core, loads and products of tiles that follow each other at once take half as long again as with
  // this between them; elsewhere it costs nothing (docs/cpu.md).
  [[gnu::always_inline]] static void space() { asm volatile(".rept 16\n\tnop\n\t.endr"); }
};

// A tile of sixteen columns of up to 32 numbers: pairs along k, columns in the lanes. What is missing is 0.
template <typename Simd>
[[gnu::always_inline]] inline void pack_amx_columns(const Bf16* const (&columns)[kAmxRows], int at,
                                                    int count, void* to) {
  static_assert(Simd::kLanes == kAmxRows);
  typename Simd::Vector v[kAmxRows];
  for (int j = 0; j < kAmxRows; ++j) v[j] = load_pairs<Simd>(columns[j] + at, count);
  Simd::transpose(v);
  for (int i = 0; i < kAmxRows; ++i) Simd::store(static_cast<float*>(to) + i * kAmxRows, v[i]);
}

// Up to 32 numbers, as a row of a tile has them.
template <typename Simd>
[[gnu::always_inline]] inline void copy_amx_row(const Bf16* from, int count, Bf16* to) {
  Simd::store(reinterpret_cast<float*>(to), load_pairs<Simd>(from, count));
}

}  // namespace gapless::cpu
