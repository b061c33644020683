// Where a block's four matrices lie in its two prepared ones. A decode step of parallel blocks reads each of those as
// one product.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/kernels.h"

namespace gapless {

enum class PreparedMatrix {
  kIn,   // qkv, and ff.up below it
  kOut,  // proj, and ff.down to its right
};

struct PreparedPart {
  LinearWeights* weights;
  PreparedMatrix matrix;
  int total_in, total_out;  // of the prepared matrix: its columns and rows
  int first_out, first_in;  // where the part begins in it
  bool halves_alternate;    // PrepareLinearParams
};

inline constexpr std::size_t kMatricesPerBlock = 4;

// Points into `block`.
inline std::array<PreparedPart, kMatricesPerBlock> prepared_parts(DecoderBlock& block) {
  const int dim = block.qkv.in;
  const int in_rows = block.qkv.out + block.ff.up.out;
  const int out_columns = block.proj.in + block.ff.down.in;
  const bool gated = block.ff.kind == FeedForwardKind::kGated;
  return {{{&block.qkv, PreparedMatrix::kIn, dim, in_rows, 0, 0, false},
           {&block.ff.up, PreparedMatrix::kIn, dim, in_rows, block.qkv.out, 0, gated},
           {&block.proj, PreparedMatrix::kOut, out_columns, dim, 0, 0, false},
           {&block.ff.down, PreparedMatrix::kOut, out_columns, dim, 0, block.proj.in, false}}};
}

}  // namespace gapless
