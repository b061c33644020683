// Input embeddings: table rows, and the encoders of coordinates and sizes.
#include "kernels/coordinate_bin.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxFeatures = 2048;
// A decode step has few tokens, and an encoder's 1 MB of weights per token wants many blocks; a
// prefill has many tokens, nearly all of them copies. The slicing does not change any sum.
constexpr int kFewTokens = 64;
constexpr int kFewTokensSlice = 64;
// Of the encoder, that a warp makes at a time. More registers, so fewer blocks: a prefill has none to spare.
constexpr int kFewTokensOutputs = 8;

// cos and sin of (2 pi v) W, all cosines first, every step rounded to bf16 as the published
// reference does (with larger z the rounding moves the phase, so it is part of the function).
__device__ void fourier_features(const TokenInput& input, const Bf16* frequencies, int num_features,
                                 Bf16* features) {
  constexpr float kTwoPi = 6.283185307179586f;
  const int half = num_features / 2;
  const bool is_size = input.kind == InputKind::kSize;
  const float x = round_to_bf16(kTwoPi * round_to_bf16(input.x));
  const float y = round_to_bf16(kTwoPi * round_to_bf16(input.y));
  for (int j = threadIdx.x; j < half; j += blockDim.x) {
    float z = x * __bfloat162float(frequencies[j]);
    if (is_size) z += y * __bfloat162float(frequencies[half + j]);
    z = round_to_bf16(z);
    features[j] = __float2bfloat16_rn(cosf(z));
    features[half + j] = __float2bfloat16_rn(sinf(z));
  }
}

// A warp for kOutputs outputs of the encoder at a time, whose weights are asked for together.
template <int kOutputs>
__device__ void encode(const LinearWeights& encoder, const Bf16* features, Bf16* out, int begin,
                       int end) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto* weight = static_cast<const Bf16*>(encoder.weight);
  const auto* bias = static_cast<const Bf16*>(encoder.bias);
  for (int first = begin + warp * kOutputs; first < end; first += kThreads / kWarp * kOutputs) {
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
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      float sum = warp_sum(sums[n]);
      const int o = first + n;
      if (lane != 0 || o >= end) continue;
      if (bias != nullptr) sum += __bfloat162float(bias[o]);
      out[o] = __float2bfloat16_rn(sum);
    }
  }
}

// Into the second-level cache.
__device__ __forceinline__ void prefetch_to_cache(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// The size encoder of Moondream 2 is 2 MB that no other kernel of a step reads. When a row wants it, the decoder's first weights are on
// their way already, and what memory then sends comes behind them.
__device__ void prefetch_size_encoder(const RegionEncoderWeights& region, int begin, int end) {
  const LinearWeights& encoder = region.size_encoder;
  const auto prefetch = [](const void* from, int elements) {
    constexpr int kLine = 128 / sizeof(Bf16);
    for (int i = threadIdx.x * kLine; i < elements; i += kThreads * kLine) {
      prefetch_to_cache(static_cast<const Bf16*>(from) + i);
    }
  };
  if (encoder.weight == nullptr) return;
  const auto* weight = static_cast<const Bf16*>(encoder.weight);
  prefetch(weight + std::int64_t{begin} * encoder.in, (end - begin) * encoder.in);
  if (begin == 0) prefetch(region.size_features, encoder.in);
}

// A block per token and slice of the width.
template <int kOutputs>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedParams p, int slice) {
  __shared__ alignas(16) Bf16 features[kMaxFeatures];
  let_successor_start();
  const int begin = blockIdx.y * slice, end = min(begin + slice, p.dim);
  // Of a decode step, while the kernel before this one still runs.
  if (kPath.has_copy_engine && p.index != nullptr && blockIdx.x == 0) {
    prefetch_size_encoder(p.region, begin, end);
  }
  wait_for_predecessor();
  const std::int64_t token = blockIdx.x;
  const std::int64_t index = p.index != nullptr ? p.index[token] : token;
  Bf16* out = static_cast<Bf16*>(p.out) + token * p.dim;
  if (index < 0) {
    for (int d = begin + threadIdx.x * kVector; d < end; d += kThreads * kVector) {
      *reinterpret_cast<uint4*>(out + d) = uint4{};
    }
    return;
  }
  const auto& input = *reinterpret_cast<const TokenInput*>(reinterpret_cast<const char*>(p.inputs) +
                                                           index * p.input_stride_bytes);

  const int bin = input.kind == InputKind::kCoord && p.region.coord_table != nullptr
                      ? bin_of_coordinate(input.x, p.region.num_bins, p.region.coord_divisor)
                      : -1;
  if (bin < 0 && (input.kind == InputKind::kCoord || input.kind == InputKind::kSize)) {
    const bool is_size = input.kind == InputKind::kSize;
    const LinearWeights& encoder = is_size ? p.region.size_encoder : p.region.coord_encoder;
    const void* frequencies = is_size ? p.region.size_features : p.region.coord_features;
    fourier_features(input, static_cast<const Bf16*>(frequencies), encoder.in, features);
    __syncthreads();
    encode<kOutputs>(encoder, features, out, begin, end);
    return;
  }
  const bool is_image = input.kind == InputKind::kImage;
  const bool is_known = is_image || (input.id >= 0 && input.id < p.vocab);
  const std::int64_t id = bin >= 0 ? bin : is_known ? input.id : 0;
  const auto* table = static_cast<const Bf16*>(bin >= 0   ? p.region.coord_table
                                               : is_image ? p.image_embeddings
                                                          : p.wte);
  for (int d = begin + threadIdx.x * kVector; d < end; d += kThreads * kVector) {
    *reinterpret_cast<uint4*>(out + d) = *reinterpret_cast<const uint4*>(table + id * p.dim + d);
  }
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
  const bool few = params.num_tokens <= kFewTokens;
  const int slice = few ? kFewTokensSlice : params.dim;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(params.num_tokens), blocks_for(params.dim, slice)),
      .block = dim3(kThreads)};
  return few ? launch("embed", stream, shape, embed_kernel<kFewTokensOutputs>, params, slice)
             : launch("embed", stream, shape, embed_kernel<4>, params, slice);
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
