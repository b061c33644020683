// Lanes of float32 with AVX-512 for elements of bfloat16, whose rounding hides what is saved here: exponentials and quotients
// are right to 1e-5 (Bf16VectorOpsTest.ExpAndGelusAreRightToMoreThanBfloat16Shows).
#pragma once

#include "kernels/cpu/simd_avx512.h"

namespace gapless::cpu {

// 2^x for x in [-126, 127]; 0 for smaller ones, whose powers would be slow to add to anything. Three millionths beside what x itself is rounded by: a polynomial
// of the part behind the point (Remez, relative error), times a power of two.
[[gnu::always_inline]] inline __m512 exp2_of(__m512 x) {
  const __m512 part = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.013534167781472206f);
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.052011460065841675f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.2414427548646927f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(0.6930038332939148f));
  p = _mm512_fmadd_ps(p, part, _mm512_set1_ps(1.0000026226043701f));
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(counts, p, x);  // which rounds x down
}

inline constexpr float kLog2E = 1.44269504088896341f;

struct Avx512QuickSimd : Avx512Simd {
  // x above 80 as 80: so a quotient by it is no number that is slow to work on.
  [[gnu::always_inline]] static Vector exp(Vector x) {
    const Vector bounded = _mm512_min_ps(x, _mm512_set1_ps(80.0f));
    return exp2_of(_mm512_mul_ps(bounded, _mm512_set1_ps(kLog2E)));
  }
  // b is finite. One step of Newton's after fourteen bits.
  [[gnu::always_inline]] static Vector div(Vector a, Vector b) {
    const Vector rough = _mm512_rcp14_ps(b);
    const Vector error = _mm512_fnmadd_ps(b, rough, _mm512_set1_ps(1.0f));
    return _mm512_mul_ps(a, _mm512_fmadd_ps(rough, error, rough));
  }
};

}  // namespace gapless::cpu
