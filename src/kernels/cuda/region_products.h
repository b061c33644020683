// Both layers of the region heads in one launch, for few rows.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/cuda_path.h"
#include "kernels/cuda/row_linear.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

inline constexpr int kNumRegionHeads = 2;
// The second layer's logits are left as this many partial sums, to be added up in order.
inline constexpr int kRegionRanks = kColumnRanks;
// Of one launch.
inline constexpr int kMaxRegionProductRows = 64;

struct RegionProductsParams {
  const void* x = nullptr;   // [num_rows, dim] T
  void* gathered = nullptr;  // scratch [num_rows, dim] T
  struct Head {
    LinearWeights first, second;  // prepared, in T
    void* inner = nullptr;        // scratch [num_rows, first.out] T
    float* partial = nullptr;     // out [kRegionRanks, num_rows, second.out], without the bias
    std::int32_t token_id =
        0;  // not that of the other head; the head is left out unless a row that decodes regions sampled it
  } heads[kNumRegionHeads];
  const std::int32_t* tokens = nullptr;
  const std::int32_t* rows = nullptr;
  const RowState* row_states = nullptr;
  int num_rows = 0;
  // 0 when the launch begins; the kernel behind it resets it.
  unsigned* arrived = nullptr;
};

// Ok where the launch takes these heads of two layers and gives the sums that two of row_linear give, or why not. On paths with
// warpgroups alone.
Status check_region_products(const RegionDecoderWeights& weights);

// At most kMaxRegionProductRows.
Status region_products(Stream& stream, const RegionProductsParams& params, int num_multiprocessors);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
