#include "kernels/cpu/amx_attention.h"
#include "kernels/cpu/amx_linear.h"
#include "kernels/cpu/panel_linear.h"
#include "kernels/cpu/simd_avx512_bf16.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"
#include "kernels/cpu/vnni_int8.h"

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

using AmxLinear = PanelLinear<AmxSimd, AmxLinearTiles<AmxSimd>>;

void linear_block_amx(const LinearParams& params, const LinearBlock& block) {
  if (params.decode) return linear_block<AmxSimd, Bf16>(params, block);
  AmxLinear::run(params, block);
}

// One query takes its keys as they are: to pack them would take longer than to multiply them.
void attend_amx(const AttentionTile& tile) {
  if (tile.decode) return attend<AmxSimd, Bf16>(tile);
  AmxAttention<AmxSimd>(tile).run();
}

constexpr VectorOps make_amx_ops() {
  VectorOps ops = make_vector_ops<AmxSimd, Bf16>();
  ops.linear_rows = 1536;
  ops.linear_columns = AmxLinear::kMaxColumns;
  ops.linear_block = linear_block_amx;
  ops.int8_block = int8_block<AmxSimd, Bf16, VnniInt8Products<AmxSimd>>;
  ops.attend = attend_amx;
  return ops;
}

}  // namespace

constinit const VectorOps kAvx512AmxBf16Ops = make_amx_ops();

}  // namespace gapless::cpu
