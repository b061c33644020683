// What becomes of the results of products in decoder_kernel.cuh.
#pragma once

#include "kernels/cuda/device/decoder_rows.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/self_announcing.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// This thread's biases of a group of tiles: it reduces rows threadIdx.x % kTileRows of them. Asked
// for before the product, because they come from far away.
class Biases {
 public:
  __device__ Biases(const Bf16* bias, int first_column, int columns) {
    const int column = first_column + static_cast<int>(threadIdx.x) % kTileRows;
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      const bool exists = bias != nullptr && column + tile * kTileRows < columns;
      values_[tile] = exists ? bias[column + tile * kTileRows] : Bf16{};
    }
  }
  __device__ float operator[](int tile) const {
    static_assert(kGroupTiles == 4);
    const Bf16 low = tile == 0 ? values_[0] : values_[1];
    const Bf16 high = tile == 2 ? values_[2] : values_[3];
    return __bfloat162float(tile < 2 ? low : high);
  }

 private:
  Bf16 values_[kGroupTiles];
};

// A column of the prepared matrix that its product is part of.
template <typename S, PreparedFormat kFormat, int kRows>
__device__ __forceinline__ void store_product(const DecoderLaunch& p, Matrix matrix, int layer,
                                              int column, int row, float sum) {
  if (matrix == Matrix::kQkv) {
    const std::int64_t at = qkv_numbers<S>(p, row) + column;
    announce_value(qkv_of<S>(p, layer) + at, qkv_of<S>(p, layer + 1) + at,
                   __float2bfloat16_rn(sum));
  } else if (matrix == Matrix::kInner) {
    const Activations<kFormat, kRows> wide = wide_of<S, kFormat, kRows>(p, layer);
    if constexpr (S::kIsSequential) {
      // Gated already.
      const DecoderSizes sizes = sizes_of<S>(p);
      wide.store(row, sizes.q_width + (column - sizes.qkv_width) / 2, sum);
    } else {
      wide.store(row, column - 2 * p.dim, gelu_tanh(sum));
    }
  } else if (column < p.vocab) {
    p.logits[std::int64_t{row} * p.vocab + column] = sum;
  }
}

// Rows of gate and up alternate in the prepared matrix, and lie in neighbouring lanes' sums. The gate's lane gets what
// goes into the last product.
__device__ __forceinline__ float gate_with_neighbour(float sum) {
  const float up = __shfl_xor_sync(kFullWarp, sum, 1);
  return sum / (1.0f + __expf(-sum)) * up;
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
