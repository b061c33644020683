// Which block does what in the products of a decode step that is one launch
// (device/decoder_kernel.cuh). All warps of a block go over the same units in the same order.
//
// Host and device, so that it is tested without a GPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/cuda/decoder_schedule.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/needed_logits.h"
#include "kernels/shared_prefix.h"

namespace gapless {

// Rows of a launch, at most. A step of more is several launches, each of whole slices (kernels/shared_prefix.h).
inline constexpr int kMaxLaunchRows = 128;
static_assert(kMaxLaunchRows % kSharingSlice == 0);

inline constexpr int kUnitTiles = 4;           // at most
static_assert(kUnitTiles == 4);                // DecoderWork::next_size
inline constexpr int kDecoderColumnRanks = 4;  // shares of the output product's columns

struct TileRange {
  int begin, end;
  GAPLESS_HOST_DEVICE int size() const { return end - begin; }
};

// The index-th of `parts` equal shares of so many things.
GAPLESS_HOST_DEVICE inline TileRange equal_share(int things, int index, int parts) {
  const auto all = static_cast<std::int64_t>(things);
  return {static_cast<int>(index * all / parts), static_cast<int>((index + 1) * all / parts)};
}

struct ChunkRange {  // of 128 columns each
  int begin, end;
  GAPLESS_HOST_DEVICE int size() const { return end - begin; }
};

// The order in which a launch of more than 64 rows multiplies a unit's chunks, `size` of them, which must be even: of pairs of
// chunks every fourth, then the next ones of the four. So a thread has the sums of one of these turns at a time
// (device/turn_product.cuh).
inline constexpr int kChunkTurns = 4;
GAPLESS_HOST_DEVICE inline int chunk_in_turn(int stage, int size) {
  int pair = stage / 2, turn = 0;
  for (; turn + 1 < kChunkTurns; ++turn) {
    const int own = (size / 2 - turn + kChunkTurns - 1) / kChunkTurns;
    if (pair < own) break;
    pair -= own;
  }
  return (turn + pair * kChunkTurns) * 2 + stage % 2;
}

// Some tiles of a matrix, and all of its columns or a share of them.
struct ProductUnit {
  int at, end;  // kProduct: tiles of the matrix; kPartialSums: shares, counted through all blocks
};

// The widths of a model.
struct DecoderSizes {
  int dim;
  int qkv_width, q_width;  // of all heads together
  int up_width;  // what the feed-forward's first product makes: ff_dim, and as much again for a gate
  int ff_dim;
  int vocab;
  int first_ff_dim = 0;  // of ff_dim, what Matrix::kInner makes; 0: all
};

// Of so much that the feed-forward's first product makes, what is made first where that is two products: over a half, so that
// it has been announced when the rest is made, and the rest when the next product is through with it. Of 14 tiles, which a block of 132
// has of 8 billion parameters, four sevenths are two units, and so is the rest: both are twins (device/twin_product.cuh). Equal shares of
// columns, so that those of both parts together are as large as those of all. 0: there is only one product.
GAPLESS_HOST_DEVICE constexpr int first_part_of_inner(int ff_dim) {
  const int chunks = (ff_dim / kPreparedTileColumns + 1) * 4 / 7;
  return chunks / kDecoderColumnRanks * kDecoderColumnRanks * kPreparedTileColumns;
}

// Tiles of a matrix that makes the feed-forward's first product, and how many of them kInner makes.
struct InnerTiles {
  int all, first;
  GAPLESS_HOST_DEVICE explicit InnerTiles(const DecoderSizes& sizes)
      : all(sizes.up_width / kPreparedTileRows),
        first(sizes.first_ff_dim == 0
                  ? all
                  : sizes.first_ff_dim / kPreparedTileRows * (sizes.up_width / sizes.ff_dim)) {}
};

// Whether all units of a model have even numbers of chunks.
constexpr bool has_even_units(const DecoderSizes& sizes) {
  constexpr int kMultiple = 2 * kDecoderColumnRanks * kPreparedTileColumns;
  return sizes.dim % kMultiple == 0 && sizes.q_width % kMultiple == 0 &&
         sizes.ff_dim % kMultiple == 0;
}

// A block's tiles of each matrix of which it computes whole columns. Computed once: to divide takes
// longer than a block has between two phases.
struct TileShares {
  TileRange of[kNumMatrices];

  GAPLESS_HOST_DEVICE void divide(const DecoderSizes& sizes, int block, int num_blocks) {
    const int qkv = sizes.qkv_width / kPreparedTileRows;
    const InnerTiles inner(sizes);
    const int head = (sizes.vocab + kPreparedTileRows - 1) / kPreparedTileRows;
    // Who has one tile more of qkv has it from one end of the grid, of fc1 from the other.
    const int from_end = num_blocks - 1 - block, rest = inner.all - inner.first;
    const TileRange first = equal_share(inner.first, from_end, num_blocks);
    TileRange second = equal_share(rest, from_end, num_blocks);
    // Together an equal share, where everyone has some of both all the same.
    if (inner.first >= num_blocks && rest >= 2 * num_blocks) {
      const TileRange both = equal_share(inner.all, from_end, num_blocks);
      second = {both.begin - first.begin, both.end - first.end};
    }
    of[static_cast<int>(Matrix::kQkv)] = equal_share(qkv, block, num_blocks);
    of[static_cast<int>(Matrix::kInner)] = {qkv + first.begin, qkv + first.end};
    of[static_cast<int>(Matrix::kInnerRest)] = {qkv + inner.first + second.begin,
                                                qkv + inner.first + second.end};
    of[static_cast<int>(Matrix::kHead)] = equal_share(head, block, num_blocks);
  }

  // Of the head's those with needed columns remain, from the first to the last.
  GAPLESS_HOST_DEVICE void keep_needed(const StepLogits& needed) {
    TileRange& head = of[static_cast<int>(Matrix::kHead)];
    const ColumnRange tiles = needed_tiles(needed, {head.begin, head.end}, kPreparedTileRows);
    head = {tiles.begin, tiles.end};
  }
};

class DecoderWork {
 public:
  // `shares` outlives it, and may be divided later.
  GAPLESS_HOST_DEVICE DecoderWork(const DecoderSizes& sizes, const TileShares& shares, int block,
                                  int num_blocks)
      : shares_(shares),
        block_(block),
        num_blocks_(num_blocks),
        qkv_tiles_(sizes.qkv_width / kPreparedTileRows),
        inner_tiles_(InnerTiles(sizes).all),
        first_inner_tiles_(InnerTiles(sizes).first),
        head_tiles_((sizes.vocab + kPreparedTileRows - 1) / kPreparedTileRows),
        output_tiles_(sizes.dim / kPreparedTileRows),
        dim_chunks_(sizes.dim / kPreparedTileColumns),
        attention_chunks_(sizes.q_width / kPreparedTileColumns),
        inner_chunks_(sizes.ff_dim / kPreparedTileColumns),
        first_inner_chunks_((sizes.first_ff_dim == 0 ? sizes.ff_dim : sizes.first_ff_dim) /
                            kPreparedTileColumns) {}

  // Tiles of the prepared matrix that a product's tiles are part of: [qkv | fc1], [proj | fc2] or
  // the head.
  GAPLESS_HOST_DEVICE int all_tiles(Matrix matrix) const {
    return matrix == Matrix::kOutput ? output_tiles_
           : matrix == Matrix::kHead ? head_tiles_
                                     : qkv_tiles_ + inner_tiles_;
  }

  // This block's tiles of a product that computes whole columns.
  GAPLESS_HOST_DEVICE TileRange tiles(Matrix matrix) const {
    return shares_.of[static_cast<int>(matrix)];
  }
  // How many blocks have any.
  GAPLESS_HOST_DEVICE unsigned blocks_with_tiles(Matrix matrix) const {
    const int all = matrix == Matrix::kQkv         ? qkv_tiles_
                    : matrix == Matrix::kInner     ? first_inner_tiles_
                    : matrix == Matrix::kInnerRest ? inner_tiles_ - first_inner_tiles_
                                                   : head_tiles_;
    return static_cast<unsigned>(all < num_blocks_ ? all : num_blocks_);
  }

  // This block's units of a product.
  GAPLESS_HOST_DEVICE ProductUnit first_unit(PhaseKind kind, Matrix matrix) const {
    if (kind == PhaseKind::kPartialSums) {
      const int groups = (output_tiles_ + kUnitTiles - 1) / kUnitTiles;
      return {block_, groups * kDecoderColumnRanks};
    }
    const TileRange range = tiles(matrix);
    return {range.begin, range.end};
  }
  GAPLESS_HOST_DEVICE static bool has(const ProductUnit& unit) { return unit.at < unit.end; }
  GAPLESS_HOST_DEVICE void next(PhaseKind kind, ProductUnit& unit) const {
    unit.at += kind == PhaseKind::kPartialSums ? num_blocks_ : next_size(unit.end - unit.at);
  }

  // Whether this block's next unit multiplies the same activations, so that both may be multiplied at once.
  GAPLESS_HOST_DEVICE bool has_twin(PhaseKind kind, ProductUnit unit) const {
    next(kind, unit);
    return has(unit) &&
           (kind != PhaseKind::kPartialSums || num_blocks_ % kDecoderColumnRanks == 0);
  }

  GAPLESS_HOST_DEVICE TileRange tiles_of(PhaseKind kind, const ProductUnit& unit) const {
    if (kind == PhaseKind::kPartialSums) {
      const int begin = unit.at / kDecoderColumnRanks * kUnitTiles;
      return {begin, smaller(begin + kUnitTiles, output_tiles_)};
    }
    return {unit.at, unit.at + next_size(unit.end - unit.at)};
  }
  GAPLESS_HOST_DEVICE static int rank_of(const ProductUnit& unit) {
    return unit.at % kDecoderColumnRanks;
  }
  // Columns of a unit that multiply some activations.
  GAPLESS_HOST_DEVICE ChunkRange chunks_of(Value activations, const ProductUnit& unit) const {
    switch (activations) {
      case Value::kNorm:
      case Value::kFfNorm:
        return {0, dim_chunks_};
      case Value::kAttention:
        return chunk_share(rank_of(unit), attention_chunks_);
      case Value::kInner: {
        const ChunkRange range = chunk_share(rank_of(unit), first_inner_chunks_);
        return {attention_chunks_ + range.begin, attention_chunks_ + range.end};
      }
      case Value::kInnerRest: {
        const int before = attention_chunks_ + first_inner_chunks_;
        const ChunkRange range = chunk_share(rank_of(unit), inner_chunks_ - first_inner_chunks_);
        return {before + range.begin, before + range.end};
      }
      default:
        return {0, 0};
    }
  }

  // Whether this block counts a value, and how many blocks do. `num_rows`: no more than blocks.
  template <typename S, Value kValue>
  GAPLESS_HOST_DEVICE bool counts(int num_rows) const {
    using Of = ScheduleOf<S>;
    if constexpr (Of::in(Of::kByRow, kValue)) return block_ < num_rows;
    if constexpr (Of::in(Of::kByTiles, kValue)) {
      return tiles(Of::template kMatrixOf<kValue>).size() > 0;
    }
    return true;
  }
  template <typename S, Value kValue>
  GAPLESS_HOST_DEVICE unsigned counting_blocks(int num_rows) const {
    using Of = ScheduleOf<S>;
    if constexpr (Of::in(Of::kByRow, kValue)) return static_cast<unsigned>(num_rows);
    if constexpr (Of::in(Of::kByTiles, kValue)) {
      return blocks_with_tiles(Of::template kMatrixOf<kValue>);
    }
    return static_cast<unsigned>(num_blocks_);
  }

 private:
  // Of so many tiles, the next unit's: as few units as possible, none of them much smaller than the
  // others. To ask for a stage costs as much whatever its size.
  GAPLESS_HOST_DEVICE static int next_size(int tiles) {
    const bool divides = static_cast<unsigned>(tiles) % kUnitTiles == 0;
    return divides ? kUnitTiles : smaller(tiles, kUnitTiles - 1);
  }
  GAPLESS_HOST_DEVICE static int smaller(int a, int b) { return a < b ? a : b; }
  GAPLESS_HOST_DEVICE static ChunkRange chunk_share(int rank, int all) {
    return {rank * all / kDecoderColumnRanks, (rank + 1) * all / kDecoderColumnRanks};
  }

  const TileShares& shares_;
  int block_, num_blocks_;
  int qkv_tiles_, inner_tiles_, first_inner_tiles_, head_tiles_, output_tiles_;
  int dim_chunks_, attention_chunks_, inner_chunks_, first_inner_chunks_;
};

}  // namespace gapless
