// LayerNorm and row copies.
#include <algorithm>

#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
namespace {

constexpr int kMaxNormThreads = 256;
constexpr int kMaxNormVectors = 4;  // per thread

// One block per row, the row in registers. The block's size depends on the width alone, and so does
// the order of the sums.
template <int kVectors>
__global__ void __launch_bounds__(kMaxNormThreads) layer_norm_kernel(LayerNormParams p) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  const auto* gamma = static_cast<const Bf16*>(p.gamma);
  const auto* beta = static_cast<const Bf16*>(p.beta);
  auto* y = static_cast<Bf16*>(p.y) + row * p.y_stride;

  let_successor_start();
  wait_for_predecessor();
  float values[kVectors][kVector];
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * blockDim.x + threadIdx.x) * kVector;
    if (at >= p.dim) continue;
    load_vector(x + at, values[v]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += values[v][i];
  }
  const float mean = block_sum(sum, shared) / p.dim;
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if ((v * blockDim.x + threadIdx.x) * kVector >= p.dim) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float difference = values[v][i] - mean;
      squares += difference * difference;
    }
  }
  const float scale = rsqrtf(block_sum(squares, shared) / p.dim + p.eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * blockDim.x + threadIdx.x) * kVector;
    if (at >= p.dim) continue;
    float g[kVector], b[kVector];
    load_vector(gamma + at, g);
    load_vector(beta + at, b);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[v][i] = (values[v][i] - mean) * scale * g[i] + b[i];
    store_vector(y + at, values[v]);
  }
}

// Rows of `num_vectors` 16-byte vectors; row r of `to` is row index[r] of `from`, or without an
// index row (first_row + r) % modulus.
__global__ void copy_rows_kernel(const uint4* from, std::int64_t from_stride,
                                 const std::int32_t* index, int first_row, int modulus, uint4* to,
                                 int num_vectors) {
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const std::int64_t source = index != nullptr ? index[row] : (first_row + row) % modulus;
  for (int i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    to[row * num_vectors + i] = from[source * from_stride + i];
  }
}

constexpr int kCopyThreads = 128;

}  // namespace

Status layer_norm(Stream& stream, const LayerNormParams& params) {
  constexpr int kMaxDim = kMaxNormThreads * kMaxNormVectors * kVector;
  if (params.dim <= 0 || params.dim % kVector != 0 || params.dim > kMaxDim ||
      params.x_stride % kVector != 0 || params.y_stride % kVector != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "layer_norm: the width and strides must be multiples of 8, the width at most 8192");
  }
  const int vectors = params.dim / kVector;
  const int per_thread = (vectors + kMaxNormThreads - 1) / kMaxNormThreads;
  const unsigned threads = blocks_for((vectors + per_thread - 1) / per_thread, kWarp) * kWarp;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_rows)),
                          .block = dim3(threads)};
  switch (per_thread) {
    case 1:
      return launch("layer_norm", stream, shape, layer_norm_kernel<1>, params);
    case 2:
      return launch("layer_norm", stream, shape, layer_norm_kernel<2>, params);
    default:
      return launch("layer_norm", stream, shape, layer_norm_kernel<kMaxNormVectors>, params);
  }
}

Status gather_rows(Stream& stream, const GatherRowsParams& params) {
  if (params.dim % kVector != 0) {
    return Status(StatusCode::kInvalidArgument, "gather_rows: the width must be a multiple of 8");
  }
  const int vectors = params.dim / kVector;
  return launch("gather_rows", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows)), .block = dim3(kCopyThreads)},
                copy_rows_kernel, static_cast<const uint4*>(params.x), vectors, params.index, 0, 1,
                static_cast<uint4*>(params.y), vectors);
}

Status copy_residual(Stream& stream, const LinearParams& params, int first_row, int num_rows,
                     void* to) {
  if (params.weights.out % kVector != 0 || params.residual_stride % kVector != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "linear: the residual's width and stride must be multiples of 8");
  }
  return launch("copy_residual", stream,
                {.grid = dim3(static_cast<unsigned>(num_rows)), .block = dim3(kCopyThreads)},
                copy_rows_kernel, static_cast<const uint4*>(params.residual),
                params.residual_stride / kVector, static_cast<const std::int32_t*>(nullptr),
                first_row, params.residual_rows, static_cast<uint4*>(to),
                params.weights.out / kVector);
}

}  // namespace gapless::cuda
