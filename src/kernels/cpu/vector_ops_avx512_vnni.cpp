#include "kernels/cpu/panel_linear.h"
#include "kernels/cpu/simd_avx512_bf16.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"
#include "kernels/cpu/vnni_int8.h"
#include "kernels/cpu/whole_number_attention.h"
#include "kernels/cpu/whole_number_linear.h"

namespace gapless::cpu {
namespace {

// A type of its own: what is compiled here must not take the place of what vector_ops_avx512.cpp compiles
// for processors without VNNI.
struct Avx512VnniSimd : Avx512QuickSimd {
  static constexpr const char* kName = "avx512_vnni";
};

using WholeNumberLinear = PanelLinear<Avx512VnniSimd, WholeNumberLinearTiles<Avx512VnniSimd>>;

void linear_block_vnni(const LinearParams& params, const LinearBlock& block) {
  // Numbers of 8-bit floating point have too many sizes for whole numbers: their products are exact.
  if (params.decode || params.x_scales != nullptr) {
    return linear_block<Avx512VnniSimd, Bf16>(params, block);
  }
  WholeNumberLinear::run(params, block);
}

// One query takes its keys as they are: to make whole numbers of them would take longer than to multiply them.
void attend_vnni(const AttentionTile& tile) {
  if (tile.decode) return attend<Avx512VnniSimd, Bf16>(tile);
  WholeNumberAttention<Avx512VnniSimd>(tile).run();
}

constexpr VectorOps make_vnni_ops() {
  VectorOps ops = make_vector_ops<Avx512VnniSimd, Bf16>();
  ops.linear_rows = 1536;
  ops.linear_columns = WholeNumberLinear::kMaxColumns;
  ops.linear_block = linear_block_vnni;
  ops.int8_block = int8_block<Avx512VnniSimd, Bf16, VnniInt8Products<Avx512VnniSimd>>;
  ops.attend = attend_vnni;
  return ops;
}

}  // namespace

constinit const VectorOps kAvx512VnniBf16Ops = make_vnni_ops();

}  // namespace gapless::cpu
