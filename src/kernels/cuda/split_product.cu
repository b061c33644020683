// Parts of the sums of products with few rows of weights (split_product.h).
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/expert_product.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/split_product.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kTileRows = 16;
// Warps that have the same columns, a tile of the weights' rows each.
constexpr int kTileWarps = 4;
// Columns of a warp, whose weights it holds.
constexpr int kWarpColumns = 128;
constexpr int kWarpSteps = kWarpColumns / kStepColumns;

// A block: so many columns, of so many rows of x, by all rows of the weights.
struct FewRows {
  static constexpr int kRows = 16, kColumns = 128;
  static constexpr int kBlocks = 1;  // that a multiprocessor must hold
};
struct ManyRows {
  static constexpr int kRows = 48, kColumns = 256;
  static constexpr int kBlocks = 3;
};
template <typename Shape>
inline constexpr int kThreads = Shape::kColumns / kWarpColumns* kTileWarps* kWarp;

// gelu_tanh as x times a sigmoid: two instructions of the special function unit in place of tanhf's thirty, and five others.
// About half of the kernel's instructions are here.
__device__ __forceinline__ float quick_gelu_tanh(float x) {
  // 2^(-2 log2(e) sqrt(2 / pi) (x + 0.044715 x^3))
  constexpr float kLinear = -2.302208198f, kCubic = kLinear * 0.044715f;
  const float power = power_of_two(x * (kLinear + kCubic * (x * x)));
  return x * reciprocal(1.0f + power);
}

// Eight elements of x, activated.
__device__ __forceinline__ uint4 activate_vector(Activation activation, const uint4& raw) {
  if (activation == Activation::kNone) return raw;
  float values[kVector];
  unpack(raw, values);
  if (activation == Activation::kGeluTanh) {
#pragma unroll
    for (float& value : values) value = quick_gelu_tanh(value);
  } else {
#pragma unroll
    for (float& value : values) value = activate(activation, value);
  }
  return pack(values);
}

// Blocks: x = part of the columns, y = rows of x.
template <typename Shape>
__global__ void __launch_bounds__(kThreads<Shape>, Shape::kBlocks)
    split_product_kernel(SplitProduct p) {
  constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns;
  constexpr int kVectors = kColumns / kVector;  // of a row
  constexpr int kLoads = kRows * kVectors / kThreads<Shape>;
  // Beside weights and activations there are registers for few.
  constexpr int kLoadsAtOnce = kLoads % 3 == 0 ? 3 : kLoads;
  static_assert(kLoads * kThreads<Shape> == kRows * kVectors);
  // Rows lie 64 bytes further on in the banks than the row before (multiply_step reads 64 bytes of each of two rows).
  constexpr int kPitch = kColumns + 32;
  static_assert(kColumns * 2 % 128 == 0);
  __shared__ alignas(16) Bf16 u[kRows][kPitch];
  constexpr int kSums = kRows / 8 * 4;  // of a lane
  constexpr bool kAddsUp = kColumns > kWarpColumns;
  static_assert(!kAddsUp || kColumns == 2 * kWarpColumns);
  __shared__ float of_second[kAddsUp ? kTileWarps : 1][kAddsUp ? kSums : 1][kWarp];
  let_successor_start();
  const int begin = blockIdx.x * kColumns, first_row = blockIdx.y * kRows;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int tile_warp = warp % kTileWarps, first_column = warp / kTileWarps * kWarpColumns;
  uint4 low[kWarpSteps], high[kWarpSteps];
  const auto load_weights = [&](int tile) {
#pragma unroll
    for (int s = 0; s < kWarpSteps; ++s) {
      const int row = tile * kTileRows + lane / 4;
      const int column = begin + first_column + s * kStepColumns + lane % 4 * kVector;
      const auto load = [&](int r) {
        const bool valid = r < p.out && column < p.in;
        return valid ? *reinterpret_cast<const uint4*>(p.weights + std::int64_t{r} * p.in + column)
                     : uint4{};
      };
      low[s] = load(row), high[s] = load(row + kTileRows / 2);
    }
  };
  load_weights(tile_warp);  // no step writes them
  wait_for_predecessor();
#pragma unroll
  for (int base = 0; base < kLoads; base += kLoadsAtOnce) {
    uint4 raw[kLoadsAtOnce];
#pragma unroll
    for (int i = 0; i < kLoadsAtOnce; ++i) {
      const int at = (base + i) * kThreads<Shape> + static_cast<int>(threadIdx.x);
      const int row = first_row + at / kVectors, column = begin + at % kVectors * kVector;
      const bool valid = row < p.num_rows && column < p.in;
      raw[i] = valid ? *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + column) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoadsAtOnce; ++i) {
      const int at = (base + i) * kThreads<Shape> + static_cast<int>(threadIdx.x);
      *reinterpret_cast<uint4*>(&u[at / kVectors][at % kVectors * kVector]) =
          activate_vector(p.activation, raw[i]);
    }
  }
  __syncthreads();
  for (int first_tile = 0; first_tile * kTileRows < p.out; first_tile += kTileWarps) {
    const int tile = first_tile + tile_warp;
    if (first_tile > 0) load_weights(tile);
    float sums[kRows / 8][4] = {};
#pragma unroll
    for (int s = 0; s < kWarpSteps; ++s) {
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n) {
        const int column = first_column + s * kStepColumns + lane % 4 * kVector;
        multiply_step(sums[n], low[s], high[s],
                      *reinterpret_cast<const uint4*>(&u[n * 8 + lane / 4][column]));
      }
    }
    if constexpr (kAddsUp) {
      // The second half of the columns behind the first.
      if (first_tile > 0) __syncthreads();
      if (first_column > 0) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) of_second[tile_warp][i][lane] = sums[i / 4][i % 4];
      }
      __syncthreads();
      if (first_column > 0) continue;
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i / 4][i % 4] += of_second[tile_warp][i][lane];
    }
    const int out = tile * kTileRows + lane / 4, row = first_row + lane % 4 * 2;
    const int row_stride = static_cast<int>(gridDim.x) * p.out;
    float* const parts = p.parts + (std::int64_t{row} * gridDim.x + blockIdx.x) * p.out + out;
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int next_out = i / 2 * 8, next_row = n * 8 + i % 2;
        if (out + next_out >= p.out || row + next_row >= p.num_rows) continue;
        parts[next_row * row_stride + next_out] = sums[n][i];
      }
    }
  }
}

constexpr int kAddThreads = 128;

// Blocks: x = row, y = some of its outputs.
__global__ void __launch_bounds__(kAddThreads)
    add_parts_kernel(const float* parts, int num_parts, int out, const Bf16* bias, Bf16* y,
                     std::int64_t y_stride) {
  let_successor_start();
  wait_for_predecessor();
  const int at = blockIdx.y * kAddThreads + threadIdx.x;
  if (at >= out) return;
  const float* const own = parts + std::int64_t{blockIdx.x} * num_parts * out + at;
  float sum = 0;
#pragma unroll 8
  for (int part = 0; part < num_parts; ++part) sum += own[std::int64_t{part} * out];
  if (bias != nullptr) sum += __bfloat162float(bias[at]);
  y[blockIdx.x * y_stride + at] = __float2bfloat16_rn(sum);
}

template <typename Shape>
Status launch_split(Stream& stream, const SplitProduct& product) {
  return launch("split_product", stream,
                {.grid = dim3(blocks_for(product.in, Shape::kColumns),
                              blocks_for(product.num_rows, Shape::kRows)),
                 .block = dim3(kThreads<Shape>)},
                split_product_kernel<Shape>, product);
}

}  // namespace

int num_split_parts(int in, SplitShape shape) {
  return static_cast<int>(
      blocks_for(in, shape == SplitShape::kFewRows ? FewRows::kColumns : ManyRows::kColumns));
}

Status split_product(Stream& stream, const SplitProduct& product, SplitShape shape) {
  return shape == SplitShape::kFewRows ? launch_split<FewRows>(stream, product)
                                       : launch_split<ManyRows>(stream, product);
}

Status split_linear(Stream& stream, const LinearParams& params, float* parts) {
  const LinearWeights& w = params.weights;
  GAPLESS_RETURN_IF_ERROR(split_product(stream,
                                        {.x = static_cast<const Bf16*>(params.x),
                                         .x_stride = params.x_stride,
                                         .num_rows = params.num_rows,
                                         .activation = Activation::kNone,
                                         .weights = static_cast<const Bf16*>(w.weight),
                                         .in = w.in,
                                         .out = w.out,
                                         .parts = parts},
                                        SplitShape::kManyRows));
  return launch(
      "add_parts", stream,
      {.grid = dim3(static_cast<unsigned>(params.num_rows), blocks_for(w.out, kAddThreads)),
       .block = dim3(kAddThreads)},
      add_parts_kernel, parts, num_split_parts(w.in, SplitShape::kManyRows), w.out,
      static_cast<const Bf16*>(w.bias), static_cast<Bf16*>(params.y), params.y_stride);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
