// What becomes of the results of products in decoder_kernel.cuh.
#pragma once

#include "kernels/cuda/device/decoder_rows.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/device/warpgroup_product.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// This thread's biases of a group of tiles, whose sums it adds up: kAtOnce rows of one tile, or rows
// threadIdx.x % kTileRows of all. Asked for before the product, because they come from far away.
template <int kAtOnce>
class Biases {
  static constexpr int kCount = 4;
  static_assert(kCount == kGroupTiles && (kAtOnce == 1 || kAtOnce == kCount));

 public:
  __device__ Biases(const Bf16* bias, int first_column, int columns) {
    const int column =
        first_column + (kAtOnce == 1 ? static_cast<int>(afresh(threadIdx.x)) % kTileRows
                                     : tile_of_group_sums(threadIdx.x) * kTileRows +
                                           first_row_of_group_sums(threadIdx.x));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = column + i * (kAtOnce == 1 ? kTileRows : 1);
      values_[i] = bias != nullptr && at < columns ? bias[at] : Bf16{};
    }
  }
  // Of the tile's sum number i of those at once.
  __device__ float of(int tile, int i) const {
    if constexpr (kAtOnce > 1) return __bfloat162float(values_[i]);
    const Bf16 low = tile == 0 ? values_[0] : values_[1];
    const Bf16 high = tile == 2 ? values_[2] : values_[3];
    return __bfloat162float(tile < 2 ? low : high);
  }

 private:
  Bf16 values_[kCount];
};

__device__ __forceinline__ float gated(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// Sums of neighbouring columns of the prepared matrix that their product is part of.
template <typename S, PreparedFormat kFormat, int kRows, int kCount>
__device__ __forceinline__ void store_product(const DecoderLaunch& p, Matrix matrix, int layer,
                                              int column, int row, const float (&sums)[kCount]) {
  if (matrix == Matrix::kQkv) {
    const std::int64_t at = qkv_numbers<S>(p, row) + column;
    announce_values(qkv_of<S>(p, layer) + at, qkv_of<S>(p, layer + 1) + at, sums);
  } else if (is_inner(matrix)) {
    const auto wide = wide_of<S, kFormat, kRows>(p, layer);
    if constexpr (S::kIsSequential) {
      // Rows of gate and up alternate. A single sum is gated already.
      const DecoderSizes sizes = sizes_of<S>(p);
      const int at = sizes.q_width + (column - sizes.qkv_width) / 2;
      if constexpr (kCount == 1) {
        wide.store(row, at, sums[0]);
      } else {
        wide.store_pair(row, at, gated(sums[0], sums[1]), gated(sums[2], sums[3]));
      }
    } else if constexpr (kCount == 1) {
      wide.store(row, column - 2 * p.dim, gelu_tanh(sums[0]));
    } else {
      wide.store_four(
          row, column - 2 * p.dim,
          {gelu_tanh(sums[0]), gelu_tanh(sums[1]), gelu_tanh(sums[2]), gelu_tanh(sums[3])});
    }
  } else {
    float* to = p.logits + std::int64_t{row} * p.vocab + column;
    if (kCount == 4 && p.vocab % 4 == 0) {
      if (column < p.vocab) {
        *reinterpret_cast<float4*>(to) =
            float4{sums[0], sums[1 % kCount], sums[2 % kCount], sums[3 % kCount]};
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (column + i < p.vocab) to[i] = sums[i];
    }
  }
}

// A gate and what it gates lie in neighbouring lanes' sums. The gate's lane gets what goes into the last product.
__device__ __forceinline__ float gate_with_neighbour(float sum) {
  return gated(sum, __shfl_xor_sync(kFullWarp, sum, 1));
}

// Of a decoder with experts: a dense layer's share of a sum lies where a layer with experts has the one of an expert; those of further
// experts are zeros.
template <int kRows>
__device__ __forceinline__ void announce_dense(const DecoderLaunch& p, int layer, int rank, int row,
                                               int column, float sum) {
  for (int at = rank; at < p.experts.experts_per_token; at += kDecoderColumnRanks) {
    announce_value(ff_sums_of<kRows>(p, layer, at, row, column),
                   ff_sums_of<kRows>(p, layer + 1, at, row, column), at == rank ? sum : 0.0f);
  }
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
