// Rounds weights to 8-bit floating point where they lie, and makes rows for products in 8 bits.
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/fp8.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kRoundThreads = 256;

// One block per row.
__global__ void __launch_bounds__(kRoundThreads) round_to_fp8_kernel(RoundToFp8Params p) {
  let_successor_start();
  wait_for_predecessor();
  auto* row = static_cast<Bf16*>(p.weight) + std::int64_t{blockIdx.x} * p.row_size;
  __shared__ unsigned max_bits;  // floats that are not negative are ordered like their bits
  if (threadIdx.x == 0) max_bits = 0;
  __syncthreads();
  float largest = 0;
  for (std::int64_t i = threadIdx.x; i < p.row_size; i += kRoundThreads) {
    largest = fmaxf(largest, fabsf(__bfloat162float(row[i])));
  }
  atomicMax(&max_bits, __float_as_uint(largest));
  __syncthreads();
  const int exponent = fp8_row_exponent(__uint_as_float(max_bits));
  for (std::int64_t i = threadIdx.x; i < p.row_size; i += kRoundThreads) {
    const float rounded = round_to_e4m3(ldexpf(__bfloat162float(row[i]), -exponent));
    row[i] = __float2bfloat16_rn(ldexpf(rounded, exponent));
  }
}

constexpr int kRowVectors = 4;  // of a thread, in registers
constexpr int kRoundWarps = kRoundThreads / kWarp;

// kRowWarps warps per row: one, or all of the block. All of the row is read before any of it is written: y may be x.
template <int kRowWarps>
__global__ void __launch_bounds__(kRoundThreads) rows_to_fp8_kernel(RowsToFp8Params p) {
  static_assert(kRowWarps == 1 || kRowWarps == kRoundWarps);
  constexpr int kLanes = kRowWarps * kWarp;
  __shared__ float shared[kRoundWarps];
  let_successor_start();
  wait_for_predecessor();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kRoundWarps / kRowWarps) + threadIdx.x / kLanes;
  if (row >= p.num_rows) return;
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  auto* y = static_cast<std::uint8_t*>(p.y) + row * p.y_stride;
  uint4 raw[kRowVectors];
  float largest = 0;
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int at = (v * kLanes + lane) * kVector;
    if (at < p.dim) raw[v] = *reinterpret_cast<const uint4*>(x + at);
  }
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    if ((v * kLanes + lane) * kVector >= p.dim) continue;
    float values[kVector];
    unpack(raw[v], values);
    largest = max_magnitude(values, largest);
  }
  const Fp8Scale scale(kRowWarps == 1 ? warp_max(largest) : block_max(largest, shared));
#pragma unroll
  for (int v = 0; v < kRowVectors; ++v) {
    const int at = (v * kLanes + lane) * kVector;
    if (at >= p.dim) continue;
    float values[kVector];
    unpack(raw[v], values);
    *reinterpret_cast<uint2*>(y + at) = pack_fp8(values, scale.inverse);
  }
  if (lane == 0) p.scales[row] = scale.scale;
}

struct WidenParams {
  const std::uint8_t* x;
  std::int64_t x_stride;
  const float* scales;
  Bf16* to;
  int dim;
};

// One block per row.
__global__ void __launch_bounds__(kRoundThreads) widen_fp8_kernel(WidenParams p) {
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const float scale = p.scales[row];
  for (int at = static_cast<int>(threadIdx.x) * kVector; at < p.dim;
       at += kRoundThreads * kVector) {
    float values[kVector];
    KvVector<E4m3>::unpack(*reinterpret_cast<const uint2*>(p.x + row * p.x_stride + at), values);
#pragma unroll
    for (float& value : values) value *= scale;
    store_vector(p.to + row * p.dim + at, values);
  }
}

}  // namespace

Status widen_fp8_rows(Stream& stream, const LinearParams& params, int first_row, int num_rows,
                      void* to) {
  const WidenParams p{.x = static_cast<const std::uint8_t*>(params.x) + first_row * params.x_stride,
                      .x_stride = params.x_stride,
                      .scales = params.x_scales + first_row,
                      .to = static_cast<Bf16*>(to),
                      .dim = params.weights.in};
  return launch("widen_fp8_rows", stream,
                {.grid = dim3(static_cast<unsigned>(num_rows)), .block = dim3(kRoundThreads)},
                widen_fp8_kernel, p);
}

Status rows_to_fp8(Stream& stream, const RowsToFp8Params& params) {
  if (params.dim % kVector != 0 || params.dim > kRoundThreads * kRowVectors * kVector ||
      params.x_stride % kVector != 0 || params.y_stride % kVector != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "rows_to_fp8: the width and strides must be multiples of 8, the width at most 8192");
  }
  if (params.num_rows == 0) return ok_status();
  const auto launch_rows = [&](auto kernel, int rows_per_block) {
    return launch(
        "rows_to_fp8", stream,
        {.grid = dim3(blocks_for(params.num_rows, rows_per_block)), .block = dim3(kRoundThreads)},
        kernel, params);
  };
  // Of narrow rows there are many, and a block for each would mostly wait.
  return params.dim <= kWarp * kRowVectors * kVector
             ? launch_rows(rows_to_fp8_kernel<1>, kRoundWarps)
             : launch_rows(rows_to_fp8_kernel<kRoundWarps>, 1);
}

Status round_to_fp8(Stream& stream, const RoundToFp8Params& params) {
  return launch(
      "round_to_fp8", stream,
      {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kRoundThreads)},
      round_to_fp8_kernel, params);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
