// Where a block's matrices lie in its prepared ones. A decode step of parallel blocks reads each of those as
// one product.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace gapless {

enum class PreparedMatrix {
  kIn,   // qkv, and a dense ff.up below it
  kOut,  // proj, and a dense ff.down to its right
  kExpertsUp,
  kExpertsDown,
};

struct PreparedPart {
  LinearWeights weights;
  PreparedMatrix matrix;
  int total_in, total_out;  // of the prepared matrix: its columns and rows
  int first_out, first_in;  // where the part begins in it
  bool halves_alternate;    // PrepareLinearParams
};

// Of a block whose rows may be restored, one group each (model/prepared_weights.h): qkv, ff.up, proj, ff.down.
inline constexpr std::size_t kMatricesPerBlock = 4;

// Widths of a block's two prepared matrices.
struct PreparedSizes {
  int in_rows, out_columns;

  static PreparedSizes of(const DecoderBlock& block) {
    const bool dense = block.ff.kind != FeedForwardKind::kExperts;
    return {block.qkv.out + (dense ? block.ff.up.out : 0),
            block.proj.in + (dense ? block.ff.down.in : 0)};
  }
};

// A block with qkv, ff.up, proj and ff.down: in this order.
inline std::array<PreparedPart, kMatricesPerBlock> prepared_parts(const DecoderBlock& block) {
  const int dim = block.qkv.in;
  const PreparedSizes sizes = PreparedSizes::of(block);
  const bool gated = block.ff.kind == FeedForwardKind::kGated;
  return {{{block.qkv, PreparedMatrix::kIn, dim, sizes.in_rows, 0, 0, false},
           {block.ff.up, PreparedMatrix::kIn, dim, sizes.in_rows, block.qkv.out, 0, gated},
           {block.proj, PreparedMatrix::kOut, sizes.out_columns, dim, 0, 0, false},
           {block.ff.down, PreparedMatrix::kOut, sizes.out_columns, dim, 0, block.proj.in, false}}};
}

// The matrices of that block that lie in `block` alone: for LinearWeights::restore.
inline std::array<LinearWeights*, kMatricesPerBlock> matrices_of(DecoderBlock& block) {
  return {&block.qkv, &block.ff.up, &block.proj, &block.ff.down};
}

// A block with experts. element_bytes: of T.
inline std::vector<PreparedPart> prepared_expert_parts(const DecoderBlock& block,
                                                       std::size_t element_bytes) {
  const FeedForward& ff = block.ff;
  const int dim = block.qkv.in, num_experts = ff.num_experts;
  const PreparedSizes sizes = PreparedSizes::of(block);
  std::vector<PreparedPart> parts = {
      {block.qkv, PreparedMatrix::kIn, dim, sizes.in_rows, 0, 0, false},
      {block.proj, PreparedMatrix::kOut, sizes.out_columns, dim, 0, 0, false}};
  const auto expert = [&](const LinearWeights& first, int index) {
    LinearWeights weights = first;
    weights.weight = static_cast<const std::byte*>(first.weight) +
                     static_cast<std::size_t>(index) * static_cast<std::size_t>(first.in) *
                         static_cast<std::size_t>(first.out) * element_bytes;
    return weights;
  };
  for (int i = 0; i < num_experts; ++i) {
    parts.push_back({expert(ff.up, i), PreparedMatrix::kExpertsUp, ff.up.in,
                     num_experts * ff.up.out, i * ff.up.out, 0, true});
    parts.push_back({expert(ff.down, i), PreparedMatrix::kExpertsDown, ff.down.in,
                     num_experts * ff.down.out, i * ff.down.out, 0, false});
  }
  return parts;
}

}  // namespace gapless
