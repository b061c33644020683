// Input embeddings: table rows, and the encoders of coordinates and sizes.
#include <algorithm>

#include "kernels/coordinate_bin.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"
#include "kernels/large_angle.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kEmbedThreads = 128;
constexpr int kMaxFeatures = 2048;
// A prompt of few tokens may ask for an encoder's 2 MB of weights for each of them, which wants many blocks; a
// long one has many tokens, nearly all of them copies. The slicing does not change any sum.
constexpr int kFewTokens = 64;
constexpr int kFewTokensSlice = 64;
// Of the encoder, that a warp makes at a time. More registers, so fewer blocks: a prefill has none to spare.
constexpr int kFewTokensOutputs = 8;

// Of a decode step's blocks.
constexpr int kStepThreads = 512;
constexpr int kStepWarps = kStepThreads / kWarp;
constexpr int kStepSlice = 64;                         // outputs of the encoder that a block makes
constexpr int kStepOutputs = kStepSlice / kStepWarps;  // and a warp
constexpr int kStepGroups = 4;   // among whose blocks the tokens with a size are dealt
constexpr int kHeldVectors = 2;  // of one output's weights, in a lane's registers
constexpr int kHeldFeatures = kHeldVectors * kWarp * kVector;
constexpr int kCopyingThreads = kStepThreads / 2;  // the others begin to encode meanwhile
constexpr int kTokensAtOnce = 8;  // whose features a block makes before it multiplies

// cosf(z) and sinf(z) of a number in bfloat16.
__device__ CosineAndSine cosine_and_sine(float z) {
  QuarteredAngle of{z, 0};
  if (fabsf(z) >= kLargeAngle) of = quartered(z);
  // The library's code for large angles would keep an array in memory. The compiler leaves it out where it sees one value.
  asm("" : "+f"(of.angle));
  __builtin_assume(!(fabsf(of.angle) >= kLargeAngle));
  return CosineAndSine{cosf(of.angle), sinf(of.angle)}.turned(of.quarters);
}

// The j-th of cos and of sin of (2 pi v) W, all cosines first, every step rounded to bf16 as the published
// reference does (with larger z the rounding moves the phase, so it is part of the function).
template <typename Feature>
__device__ void fourier_feature(const TokenInput& input, const Bf16* frequencies, int num_features,
                                int j, Feature* features) {
  constexpr float kTwoPi = 6.283185307179586f;
  const int half = num_features / 2;
  const bool is_size = input.kind == InputKind::kSize;
  const float x = round_to_bf16(kTwoPi * round_to_bf16(input.x));
  const float y = round_to_bf16(kTwoPi * round_to_bf16(input.y));
  float z = x * __bfloat162float(frequencies[j]);
  if (is_size) z += y * __bfloat162float(frequencies[half + j]);
  z = round_to_bf16(z);
  const CosineAndSine of_z = cosine_and_sine(z);
  features[j] = Feature(__float2bfloat16_rn(of_z.cosine));
  features[half + j] = Feature(__float2bfloat16_rn(of_z.sine));
}

// All of them, by the block.
__device__ void fourier_features(const TokenInput& input, const Bf16* frequencies, int num_features,
                                 Bf16* features) {
  for (int j = threadIdx.x; j < num_features / 2; j += static_cast<int>(blockDim.x)) {
    fourier_feature(input, frequencies, num_features, j, features);
  }
}

// What the lanes of a warp have of the sums of kOutputs outputs.
template <int kOutputs>
__device__ void store_outputs(const float (&sums)[kOutputs], const Bf16* bias, Bf16* out, int first,
                              int end) {
#pragma unroll
  for (int n = 0; n < kOutputs; ++n) {
    float sum = warp_sum(sums[n]);
    const int o = first + n;
    if (threadIdx.x % kWarp != 0 || o >= end) continue;
    if (bias != nullptr) sum += __bfloat162float(bias[o]);
    out[o] = __float2bfloat16_rn(sum);
  }
}

// A warp for kOutputs outputs of the encoder at a time, whose weights are asked for together.
template <int kOutputs>
__device__ void encode(const LinearWeights& encoder, const Bf16* features, Bf16* out, int begin,
                       int end) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto* weight = static_cast<const Bf16*>(encoder.weight);
  for (int first = begin + warp * kOutputs; first < end;
       first += static_cast<int>(blockDim.x) / kWarp * kOutputs) {
    float sums[kOutputs] = {};
    for (int i = lane * kVector; i < encoder.in; i += kWarp * kVector) {
      uint4 raw[kOutputs];
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
        const std::int64_t o = min(first + n, end - 1);
        raw[n] = *reinterpret_cast<const uint4*>(weight + o * encoder.in + i);
      }
      float f[kVector];
      load_vector(features + i, f);
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
        float w[kVector];
        unpack(raw[n], w);
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[n] += w[v] * f[v];
      }
    }
    store_outputs<kOutputs>(sums, static_cast<const Bf16*>(encoder.bias), out, first, end);
  }
}

// Those of a slice of the size encoder, in a warp's registers, for features in 32 bits. The sums are those of encode.
class HeldWeights {
 public:
  // Asks for them.
  __device__ HeldWeights(const LinearWeights& encoder, int first, int end)
      : first_(first), end_(end) {
    const auto* weight = static_cast<const Bf16*>(encoder.weight);
#pragma unroll
    for (int n = 0; n < kStepOutputs; ++n) {
      const std::int64_t o = min(first + n, end - 1);
#pragma unroll
      for (int v = 0; v < kHeldVectors; ++v) {
        raw_[n][v] = feature(v) < encoder.in
                         ? *reinterpret_cast<const uint4*>(weight + o * encoder.in + feature(v))
                         : uint4{};
      }
    }
  }

  // For each of so many tokens, whose features are kHeldFeatures apart, out_of(n): where its outputs go.
  template <typename OutOf>
  __device__ void encode(const LinearWeights& encoder, const float* features, int num_tokens,
                         const OutOf& out_of) const {
    float weights[kStepOutputs][kHeldVectors][kVector];
#pragma unroll
    for (int n = 0; n < kStepOutputs; ++n) {
#pragma unroll
      for (int v = 0; v < kHeldVectors; ++v) unpack(raw_[n][v], weights[n][v]);
    }
#pragma unroll 1
    for (int token = 0; token < num_tokens; ++token) {
      float sums[kStepOutputs] = {};
#pragma unroll
      for (int v = 0; v < kHeldVectors; ++v) {
        if (feature(v) >= encoder.in) continue;
        float f[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) f[i] = features[token * kHeldFeatures + feature(v) + i];
#pragma unroll
        for (int n = 0; n < kStepOutputs; ++n) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) sums[n] += weights[n][v][i] * f[i];
        }
      }
      store(sums, static_cast<const Bf16*>(encoder.bias), out_of(token));
    }
  }

 private:
  __device__ static int feature(int v) {
    return (v * kWarp + static_cast<int>(threadIdx.x) % kWarp) * kVector;
  }

  // store_outputs with fewer exchanges: half of the warp goes on with half of the outputs, then a quarter with one. Each sum is
  // added up in the same order.
  __device__ void store(const float (&sums)[kStepOutputs], const Bf16* bias, Bf16* out) const {
    static_assert(kStepOutputs == 4);
    const int lane = threadIdx.x % kWarp;
    const bool high = (lane & 16) != 0, odd = (lane & 8) != 0;
    float of_half[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      of_half[n] = (high ? sums[2 + n] : sums[n]) +
                   __shfl_xor_sync(kFullWarp, high ? sums[n] : sums[2 + n], 16);
    }
    float sum = (odd ? of_half[1] : of_half[0]) +
                __shfl_xor_sync(kFullWarp, odd ? of_half[0] : of_half[1], 8);
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(kFullWarp, sum, offset);
    const int o = first_ + lane / 8;
    if (lane % 8 != 0 || o >= end_) return;
    if (bias != nullptr) sum += __bfloat162float(bias[o]);
    out[o] = __float2bfloat16_rn(sum);
  }

  uint4 raw_[kStepOutputs][kHeldVectors];
  int first_, end_;
};

__device__ TokenInput input_at(const EmbedParams& p, std::int64_t index) {
  return *reinterpret_cast<const TokenInput*>(reinterpret_cast<const char*>(p.inputs) +
                                              index * p.input_stride_bytes);
}

// The row of the table of coordinates that is this input's embedding; -1: none.
__device__ int row_of_coordinates(const EmbedParams& p, const TokenInput& input) {
  return input.kind == InputKind::kCoord && p.region.coord_table != nullptr
             ? bin_of_coordinate(input.x, p.region.num_bins, p.region.coord_divisor)
             : -1;
}

__device__ bool is_encoded(const TokenInput& input, int row_of_coordinates) {
  return input.kind == InputKind::kSize ||
         (input.kind == InputKind::kCoord && row_of_coordinates < 0);
}

// The encoder of a coordinate or a size, and its frequencies.
__device__ const LinearWeights& encoder_of(const EmbedParams& p, const TokenInput& input) {
  return input.kind == InputKind::kSize ? p.region.size_encoder : p.region.coord_encoder;
}
__device__ const Bf16* frequencies_of(const EmbedParams& p, const TokenInput& input) {
  return static_cast<const Bf16*>(input.kind == InputKind::kSize ? p.region.size_features
                                                                 : p.region.coord_features);
}

// This thread's part of an embedding's [begin, end), every stride-th vector: of one that is a row of a table, and of nothing.
__device__ void copy_row(const EmbedParams& p, const TokenInput& input, int row_of_coordinates,
                         Bf16* out, int begin, int end, int stride) {
  const bool is_image = input.kind == InputKind::kImage;
  const bool is_known = is_image || (input.id >= 0 && input.id < p.vocab);
  const std::int64_t id = row_of_coordinates >= 0 ? row_of_coordinates : is_known ? input.id : 0;
  const auto* table = static_cast<const Bf16*>(row_of_coordinates >= 0 ? p.region.coord_table
                                               : is_image              ? p.image_embeddings
                                                                       : p.wte);
  for (int d = begin; d < end; d += stride * kVector) {
    *reinterpret_cast<uint4*>(out + d) = *reinterpret_cast<const uint4*>(table + id * p.dim + d);
  }
}

__device__ void fill_with_zeros(Bf16* out, int begin, int end, int stride) {
  for (int d = begin; d < end; d += stride * kVector) {
    *reinterpret_cast<uint4*>(out + d) = uint4{};
  }
}

// A block per token and slice of the width. (One at least to a multiprocessor: left unsaid, code for 12.0 has registers for
// more and keeps the rest in memory.)
template <int kOutputs>
__global__ void __launch_bounds__(kEmbedThreads, 1) embed_kernel(EmbedParams p, int slice) {
  __shared__ alignas(16) Bf16 features[kMaxFeatures];
  let_successor_start();
  wait_for_predecessor();
  const int begin = blockIdx.y * slice, end = min(begin + slice, p.dim);
  const std::int64_t token = blockIdx.x;
  const std::int64_t index = p.index != nullptr ? p.index[token] : token;
  Bf16* out = static_cast<Bf16*>(p.out) + token * p.dim;
  const int first = begin + static_cast<int>(threadIdx.x) * kVector;
  if (index < 0) return fill_with_zeros(out, first, end, kEmbedThreads);
  const TokenInput input = input_at(p, index);
  const int row = row_of_coordinates(p, input);
  if (!is_encoded(input, row)) return copy_row(p, input, row, out, first, end, kEmbedThreads);
  const LinearWeights& encoder = encoder_of(p, input);
  fourier_features(input, frequencies_of(p, input), encoder.in, features);
  __syncthreads();
  encode<kOutputs>(encoder, features, out, begin, end);
}

// Tokens of a decode step that need an encoder: first those with a size, from the end the others.
struct EncodedTokens {
  int num_sizes, num_others;
  int tokens[kFewTokens];
  TokenInput inputs[kFewTokens];
};

// By a warp.
__device__ void list_encoded(const EmbedParams& p, EncodedTokens& list) {
  const int lane = threadIdx.x % kWarp;
  const unsigned before = (1u << lane) - 1;
  int num_sizes = 0, num_others = 0;
  for (int begin = 0; begin < p.num_tokens; begin += kWarp) {
    const int token = begin + lane;
    const std::int32_t index = token < p.num_tokens ? p.index[token] : -1;
    TokenInput input;
    if (index >= 0) input = input_at(p, index);
    const bool encoded = index >= 0 && is_encoded(input, row_of_coordinates(p, input));
    const bool has_size = encoded && input.kind == InputKind::kSize;
    const unsigned sizes = __ballot_sync(kFullWarp, has_size);
    const unsigned others = __ballot_sync(kFullWarp, encoded && !has_size);
    if (encoded) {
      const int at = has_size ? num_sizes + __popc(sizes & before)
                              : kFewTokens - 1 - num_others - __popc(others & before);
      list.tokens[at] = token;
      list.inputs[at] = input;
    }
    num_sizes += __popc(sizes);
    num_others += __popc(others);
  }
  if (lane == 0) {
    list.num_sizes = num_sizes;
    list.num_others = num_others;
  }
}

// A block's part of the tokens that need no encoder, by its last kCopyingThreads threads.
__device__ void copy_tokens(const EmbedParams& p) {
  const int thread = static_cast<int>(threadIdx.x) - (kStepThreads - kCopyingThreads);
  if (thread < 0) return;
  for (auto token = static_cast<int>(blockIdx.x); token < p.num_tokens;
       token += static_cast<int>(gridDim.x)) {
    const std::int32_t index = p.index[token];
    Bf16* out = static_cast<Bf16*>(p.out) + std::int64_t{token} * p.dim;
    if (index < 0) {
      fill_with_zeros(out, thread * kVector, p.dim, kCopyingThreads);
      continue;
    }
    const TokenInput input = input_at(p, index);
    const int row = row_of_coordinates(p, input);
    if (is_encoded(input, row)) continue;
    copy_row(p, input, row, out, thread * kVector, p.dim, kCopyingThreads);
  }
}

// Of a decode step: a block copies some of the tokens, and makes a slice of the outputs of those of its group that need an encoder.
//
// The size encoder of Moondream 2 is 2 MB that no other kernel of a step reads. When a token wants it, the decoder's first weights are on
// their way already, and what memory then sends comes behind them. So it is in registers before the tokens are known.
__global__ void __launch_bounds__(kStepThreads) embed_step_kernel(EmbedParams p, int num_groups) {
  __shared__ alignas(16) Bf16 frequencies[kHeldFeatures];
  __shared__ alignas(16) float features[kTokensAtOnce * kHeldFeatures];
  __shared__ alignas(8) char raw_list[sizeof(EncodedTokens)];
  auto& list = *reinterpret_cast<EncodedTokens*>(raw_list);
  let_successor_start();
  const auto block = static_cast<int>(blockIdx.x);
  const int warp = threadIdx.x / kWarp, group = block % num_groups;
  const int begin = block / num_groups * kStepSlice, end = min(begin + kStepSlice, p.dim);
  const LinearWeights& encoder = p.region.size_encoder;
  const HeldWeights weights(encoder, begin + warp * kStepOutputs, end);
  for (int i = threadIdx.x; i < encoder.in; i += kStepThreads) {
    frequencies[i] = static_cast<const Bf16*>(p.region.size_features)[i];
  }
  wait_for_predecessor();
  copy_tokens(p);
  if (warp == 0) list_encoded(p, list);
  __syncthreads();
  const auto out_of = [&p](int token) {
    return static_cast<Bf16*>(p.out) + std::int64_t{token} * p.dim;
  };
  for (int first = group; first < list.num_sizes; first += kTokensAtOnce * num_groups) {
    const int count = min(kTokensAtOnce, (list.num_sizes - first + num_groups - 1) / num_groups);
    const int half = encoder.in / 2;
    for (int i = threadIdx.x; i < count * half; i += kStepThreads) {
      const int n = i / half;
      fourier_feature(list.inputs[first + n * num_groups], frequencies, encoder.in, i % half,
                      features + n * kHeldFeatures);
    }
    __syncthreads();
    weights.encode(encoder, features, count,
                   [&](int n) { return out_of(list.tokens[first + n * num_groups]); });
    __syncthreads();
  }
  for (int i = group; i < list.num_others; i += num_groups) {
    const int at = kFewTokens - 1 - i;
    const TokenInput& input = list.inputs[at];
    auto* const other_features = reinterpret_cast<Bf16*>(features);
    static_assert(sizeof(features) >= kMaxFeatures * sizeof(Bf16));
    fourier_features(input, frequencies_of(p, input), encoder_of(p, input).in, other_features);
    __syncthreads();
    encode<kStepOutputs>(encoder_of(p, input), other_features, out_of(list.tokens[at]), begin, end);
    __syncthreads();
  }
}

// A decode step of a model whose size encoder fits into registers.
bool holds_encoder(const EmbedParams& p) {
  return p.index != nullptr && p.num_tokens <= kFewTokens &&
         p.region.size_encoder.weight != nullptr && p.region.size_encoder.in <= kHeldFeatures;
}

}  // namespace

Status embed(Stream& stream, const EmbedParams& params) {
  const LinearWeights& coord = params.region.coord_encoder;
  const LinearWeights& size = params.region.size_encoder;
  if (params.dim % kVector != 0 || coord.in % (2 * kVector) != 0 || size.in % (2 * kVector) != 0 ||
      coord.in > kMaxFeatures || size.in > kMaxFeatures) {
    return Status(
        StatusCode::kInvalidArgument,
        "embed: the width must be a multiple of 8, the Fourier features one of 16, up to 2048");
  }
  if (holds_encoder(params)) {
    const int num_groups = std::min(kStepGroups, params.num_tokens);
    const unsigned blocks = blocks_for(params.dim, kStepSlice) * static_cast<unsigned>(num_groups);
    return launch("embed", stream, {.grid = dim3(blocks), .block = dim3(kStepThreads)},
                  embed_step_kernel, params, num_groups);
  }
  const bool few = params.num_tokens <= kFewTokens;
  const int slice = few ? kFewTokensSlice : params.dim;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(params.num_tokens), blocks_for(params.dim, slice)),
      .block = dim3(kEmbedThreads)};
  return few ? launch("embed", stream, shape, embed_kernel<kFewTokensOutputs>, params, slice)
             : launch("embed", stream, shape, embed_kernel<4>, params, slice);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
