// LayerNorm, RMS norm, gates and row copies.
#include <algorithm>
#include <type_traits>

#include "base/limits.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kNormWarps = 4;       // of a block
constexpr int kMaxNormVectors = 8;  // per lane
constexpr int kMaxRowWarps = 4;

// kRowWarps warps per row, the row in registers. How many depends on the width alone, and so does
// the order of the sums. kToFp8: the row ends in 8 bits, with a scale, and once more as it is where that is asked for. kAhead: weights are read before the wait, which
// takes registers.
template <int kVectors, int kRowWarps, bool kToFp8, bool kAhead>
__global__ void __launch_bounds__(kNormWarps* kWarp) norm_kernel(NormParams p) {
  constexpr int kRows = kNormWarps / kRowWarps, kLanes = kRowWarps * kWarp;
  __shared__ float shared[kWarp];
  const int lane = threadIdx.x % kLanes;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes;
  let_successor_start();
  const auto* gamma = static_cast<const Bf16*>(p.weights.gamma);
  const auto* beta = static_cast<const Bf16*>(p.weights.beta);
  uint4 raw_gamma[kVectors], raw_beta[kVectors];
  const auto load_weights = [&](int v) {
    const int at = (v * kLanes + lane) * kVector;
    if (at >= p.dim) return;
    raw_gamma[v] = *reinterpret_cast<const uint4*>(gamma + at);
    raw_beta[v] = beta != nullptr ? *reinterpret_cast<const uint4*>(beta + at) : uint4{};
  };
  if constexpr (kAhead) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) load_weights(v);
  }
  wait_for_predecessor();
  if (kRows > 1 && row >= p.num_rows) return;

  auto row_sum = [&](float value) {
    if constexpr (kRowWarps == 1) return warp_sum(value);
    return block_sum(value, shared);
  };
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  const bool centres = p.weights.kind == NormKind::kLayer;
  uint4 raw[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kLanes + lane) * kVector;
    if (at < p.dim) raw[v] = *reinterpret_cast<const uint4*>(x + at);
  }
  float values[kVectors][kVector];
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if ((v * kLanes + lane) * kVector >= p.dim) continue;
    unpack(raw[v], values[v]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += values[v][i];
  }
  const float mean = centres ? row_sum(sum) / p.dim : 0.0f;
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if ((v * kLanes + lane) * kVector >= p.dim) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float difference = values[v][i] - mean;
      squares += difference * difference;
    }
  }
  const float scale = rsqrtf(row_sum(squares) / p.dim + p.weights.eps);
  float largest = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kLanes + lane) * kVector;
    if (at >= p.dim) continue;
    if constexpr (!kAhead) load_weights(v);
    float g[kVector], b[kVector];
    unpack(raw_gamma[v], g);
    unpack(raw_beta[v], b);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[v][i] = (values[v][i] - mean) * scale * g[i] + b[i];
    if constexpr (kToFp8) {
      largest = max_magnitude(values[v], largest);
      if (p.exact_y != nullptr)
        store_vector(static_cast<Bf16*>(p.exact_y) + row * p.dim + at, values[v]);
    } else {
      store_vector(static_cast<Bf16*>(p.y) + row * p.y_stride + at, values[v]);
    }
  }
  if constexpr (kToFp8) {
    const Fp8Scale row_scale(kRowWarps == 1 ? warp_max(largest) : block_max(largest, shared));
    auto* y = static_cast<std::uint8_t*>(p.y) + row * p.y_stride;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = (v * kLanes + lane) * kVector;
      if (at < p.dim) {
        *reinterpret_cast<uint2*>(y + at) = pack_fp8(values[v], row_scale.inverse);
      }
    }
    if (lane == 0) p.y_scales[row] = row_scale.scale;
  }
}

// Blocks: x = row, y = part of it.
__global__ void gate_kernel(GateParams p) {
  let_successor_start();
  wait_for_predecessor();
  const std::int64_t row = blockIdx.x;
  const auto* x = static_cast<const Bf16*>(p.x) + row * p.x_stride;
  auto* y = static_cast<Bf16*>(p.y) + row * p.y_stride;
  const int at = (blockIdx.y * blockDim.x + threadIdx.x) * kVector;
  if (at >= p.dim) return;
  float gate[kVector], up[kVector];
  load_vector(x + at, gate);
  load_vector(x + p.dim + at, up);
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    gate[i] = activate(p.activation, gate[i]) * (up[i] + p.up_offset);
  store_vector(y + at, gate);
}

__global__ void count_differences_kernel(const uint4* a, const uint4* b, std::int64_t num_vectors,
                                         unsigned* count) {
  let_successor_start();
  wait_for_predecessor();
  unsigned differences = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_vectors;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const uint4 x = a[i], y = b[i];
    differences += x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
  }
  if (differences > 0) atomicAdd(count, differences);
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

Status norm(Stream& stream, const NormParams& params) {
  constexpr int kMaxDim = kMaxRowWarps * kWarp * kMaxNormVectors * kVector;
  if (params.dim <= 0 || params.dim % kVector != 0 || params.dim > kMaxDim ||
      params.x_stride % kVector != 0 || params.y_stride % kVector != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "norm: the width and strides must be multiples of 8, the width at most 8192");
  }
  const unsigned per_lane = blocks_for(params.dim, kWarp * kVector);
  const int row_warps = per_lane <= kMaxNormVectors ? 1 : kMaxRowWarps;
  const unsigned blocks = blocks_for(params.num_rows, kNormWarps / row_warps);
  auto launch_rows = [&](auto kernel) {
    return launch("norm", stream, {.grid = dim3(blocks), .block = dim3(kNormWarps * kWarp)}, kernel,
                  params);
  };
  auto launch_width = [&](auto to_fp8, auto ahead) {
    constexpr bool kToFp8 = decltype(to_fp8)::value, kAhead = decltype(ahead)::value;
    if (per_lane <= 1) return launch_rows(norm_kernel<1, 1, kToFp8, kAhead>);
    if (per_lane <= 2) return launch_rows(norm_kernel<2, 1, kToFp8, kAhead>);
    if (per_lane <= 5) return launch_rows(norm_kernel<5, 1, kToFp8, kAhead>);
    if (per_lane <= 8) return launch_rows(norm_kernel<8, 1, kToFp8, kAhead>);
    return launch_rows(norm_kernel<kMaxNormVectors, kMaxRowWarps, kToFp8, kAhead>);
  };
  // Of few blocks all that counts is how long one takes.
  constexpr unsigned kFewBlocks = 256;
  const auto launch_format = [&](auto to_fp8) {
    return blocks <= kFewBlocks ? launch_width(to_fp8, std::true_type())
                                : launch_width(to_fp8, std::false_type());
  };
  return params.y_scales != nullptr ? launch_format(std::true_type())
                                    : launch_format(std::false_type());
}

Status gate(Stream& stream, const GateParams& params) {
  if (params.dim % kVector != 0 || params.x_stride % kVector != 0 ||
      params.y_stride % kVector != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "gate: the width and strides must be multiples of 8");
  }
  constexpr unsigned kGateThreads = 128;
  return launch("gate", stream,
                {.grid = dim3(static_cast<unsigned>(params.num_rows),
                              blocks_for(params.dim, kGateThreads * kVector)),
                 .block = dim3(kGateThreads)},
                gate_kernel, params);
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

Status count_differences(Stream& stream, const void* a, const void* b, std::size_t bytes,
                         unsigned* count) {
  constexpr unsigned kThreads = 256, kMaxBlocks = 1024;
  const auto vectors = static_cast<std::int64_t>(bytes / sizeof(uint4));
  return launch(
      "count_differences", stream,
      {.grid = dim3(std::min(blocks_for(vectors, kThreads), kMaxBlocks)), .block = dim3(kThreads)},
      count_differences_kernel, static_cast<const uint4*>(a), static_cast<const uint4*>(b), vectors,
      count);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
