// Rounds weights to 8-bit floating point where they lie.
#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/fp8.h"

namespace gapless::cuda {
namespace {

constexpr int kThreads = 256;

// One block per row.
__global__ void __launch_bounds__(kThreads) round_to_fp8_kernel(RoundToFp8Params p) {
  let_successor_start();
  wait_for_predecessor();
  auto* row = static_cast<Bf16*>(p.weight) + std::int64_t{blockIdx.x} * p.row_size;
  __shared__ unsigned max_bits;  // floats that are not negative are ordered like their bits
  if (threadIdx.x == 0) max_bits = 0;
  __syncthreads();
  float largest = 0;
  for (std::int64_t i = threadIdx.x; i < p.row_size; i += kThreads) {
    largest = fmaxf(largest, fabsf(__bfloat162float(row[i])));
  }
  atomicMax(&max_bits, __float_as_uint(largest));
  __syncthreads();
  const int exponent = fp8_row_exponent(__uint_as_float(max_bits));
  for (std::int64_t i = threadIdx.x; i < p.row_size; i += kThreads) {
    const float rounded = round_to_e4m3(ldexpf(__bfloat162float(row[i]), -exponent));
    row[i] = __float2bfloat16_rn(ldexpf(rounded, exponent));
  }
}

}  // namespace

Status round_to_fp8(Stream& stream, const RoundToFp8Params& params) {
  return launch("round_to_fp8", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kThreads)},
                round_to_fp8_kernel, params);
}

}  // namespace gapless::cuda
