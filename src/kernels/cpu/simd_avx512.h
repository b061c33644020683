// Lanes of float32 with AVX-512. See simd_portable.h for the meaning of the members.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/element.h"

namespace gapless::cpu {

struct Avx512Simd {
  using Vector = __m512;
  static constexpr const char* kName = "avx512";
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 6;
  static constexpr int kPackedRows = 12;

  [[gnu::always_inline]] static Vector zero() { return _mm512_setzero_ps(); }
  [[gnu::always_inline]] static Vector broadcast(float x) { return _mm512_set1_ps(x); }
  [[gnu::always_inline]] static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  [[gnu::always_inline]] static Vector load_first(const float* from, int count) {
    return _mm512_maskz_loadu_ps(first_lanes(count), from);
  }
  [[gnu::always_inline]] static void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
  [[gnu::always_inline]] static void store_first(float* to, Vector v, int count) {
    _mm512_mask_storeu_ps(to, first_lanes(count), v);
  }

  [[gnu::always_inline]] static Vector load(const Bf16* from) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  [[gnu::always_inline]] static Vector load_first(const Bf16* from, int count) {
    return widen(_mm256_maskz_loadu_epi16(first_lanes(count), from));
  }
  [[gnu::always_inline]] static void store(Bf16* to, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(v));
  }
  [[gnu::always_inline]] static void store_first(Bf16* to, Vector v, int count) {
    _mm256_mask_storeu_epi16(to, first_lanes(count), narrow(v));
  }
  [[gnu::always_inline]] static Vector load_first_pairs(const Bf16* from, int count) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16((1u << count) - 1u, from));
  }
  [[gnu::always_inline]] static Vector even(Vector pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
  }
  [[gnu::always_inline]] static Vector odd(Vector pairs) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(-0x10000)));
  }
  [[gnu::always_inline]] static void transpose(Vector (&v)[16]) {
    Vector a[16];
    for (int i = 0; i < 16; i += 2) {  // pairs of rows
      a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // fours
      for (int j = 0; j < 2; ++j) {
        const __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + 2 + j]);
        v[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        v[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    }
    for (int i = 0; i < 4;
         ++i) {  // v[4 g + i]: column i, 4 + i, 8 + i, 12 + i of rows 4 g to 4 g + 3
      const Vector low = _mm512_shuffle_f32x4(v[i], v[4 + i], 0x88);
      const Vector high = _mm512_shuffle_f32x4(v[i], v[4 + i], 0xDD);
      const Vector low2 = _mm512_shuffle_f32x4(v[8 + i], v[12 + i], 0x88);
      const Vector high2 = _mm512_shuffle_f32x4(v[8 + i], v[12 + i], 0xDD);
      a[i] = _mm512_shuffle_f32x4(low, low2, 0x88);
      a[8 + i] = _mm512_shuffle_f32x4(low, low2, 0xDD);
      a[4 + i] = _mm512_shuffle_f32x4(high, high2, 0x88);
      a[12 + i] = _mm512_shuffle_f32x4(high, high2, 0xDD);
    }
    for (int i = 0; i < 16; ++i) v[i] = a[i];
  }

  [[gnu::always_inline]] static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  [[gnu::always_inline]] static Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  [[gnu::always_inline]] static Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  [[gnu::always_inline]] static Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  [[gnu::always_inline]] static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  [[gnu::always_inline]] static Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  [[gnu::always_inline]] static Vector fma(Vector a, Vector b, Vector c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  [[gnu::always_inline]] static Vector times_power_of_two(Vector x, Vector n) {
    return _mm512_scalef_ps(x, n);
  }
  [[gnu::always_inline]] static Vector zero_below(Vector v, Vector x, Vector bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), v);
  }

  [[gnu::always_inline]] static float sum(Vector v) {
    float sums[4];
    store_sums(sums, v, v, v, v);
    return sums[0];
  }
  [[gnu::always_inline]] static float largest(Vector v) { return _mm512_reduce_max_ps(v); }
  [[gnu::always_inline]] static void store_sums(float* to, Vector a, Vector b, Vector c, Vector d) {
    const Vector ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const Vector cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const Vector abcd =
        _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    const __m256 upper = _mm512_castps512_ps256(_mm512_shuffle_f32x4(abcd, abcd, 0xEE));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(abcd), upper);
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }

 private:
  [[gnu::always_inline]] static Vector widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  // To nearest even; NaN stays NaN.
  [[gnu::always_inline]] static __m256i narrow(Vector v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    const __m512i result = _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits,
                                                _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
  }
  [[gnu::always_inline]] static __mmask16 first_lanes(int count) {
    return static_cast<__mmask16>((1u << count) - 1u);
  }
};

}  // namespace gapless::cpu
