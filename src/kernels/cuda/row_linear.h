// y = activation(x W^T + b) + residual for few rows: bound by reading the weights once.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "kernels/cuda/prepared_linear.h"
#include "kernels/kernels.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Products that run only when a row of this step sampled a certain token: one whose row decodes
// regions and is not done. tokens == nullptr: they always run.
struct RowLinearGate {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* rows = nullptr;
  const RowState* row_states = nullptr;
  int num_rows = 0;
  std::int32_t token_id = 0;
};

// One product of a launch.
struct RowLinearJob {
  LinearParams linear;
  RowLinearGate gate;
};

inline constexpr int kMaxRowLinearJobs = 2;

// Whether a matrix is summed up in so many shares of its columns, where all of a launch are. A property of the weights alone, never of
// the device or the rows: it decides the order of sums.
inline constexpr int kColumnRanks = 4;
constexpr bool wants_column_ranks(const LinearWeights& weights) {
  constexpr int kMostOut = 128 * kPreparedTileRows;
  constexpr int kLeastStages = 2 * kColumnRanks;
  return weights.out <= kMostOut && weights.in > (kLeastStages - 1) * kPreparedTileColumns;
}

// Enqueues one to kMaxRowLinearJobs products with the same number of rows. Row-invariant: the bits
// of a row of y depend on that row of x alone (row_linear.cu says why). `in` and the strides of x
// must be multiples of 8, its address of 16 bytes.
Status row_linear(Stream& stream, const RowLinearJob* jobs, int num_jobs, int num_multiprocessors);

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
