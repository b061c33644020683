// Products over experts of rows sorted by their experts: by warpgroups, on path 9.0a alone.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/expert_tiles.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// At most, of a tile.
inline constexpr int kGroupedRows = 128;

// y = W x. A row's bits do not depend on its tile. `max_tiles`: *num_tiles is no more. Follows multiply_grouped_and_gate of the same
// tiles, whose outputs it reads, tile by tile, before that is through; in 8 bits the kernel follows that makes rows in 8 bits of these.
Status multiply_grouped(Stream& stream, const SortedProduct& product, int max_tiles);

// y = activation(gate) * (up + up_offset) of gates and ups, the two halves of W x; both are rounded to T first.
Status multiply_grouped_and_gate(Stream& stream, const SortedProduct& product, int max_tiles);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
