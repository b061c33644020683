// What computing warps of decoder_kernel.cuh tell others and wait for, where a layer's values lie, and the
// rows of the residual stream.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/barriers.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/copies.cuh"
#include "kernels/cuda/device/decoder_block.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/device/warpgroup_product.cuh"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {

// Every thread of theirs, after it wrote a value in a layer.
template <typename S, Value kValue, int kRows>
__device__ __forceinline__ void announce(const DecoderBlockState<S>& block, int layer) {
  if (!block.template counts<kValue, kXFromMemory<kRows>>(layer)) return;
  // The others are read by loads.
  using Of = ScheduleOf<S>;
  if (!kXFromMemory<kRows> && Of::in(Of::kActivations, kValue)) publish_to_copy_engine();
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(block.written(kValue));
}

// All of them, for a value that a layer reads, as far as its counter tells them.
template <typename S, Value kValue, int kRows>
__device__ __forceinline__ void wait_for(const DecoderBlockState<S>& block, int layer) {
  if constexpr (kValue != Value::kNone) {
    if (!ScheduleOf<S>::template computing_waits<kValue, kXFromMemory<kRows>>(layer)) return;
    if (threadIdx.x == 0) {
      wait_for_count(block.counter(kValue), block.template count_of<kValue>(layer));
    }
    named_barrier(1, kProductThreads);
  }
}

__device__ __forceinline__ bool has_experts(const DecoderLaunch& p, int layer) {
  return layer >= p.experts.first_with_experts;
}
// Until this block's route warp has read whom the rows of a layer with experts chose; and until the route is there.
__device__ __forceinline__ void wait_for_choices(const DecoderBlockState<ExpertsDecoder>& block,
                                                 int layer) {
  wait_barrier(shared_address(&block.small.experts.choices_read),
               (layer - block.p.experts.first_with_experts) & 1);
}
__device__ __forceinline__ void wait_for_route(const DecoderBlockState<ExpertsDecoder>& block,
                                               int layer) {
  wait_barrier(shared_address(&block.small.experts.route_ready),
               (layer - block.p.experts.first_with_experts) & 1);
}

template <Value kSums, int kRows>
__device__ float* sums_of(const DecoderLaunch& p, int layer, int rank, int row, int column) {
  static_assert(kSums == Value::kSums || kSums == Value::kFfSums);
  float* sums = kSums == Value::kSums ? p.sums : p.sequential.ff_sums;
  return sums + (std::int64_t{layer % 2 * kDecoderColumnRanks + rank} * kRows + row) * p.dim +
         column;
}

template <typename S, PreparedFormat kFormat, int kRows>
__device__ ActivationsOf<S, kFormat, kRows> norm_of(const DecoderLaunch& p, int layer) {
  return {p.norm, p.dim, layer};
}

template <PreparedFormat kFormat, int kRows>
__device__ ActivationsOf<SequentialDecoder, kFormat, kRows> ff_norm_of(const DecoderLaunch& p,
                                                                       int layer) {
  return {p.sequential.ff_norm, p.dim, layer};
}

template <typename S, PreparedFormat kFormat, int kRows>
__device__ ActivationsOf<S, kFormat, kRows> wide_of(const DecoderLaunch& p, int layer) {
  return {p.wide, sizes_of<S>(p).q_width + p.ff_dim, layer};
}

// Of a decoder with experts: what is added up to a row's residual stream behind the feed-forward, of an expert by its rank.
template <int kRows>
__device__ float* ff_sums_of(const DecoderLaunch& p, int layer, int rank, int row, int column) {
  return p.experts.ff_sums +
         (std::int64_t{layer % 2 * kRouteChoices + rank} * kRows + row) * p.dim + column;
}

// Numbers in q, k and v of so many rows.
template <typename S>
__device__ inline std::int64_t qkv_numbers(const DecoderLaunch& p, std::int64_t num_rows) {
  if constexpr (S::kIsSequential) return num_rows * sizes_of<S>(p).qkv_width;
  return num_rows * 3 * p.dim;
}

// The q, k and v that a layer makes of all rows.
template <typename S>
__device__ inline Bf16* qkv_of(const DecoderLaunch& p, int layer) {
  return p.qkv + qkv_numbers<S>(p, std::int64_t{layer % 2} * p.num_rows);
}

// The LayerNorm of a row that the layer reads, of which each thread has eight columns from `at` on if they are `mine`, otherwise
// zeros.
template <PreparedFormat kFormat, int kRows, typename S>
__device__ __forceinline__ void store_layer_norm(const DecoderBlockState<S>& block,
                                                 const float (&values)[kVector],
                                                 const uint4& raw_gamma, const uint4& raw_beta,
                                                 bool mine, int at, int row, int layer) {
  const DecoderLaunch& p = block.p;
  float sum = 0, squares = 0, g[kVector], b[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += values[i];
  const float mean = product_block_sum(sum, block.small.norm) / p.dim;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float difference = values[i] - mean;
    if (mine) squares += difference * difference;
  }
  const float scale = rsqrtf(product_block_sum(squares, block.small.norm) / p.dim + p.eps);
  unpack(raw_gamma, g);
  unpack(raw_beta, b);
  const auto norm = norm_of<S, kFormat, kRows>(p, layer);
  float normed[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) normed[i] = (values[i] - mean) * scale * g[i] + b[i];
  if (mine) norm.store_eight(row, at, normed);
}

// Residual stream and LayerNorm of one of this block's rows, behind the output product of a layer, whose
// sums are kSums; in layer -1 there is none. No LayerNorm where nobody reads it.
template <PreparedFormat kFormat, int kRows, Value kSums>
__device__ void finish_row(const DecoderBlockState<ParallelDecoder>& block, int layer, int row) {
  const DecoderLaunch& p = block.p;
  const bool is_last = layer + 1 == p.num_layers;
  const Bf16* gamma = is_last ? p.head_gamma : p.layers[layer + 1].gamma;
  const Bf16* beta = is_last ? p.head_beta : p.layers[layer + 1].beta;
  const int at = afresh(threadIdx.x) * kVector;
  const bool mine = at < p.dim;
  auto load = [&](const Bf16* from) {
    return mine && from != nullptr ? __ldcg(reinterpret_cast<const uint4*>(from + at)) : uint4{};
  };
  // Asked for before the wait: parameters come from far away.
  Bf16* x = p.x + std::int64_t{row} * p.dim;
  const uint4 raw_x = load(x), raw_gamma = load(gamma), raw_beta = load(beta);
  float values[kVector];
  unpack(raw_x, values);
  if (layer >= 0) {
    const uint4 raw_proj = load(p.layers[layer].proj_bias);
    const uint4 raw_fc2 = load(p.layers[layer].fc2_bias);
    wait_for<ParallelDecoder, kSums, kRows>(block, layer);
    float sums[kVector] = {}, proj[kVector], fc2[kVector];
    if (mine) {
      constexpr int kPieces = kDecoderColumnRanks * 2;
      const float* from[kPieces];
      uint4 pieces[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        from[i] = sums_of<Value::kSums, kRows>(p, layer, i / 2, row, at + i % 2 * 4);
      load_when_written(from, pieces);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        float* to = sums + i % 2 * 4;
        to[0] += __uint_as_float(pieces[i].x);
        to[1] += __uint_as_float(pieces[i].y);
        to[2] += __uint_as_float(pieces[i].z);
        to[3] += __uint_as_float(pieces[i].w);
      }
    }
    unpack(raw_proj, proj);
    unpack(raw_fc2, fc2);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += sums[i] + (proj[i] + fc2[i]);
    const uint4 rounded = pack(values);
    if (mine) *reinterpret_cast<uint4*>(x + at) = rounded;
    unpack(rounded, values);
  }
  if (gamma == nullptr) return;
  store_layer_norm<kFormat, kRows>(block, values, raw_gamma, raw_beta, mine, at, row, layer + 1);
}

// The same in a decoder with experts, behind a layer's two products into the residual stream; kBehindLayer: there is such a layer.
template <PreparedFormat kFormat, int kRows, bool kBehindLayer>
__device__ void finish_row(const DecoderBlockState<ExpertsDecoder>& block, int layer, int row) {
  const DecoderLaunch& p = block.p;
  const bool is_last = layer + 1 == p.num_layers;
  const Bf16* gamma = is_last ? p.head_gamma : p.layers[layer + 1].gamma;
  const Bf16* beta = is_last ? p.head_beta : p.layers[layer + 1].beta;
  const int at = always_afresh(threadIdx.x) * kVector;
  const bool mine = at < p.dim;
  const auto load = [&](const Bf16* from) {
    return mine && from != nullptr ? __ldcg(reinterpret_cast<const uint4*>(from + at)) : uint4{};
  };
  // Asked for before the wait: parameters come from far away.
  Bf16* x = p.x + std::int64_t{row} * p.dim;
  const uint4 raw_x = load(x), raw_gamma = load(gamma), raw_beta = load(beta);
  float values[kVector];
  unpack(raw_x, values);
  if constexpr (kBehindLayer) {
    const uint4 raw_proj = load(p.layers[layer].proj_bias);
    const uint4 raw_fc2 = load(p.layers[layer].fc2_bias);
    wait_for<ExpertsDecoder, Value::kSums, kRows>(block, layer);
    wait_for<ExpertsDecoder, Value::kFfSums, kRows>(block, layer);
    float sums[kVector] = {};
    // Those of `count` ranks, in order.
    const auto add = [&](auto most, int count, const auto& sums_at) {
      constexpr int kPieces = decltype(most)::value * 2;
      uint4 pieces[kPieces];
      std::uint32_t largest;
      do {
        largest = 0;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          pieces[i] = i / 2 < count ? load_announced(sums_at(i / 2) + i % 2 * 4) : uint4{};
        }
#pragma unroll
        for (const uint4& piece : pieces) {
          largest = max(largest, max(max(piece.x, piece.y), max(piece.z, piece.w)));
        }
        // No word is larger than that.
      } while (largest == kNotWritten);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        float* to = sums + i % 2 * 4;
        to[0] += __uint_as_float(pieces[i].x);
        to[1] += __uint_as_float(pieces[i].y);
        to[2] += __uint_as_float(pieces[i].z);
        to[3] += __uint_as_float(pieces[i].w);
      }
    };
    // A row that is done has no experts: nobody writes their sums.
    const bool has_ff = !has_experts(p, layer) || block.small.rows.num_keys[row] > 0;
    if (mine) {
      add(std::integral_constant<int, kDecoderColumnRanks>(), kDecoderColumnRanks,
          [&](int rank) { return sums_of<Value::kSums, kRows>(p, layer, rank, row, at); });
      add(std::integral_constant<int, kRouteChoices>(), has_ff ? p.experts.experts_per_token : 0,
          [&](int rank) { return ff_sums_of<kRows>(p, layer, rank, row, at); });
    }
    float proj[kVector], fc2[kVector];
    unpack(raw_proj, proj);
    unpack(raw_fc2, fc2);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += sums[i] + (proj[i] + fc2[i]);
    const uint4 rounded = pack(values);
    if (mine) *reinterpret_cast<uint4*>(x + at) = rounded;
    unpack(rounded, values);
  }
  if (gamma == nullptr) return;
  store_layer_norm<kFormat, kRows>(block, values, raw_gamma, raw_beta, mine, at, row, layer + 1);
}

// The same in a sequential decoder: the residual stream and RMS norm of one of this block's rows, behind one of
// a layer's two output products, whose sums are kSums; in layer -1 behind none.
template <PreparedFormat kFormat, int kRows, Value kSums>
__device__ void finish_row(const DecoderBlockState<SequentialDecoder>& block, int layer, int row) {
  constexpr int kVectors = SequentialDecoder::kNormVectors;
  constexpr bool kBeforeFf = kSums == Value::kSums;
  const DecoderLaunch& p = block.p;
  const Bf16* gamma = kBeforeFf                   ? p.sequential.layers[layer].ff_gamma
                      : layer + 1 == p.num_layers ? p.head_gamma
                                                  : p.layers[layer + 1].gamma;
  // A thread without columns of its own reads those of another, for nothing: loads without conditions stay
  // together.
  int at[kVectors];
  bool mine[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int own = (afresh(threadIdx.x) + v * kProductThreads) * kVector;
    mine[v] = own < p.dim;
    at[v] = mine[v] ? own : 0;
  }
  Bf16* const kept_x = p.x + std::int64_t{row} * p.dim;
  const auto x_of_row = [&] {
    return kHasRegisterExchange ? kept_x : p.x + std::int64_t{afresh(row)} * p.dim;
  };
  // Asked for before the wait: parameters come from far away.
  uint4 raw_x[kVectors], raw_gamma[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    raw_x[v] = __ldcg(reinterpret_cast<const uint4*>(x_of_row() + at[v]));
    raw_gamma[v] =
        gamma != nullptr ? __ldcg(reinterpret_cast<const uint4*>(gamma + at[v])) : uint4{};
  }
  float values[kVectors][kVector];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) unpack(raw_x[v], values[v]);
  if constexpr (kSums != Value::kNone) {
    wait_for<SequentialDecoder, kSums, kRows>(block, layer);
    constexpr int kPieces = kDecoderColumnRanks * 2;  // of a vector
    uint4 pieces[kVectors * kPieces];
    // A thread keeps no addresses where it has too few registers.
    if constexpr (kHasRegisterExchange) {
      const float* from[kVectors * kPieces];
#pragma unroll
      for (int i = 0; i < kVectors * kPieces; ++i) {
        const int v = i / kPieces, piece = i % kPieces;
        from[i] = sums_of<kSums, kRows>(p, layer, piece / 2, row, at[v] + piece % 2 * 4);
      }
      load_when_written(from, pieces);
    } else {
      const float* const first = sums_of<kSums, kRows>(p, afresh(layer), 0, row, 0);
      load_when_written<float>(
          [&](int i) {
            const int v = i / kPieces, piece = i % kPieces;
            return first + piece / 2 * (kRows * afresh(p.dim)) + (at[v] + piece % 2 * 4);
          },
          pieces);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float sums[kVector] = {};
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint4& raw = pieces[v * kPieces + piece];
        float* to = sums + piece % 2 * 4;
        to[0] += __uint_as_float(raw.x);
        to[1] += __uint_as_float(raw.y);
        to[2] += __uint_as_float(raw.z);
        to[3] += __uint_as_float(raw.w);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[v][i] += sums[i];
      const uint4 rounded = pack(values[v]);
      if (mine[v]) *reinterpret_cast<uint4*>(x_of_row() + at[v]) = rounded;
      unpack(rounded, values[v]);
    }
  }
  if (gamma == nullptr) return;
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += mine[v] ? values[v][i] * values[v][i] : 0.0f;
  }
  const float scale = rsqrtf(product_block_sum(squares, block.small.norm) / p.dim + p.eps);
  const auto norm = kBeforeFf ? ff_norm_of<kFormat, kRows>(p, layer)
                              : norm_of<SequentialDecoder, kFormat, kRows>(p, layer + 1);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float g[kVector];
    unpack(raw_gamma[v], g);
    float normed[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) normed[i] = values[v][i] * scale * g[i];
    if (mine[v]) norm.store_eight(row, at[v], normed);
  }
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
