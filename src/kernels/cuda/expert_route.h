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
#include "kernels/prepared_format.h"

namespace gapless {

inline constexpr int kRouteExperts = 64;  // at most: who a row chose is a word
inline constexpr int kRouteChoices = 8;   // at most
inline constexpr int kMaxRouteRows = 64;  // of a launch, at most: who chose an expert is a word

// Rows of a pass, at most: columns of a product. Of 32 rows few experts are chosen by more than eight, and with 8-bit weights, where
// the computing warps are what bounds, passes of eight are faster; in bfloat16 no expert is read twice. More than sixteen take registers
// that the activations need.
template <int kRows, PreparedFormat kFormat>
inline constexpr bool kHasShortPasses = kRows == 8 ||
                                        (kRows <= 32 && kFormat == PreparedFormat::kFp8);
template <int kRows, PreparedFormat kFormat>
inline constexpr int kPassRows = kHasShortPasses<kRows, kFormat> ? 8 : 16;
// Each expert has one pass that need not be full; the others are full.
inline constexpr int kMaxPasses =
    kRouteExperts +
    kMaxRouteRows * kRouteChoices / kPassRows<kMaxRouteRows, PreparedFormat::kNative>;

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
  std::uint64_t chosen[kMaxRouteRows];           // bit e: the row chose expert e; 0: it is done
  float weights[kMaxRouteRows * kRouteChoices];  // by pair
  std::uint16_t
      pairs[kMaxRouteRows * kRouteChoices];  // pass by pass, of each in the order of its rows
  ExpertPass passes[kMaxPasses];
  int num_passes;
  int num_experts;  // that some row chose
  ExpertShare up, down;
  // By expert, while passes are made.
  std::uint64_t rows_of[kRouteExperts];
  std::uint16_t first_pairs[kRouteExperts];

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
    // Of experts before those that are looked at.
    int passes_before = 0, pairs_before = 0, experts_before = 0;
    for (int base = 0; base < all_experts; base += lanes.count()) {
      const int expert = base + lanes.index();
      const int rows = expert < all_experts ? find_rows(expert, num_rows) : 0;
      const int own = (rows + kRowsOfPass - 1) / kRowsOfPass;
      // Three counts, added up at once: none reaches the next one's bits.
      static_assert(kMaxRouteRows * kRouteChoices < 1 << 12 && kMaxPasses < 1 << 10);
      const int counts = rows | own << 12 | (rows > 0 ? 1 : 0) << 22;
      const int before = lanes.sum_before(counts), all = lanes.sum(counts);
      const int first_pair = pairs_before + (before & 0xfff);
      const int first_pass = passes_before + (before >> 12 & 0x3ff);
      if (expert < all_experts) first_pairs[expert] = static_cast<std::uint16_t>(first_pair);
      for (int i = 0; i < own; ++i) {
        const int left = rows - i * kRowsOfPass;
        passes[first_pass + i] = {
            static_cast<std::uint16_t>(first_pair + i * kRowsOfPass),
            static_cast<std::uint8_t>(expert),
            static_cast<std::uint8_t>(left < kRowsOfPass ? left : kRowsOfPass)};
      }
      pairs_before += all & 0xfff;
      passes_before += all >> 12 & 0x3ff;
      experts_before += all >> 22;
    }
    if (lanes.index() == 0) num_passes = passes_before, num_experts = experts_before;
    lanes.sync();
    for (int row = lanes.index(); row < num_rows; row += lanes.count()) place_pairs(row);
    lanes.sync();
  }

  // A block's share of all passes' tiles. (32 bits: a division of 64 takes long.)
  GAPLESS_HOST_DEVICE ExpertShare share_of(int tiles_per_pass, int block, int num_blocks) const {
    const auto all = static_cast<unsigned>(num_passes * tiles_per_pass);
    const auto blocks = static_cast<unsigned>(num_blocks), at = static_cast<unsigned>(block);
    const unsigned begin = at * all / blocks, end = (at + 1) * all / blocks;
    const unsigned pass = begin / static_cast<unsigned>(tiles_per_pass);
    return {static_cast<int>(pass),
            static_cast<int>(begin - pass * static_cast<unsigned>(tiles_per_pass)),
            static_cast<int>(end - begin)};
  }

 private:
  // The rows that chose an expert: how many.
  GAPLESS_HOST_DEVICE int find_rows(int expert, int num_rows) {
    const int shift = expert % 32;
    unsigned halves[2] = {};
    for (int half = 0; half < 2; ++half) {
      for (int row = half * 32; row < num_rows && row < half * 32 + 32; ++row) {
        const auto word = static_cast<unsigned>(expert < 32 ? chosen[row] : chosen[row] >> 32);
        halves[half] |= (word >> shift & 1) << row % 32;
      }
    }
    rows_of[expert] = static_cast<std::uint64_t>(halves[1]) << 32 | halves[0];
    return num_bits(rows_of[expert]);
  }
  // A row's pairs, each behind those of the rows before it that chose the same expert.
  GAPLESS_HOST_DEVICE void place_pairs(int row) {
    const std::uint64_t rows_before = (std::uint64_t{1} << row) - 1;
    int pair = row * kRouteChoices;
    for (std::uint64_t left = chosen[row]; left != 0; left &= left - 1) {
      const int expert = num_bits((left & (~left + 1)) - 1);
      const int place = first_pairs[expert] + num_bits(rows_of[expert] & rows_before);
      pairs[place] = static_cast<std::uint16_t>(pair++);
    }
  }
};

}  // namespace gapless
