// Products in 8-bit whole numbers with AVX-512 VNNI (int8_linear.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/int8_linear.h"

namespace gapless::cpu {

// VPDPBUSD: four products of a byte and a signed byte in each of sixteen lanes.
// Simd: a type of the file that is compiled, so that no two files share what they compile.
template <typename Simd>
struct VnniInt8Products {
  static constexpr int kTileRows = 12;

  // Not by the intrinsic, as in whole_numbers.h.
  [[gnu::always_inline]] static __m512i plus_products(__m512i sum, __m512i bytes,
                                                      __m512i signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signed_bytes));
    return sum;
  }

  // Not inlined: gcc 12 keeps the sums in memory otherwise.
  template <int kRows>
  [[gnu::noinline]] static void multiply(const std::uint8_t* x, const std::int8_t* panel,
                                         int num_steps, std::int32_t (&sums)[kRows][kInt8Columns]) {
    __m512i lanes[kRows][2];
    for (auto& row : lanes) row[0] = row[1] = _mm512_setzero_si512();
    const auto* numbers = reinterpret_cast<const std::int32_t*>(x);
    const auto* w = reinterpret_cast<const std::int32_t*>(panel);
    for (int step = 0; step < num_steps; ++step) {
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 16);
      for (int i = 0; i < kRows; ++i) {
        const __m512i four = _mm512_set1_epi32(numbers[i]);
        lanes[i][0] = plus_products(lanes[i][0], four, w0);
        lanes[i][1] = plus_products(lanes[i][1], four, w1);
      }
      numbers += Int8Rows::kTile;
      w += kInt8Columns;
    }
    for (int i = 0; i < kRows; ++i) {
      _mm512_store_si512(sums[i], lanes[i][0]);
      _mm512_store_si512(sums[i] + 16, lanes[i][1]);
    }
  }
};

}  // namespace gapless::cpu
