// Which experts the rows of a decode step chose, and which block does what for them (device/decoder_experts.cuh).
//
// pair = a row and one of its experts, numbered row * kRouteChoices + the rank of the expert's index among the row's. So what a
//        row's experts make lies, and is added up, in the order of their indices, whoever else is in the step.
// pass = an expert and up to kPassRows rows that chose it: the tiles of its matrix are multiplied with these alone. Passes are in
//        the order of the experts. An expert that more rows chose has several, and its weights are read several times.
//
// Each block takes an equal share of the tiles of all passes, cut into units of up to four tiles of one pass.
//
// Host and device, so that it is tested without a GPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/limits.h"
#include "base/num_bits.h"
#include "kernels/cuda/decoder_work.h"

namespace gapless {

inline constexpr int kRouteExperts = 64;  // at most: who a row chose is a word
inline constexpr int kRouteChoices = 8;   // at most

// Rows of a pass, at most: columns of a product. Up to 32 rows an expert has one pass, so its weights are read once.
template <int kRows>
inline constexpr int kPassRows = kRows <= 32 ? kRows : 32;
// Each expert has one pass that need not be full; the others are full.
inline constexpr int kMaxPasses = kRouteExperts + kMaxSeats * kRouteChoices / kPassRows<kMaxSeats>;

struct ExpertPass {
  std::uint16_t first;  // of its pairs
  std::uint8_t expert, num_rows;
};

// The first of a block's tiles, and how many it has: they follow each other through the passes.
struct ExpertShare {
  int pass, tile, size;
};

// A block's units of all passes of one of the two products, one after the other.
class ExpertUnits {
 public:
  GAPLESS_HOST_DEVICE ExpertUnits(const ExpertShare& share, int tiles_per_pass)
      : pass_(share.pass), tile_(share.tile), left_(share.size), tiles_per_pass_(tiles_per_pass) {}

  GAPLESS_HOST_DEVICE bool has() const { return left_ > 0; }
  GAPLESS_HOST_DEVICE int pass() const { return pass_; }
  GAPLESS_HOST_DEVICE int tile() const { return tile_; }  // the first, of the expert's
  GAPLESS_HOST_DEVICE int size() const {
    const int in_pass = tiles_per_pass_ - tile_;
    const int all = left_ < in_pass ? left_ : in_pass;
    return all < kUnitTiles ? all : kUnitTiles;
  }
  GAPLESS_HOST_DEVICE void next() {
    const int size = this->size();
    left_ -= size;
    tile_ += size;
    if (tile_ < tiles_per_pass_) return;
    tile_ = 0;
    ++pass_;
  }

 private:
  int pass_, tile_, left_;
  int tiles_per_pass_;
};

// Of a layer, in shared memory.
struct ExpertRoute {
  std::uint64_t chosen[kMaxSeats];                 // bit e: the row chose expert e; 0: it is done
  float weights[kMaxSeats * kRouteChoices];        // by pair
  std::uint16_t pairs[kMaxSeats * kRouteChoices];  // pass by pass, of each in the order of its rows
  ExpertPass passes[kMaxPasses];
  int num_passes;
  int num_experts;  // that some row chose
  ExpertShare up, down;

  GAPLESS_HOST_DEVICE static int row_of(int pair) { return pair / kRouteChoices; }
  GAPLESS_HOST_DEVICE static int rank_of(int pair) { return pair % kRouteChoices; }
  // The place of one of a row's experts.
  GAPLESS_HOST_DEVICE int pair_of(int row, int expert) const {
    const std::uint64_t before = (std::uint64_t{1} << expert) - 1;
    return row * kRouteChoices + num_bits(chosen[row] & before);
  }

  // From `chosen`. By all lanes of a warp together, or by one thread (OneLane).
  template <int kRowsOfPass, typename Lanes>
  GAPLESS_HOST_DEVICE void make_passes(int num_rows, int all_experts, const Lanes& lanes) {
    int passes_before = 0, pairs_before = 0, experts_before = 0;
    for (int base = 0; base < all_experts; base += lanes.count()) {
      const int expert = base + lanes.index();
      int rows = 0;
      for (int row = 0; expert < all_experts && row < num_rows; ++row) {
        rows += static_cast<int>(chosen[row] >> expert & 1);
      }
      const int own = (rows + kRowsOfPass - 1) / kRowsOfPass;
      const int first_pass = passes_before + lanes.sum_before(own);
      int pair = pairs_before + lanes.sum_before(rows);
      for (int i = 0; i < own; ++i) {
        const int left = rows - i * kRowsOfPass;
        passes[first_pass + i] = {
            static_cast<std::uint16_t>(pair + i * kRowsOfPass), static_cast<std::uint8_t>(expert),
            static_cast<std::uint8_t>(left < kRowsOfPass ? left : kRowsOfPass)};
      }
      for (int row = 0; rows > 0 && row < num_rows; ++row) {
        if ((chosen[row] >> expert & 1) == 0) continue;
        pairs[pair++] = static_cast<std::uint16_t>(pair_of(row, expert));
      }
      passes_before += lanes.sum(own);
      pairs_before += lanes.sum(rows);
      experts_before += lanes.sum(rows > 0 ? 1 : 0);
    }
    if (lanes.index() == 0) num_passes = passes_before, num_experts = experts_before;
    lanes.sync();
  }

  // A block's share of all passes' tiles.
  GAPLESS_HOST_DEVICE ExpertShare share_of(int tiles_per_pass, int block, int num_blocks) const {
    const TileRange tiles = equal_share(num_passes * tiles_per_pass, block, num_blocks);
    const int pass = tiles.begin / tiles_per_pass;
    return {pass, tiles.begin - pass * tiles_per_pass, tiles.size()};
  }
};

}  // namespace gapless
