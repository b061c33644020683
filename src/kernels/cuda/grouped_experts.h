// Products over experts of rows sorted by their experts: by warpgroups, on path 9.0a alone.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/expert_tiles.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

struct GroupedProduct {
  const Bf16* x;
  std::int64_t x_stride;
  // Row r of the sorted pairs is x[pairs_per_row > 0 ? order[r] / pairs_per_row : r].
  const std::int32_t* order;
  int pairs_per_row;
  const char* weights;  // [experts, out, in], rows 2 * in bytes apart
  const float* scales;  // [experts, out]; nullptr: weights are T
  int num_experts, in, out;
  // multiply_grouped: [pairs, out]. multiply_grouped_and_gate: [pairs, out / 2].
  Bf16* y;
  std::int64_t y_stride;
  const ExpertTile* tiles;  // of at most kGroupedRows rows
  const std::int32_t* num_tiles;
  Activation activation;  // multiply_grouped_and_gate
  float up_offset;
};

inline constexpr int kGroupedRows = 128;

// y = W x. A row's bits do not depend on its tile. `max_tiles`: *num_tiles is no more. Follows multiply_grouped_and_gate of the same
// tiles: it reads them before that is through.
Status multiply_grouped(Stream& stream, const GroupedProduct& product, int max_tiles);

// Brings what multiply_grouped_and_gate of the same product will read first into the second-level cache, as much as leaves room there
// for other work. It reads the tiles alone, and writes nothing.
Status prefetch_grouped(Stream& stream, const GroupedProduct& product, int max_tiles);

// y = activation(gate) * (up + up_offset) of gates and ups, the two halves of W x; both are rounded to T first.
Status multiply_grouped_and_gate(Stream& stream, const GroupedProduct& product, int max_tiles);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
