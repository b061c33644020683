#include "kernels/cpu/amx_attention.h"
#include "kernels/cpu/amx_linear.h"
#include "kernels/cpu/packed_vector_ops.h"
#include "kernels/cpu/simd_avx512_bf16.h"
#include "kernels/cpu/vector_ops_sets.h"

namespace gapless::cpu {
namespace {

// A processor with AMX rounds to bfloat16 in one instruction.
struct AmxSimd : Avx512QuickSimd {
  static constexpr const char* kName = "avx512_amx";

  using Avx512QuickSimd::store;
  using Avx512QuickSimd::store_first;
  [[gnu::always_inline]] static void store(Bf16* to, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(v));
  }
  [[gnu::always_inline]] static void store_first(Bf16* to, Vector v, int count) {
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << count) - 1u), narrow(v));
  }

 private:
  [[gnu::always_inline]] static __m256i narrow(Vector v) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
  }
};

}  // namespace

constinit const VectorOps kAvx512AmxBf16Ops =
    PackedVectorOps<AmxSimd, AmxLinearTiles<AmxSimd>, AmxAttention<AmxSimd>>::make();

}  // namespace gapless::cpu
