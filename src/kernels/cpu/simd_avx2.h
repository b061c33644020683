// Lanes of float32 with AVX2 and FMA. See simd_portable.h for the meaning of the members.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/element.h"

namespace gapless::cpu {

struct Avx2Simd {
  using Vector = __m256;
  static constexpr const char* kName = "avx2";
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 3;
  static constexpr int kPackedRows = 6;

  [[gnu::always_inline]] static Vector zero() { return _mm256_setzero_ps(); }
  [[gnu::always_inline]] static Vector broadcast(float x) { return _mm256_set1_ps(x); }
  [[gnu::always_inline]] static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  [[gnu::always_inline]] static Vector load_first(const float* from, int count) {
    return _mm256_maskload_ps(from, first_lanes(count));
  }
  [[gnu::always_inline]] static void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
  [[gnu::always_inline]] static void store_first(float* to, Vector v, int count) {
    _mm256_maskstore_ps(to, first_lanes(count), v);
  }

  [[gnu::always_inline]] static Vector load(const Bf16* from) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  [[gnu::always_inline]] static Vector load_first(const Bf16* from, int count) {
    Bf16 lanes[8] = {};
    for (int i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
  }
  [[gnu::always_inline]] static void store(Bf16* to, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(v));
  }
  [[gnu::always_inline]] static void store_first(Bf16* to, Vector v, int count) {
    Bf16 lanes[8];
    store(lanes, v);
    for (int i = 0; i < count; ++i) to[i] = lanes[i];
  }
  [[gnu::always_inline]] static Vector even(Vector pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
  }
  [[gnu::always_inline]] static Vector odd(Vector pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(-0x10000)));
  }
  [[gnu::always_inline]] static void transpose(Vector (&v)[8]) {
    Vector a[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      for (int j = 0; j < 2; ++j) {
        v[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + 2 + j], 0x44);
        v[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + 2 + j], 0xEE);
      }
    }
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm256_permute2f128_ps(v[i], v[4 + i], 0x20);
      a[4 + i] = _mm256_permute2f128_ps(v[i], v[4 + i], 0x31);
    }
    for (int i = 0; i < 8; ++i) v[i] = a[i];
  }

  [[gnu::always_inline]] static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  [[gnu::always_inline]] static Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  [[gnu::always_inline]] static Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  [[gnu::always_inline]] static Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  [[gnu::always_inline]] static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  [[gnu::always_inline]] static Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  [[gnu::always_inline]] static Vector fma(Vector a, Vector b, Vector c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  [[gnu::always_inline]] static Vector times_power_of_two(Vector x, Vector n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
  }
  [[gnu::always_inline]] static Vector zero_below(Vector v, Vector x, Vector bound) {
    return _mm256_and_ps(v, _mm256_cmp_ps(x, bound, _CMP_GE_OQ));
  }

  [[gnu::always_inline]] static float sum(Vector v) {
    float sums[4];
    store_sums(sums, v, v, v, v);
    return sums[0];
  }
  [[gnu::always_inline]] static float largest(Vector v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
    return _mm_cvtss_f32(m);
  }
  // A transposition on the way: in each half, (a0+a2, b0+b2, a1+a3, b1+b3), then the pairs, then
  // the halves.
  [[gnu::always_inline]] static void store_sums(float* to, Vector a, Vector b, Vector c, Vector d) {
    const Vector ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const Vector cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const Vector abcd =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }

 private:
  [[gnu::always_inline]] static Vector widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  // To nearest even; NaN stays NaN.
  [[gnu::always_inline]] static __m128i narrow(Vector v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i result = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }
  [[gnu::always_inline]] static __m256i first_lanes(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace gapless::cpu
