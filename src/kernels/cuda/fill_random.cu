// Random weights, made where they are used.
#include "base/random_weights.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kFillThreads = 256;
constexpr int kMaxBlocks = 4096;

// One thread per element: four of them repeat one Philox block, which is still far faster than
// disk.
__global__ void __launch_bounds__(kFillThreads) fill_random_kernel(FillRandomParams p) {
  let_successor_start();
  wait_for_predecessor();
  const RandomTensorSpec spec{p.seed, p.tensor_hash, p.mean, p.stddev};
  auto* out = static_cast<Bf16*>(p.out);
  const std::int64_t total = p.num_rows * p.row_stride;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kFillThreads + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * kFillThreads) {
    const std::int64_t row = i / p.row_stride, column = i % p.row_stride;
    const float value =
        column < p.row_size
            ? random_value(spec,
                           static_cast<std::uint64_t>((p.first_row + row) * p.row_size + column))
            : 0.0f;
    out[i] = __float2bfloat16_rn(value);
  }
}

}  // namespace

Status fill_random(Stream& stream, const FillRandomParams& params) {
  const std::int64_t total = params.num_rows * params.row_stride;
  const unsigned blocks = total < std::int64_t{kMaxBlocks} * kFillThreads
                              ? blocks_for(total, kFillThreads)
                              : kMaxBlocks;
  return launch("fill_random", stream, {.grid = dim3(blocks), .block = dim3(kFillThreads)},
                fill_random_kernel, params);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
