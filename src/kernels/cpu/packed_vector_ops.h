// A set of operations on bfloat16 whose products of many rows and attention of many queries want both sides packed. What has few
// of them takes its numbers as they lie: packing would take longer than multiplying.
#pragma once

#include "kernels/cpu/panel_linear.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/cpu/vnni_int8.h"

namespace gapless::cpu {

// Simd: a type of the file that is compiled, so that no two files share what they compile. Tiles: panel_linear.h. Attention: made
// of a tile, and run.
template <typename Simd, typename Tiles, typename Attention>
class PackedVectorOps {
 public:
  static constexpr VectorOps make() {
    VectorOps ops = make_vector_ops<Simd, Bf16>();
    ops.linear_rows = 1536;
    ops.linear_columns = Linear::kMaxColumns;
    ops.linear_block = multiply_block;
    ops.linear_row_unit = Tiles::kRows;
    ops.int8_block = int8_block<Simd, Bf16, VnniInt8Products<Simd>>;
    ops.attend = attend_to_tile;
    return ops;
  }

 private:
  using Linear = PanelLinear<Simd, Tiles>;

  static void multiply_block(const LinearParams& params, const LinearBlock& block) {
    if (params.decode || !Tiles::takes(params)) return linear_block<Simd, Bf16>(params, block);
    Linear::run(params, block);
  }

  static void attend_to_tile(const AttentionTile& tile) {
    if (tile.decode) return attend<Simd, Bf16>(tile);
    Attention(tile).run();
  }
};

}  // namespace gapless::cpu
