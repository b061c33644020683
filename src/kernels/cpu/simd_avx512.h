// Lanes of float32 with AVX-512. See simd_portable.h for the meaning of the members.
#pragma once

#include <immintrin.h>

namespace gapless::cpu {

struct Avx512Simd {
  using Vector = __m512;
  static constexpr const char* kName = "avx512";
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 6;

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
  [[gnu::always_inline]] static __mmask16 first_lanes(int count) {
    return static_cast<__mmask16>((1u << count) - 1u);
  }
};

}  // namespace gapless::cpu
