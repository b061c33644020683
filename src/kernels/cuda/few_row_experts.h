// Experts (ExpertsParams) for few rows, on paths without warpgroups: bound by reading the weights of the chosen experts once.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// More are sorted by their experts (experts.cu).
inline constexpr int kMaxFewRows = 4;

// Up to kMaxFewRows rows, the same bits as with many. params.logits are there. `inner`: scratch,
// [num_rows * experts_per_token, ff.inner()].
Status few_row_experts(Stream& stream, const ExpertsParams& params, Bf16* inner);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
