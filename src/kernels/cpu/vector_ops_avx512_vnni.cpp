#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vector_ops_sets.h"
#include "kernels/cpu/whole_number_attention.h"
#include "kernels/cpu/whole_number_linear.h"

namespace gapless::cpu {
namespace {

// A type of its own: what is compiled here must not take the place of what vector_ops_avx512.cpp compiles
// for processors without VNNI.
struct Avx512VnniSimd : Avx512Simd {
  static constexpr const char* kName = "avx512_vnni";
};

void linear_block_vnni(const LinearParams& params, const LinearBlock& block) {
  // Numbers of 8-bit floating point have too many sizes for whole numbers: their products are exact.
  if (params.decode || params.x_scales != nullptr) {
    return linear_block<Avx512VnniSimd, Bf16>(params, block);
  }
  for_blocks(block, WholeNumberLinear<Avx512VnniSimd>::kMaxRows,
             WholeNumberLinear<Avx512VnniSimd>::kMaxColumns, [&](const LinearBlock& part) {
               WholeNumberLinear<Avx512VnniSimd>(params, part).run();
             });
}

// One query takes its keys as they are: to make whole numbers of them would take longer than to multiply them.
void attend_vnni(const AttentionTile& tile) {
  if (tile.decode) return attend<Avx512VnniSimd, Bf16>(tile);
  WholeNumberAttention<Avx512VnniSimd>(tile).run();
}

constexpr VectorOps make_vnni_ops() {
  VectorOps ops = make_vector_ops<Avx512VnniSimd, Bf16>();
  ops.linear_rows = WholeNumberLinear<Avx512VnniSimd>::kMaxRows;
  ops.linear_columns = WholeNumberLinear<Avx512VnniSimd>::kMaxColumns;
  ops.linear_block = linear_block_vnni;
  ops.attend = attend_vnni;
  return ops;
}

}  // namespace

constinit const VectorOps kAvx512VnniBf16Ops = make_vnni_ops();

}  // namespace gapless::cpu
