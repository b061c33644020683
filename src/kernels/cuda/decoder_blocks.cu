// The host's side of a decode step's one launch (device/decoder_kernel.cuh).
#include <algorithm>

#include "kernels/cuda/decoder_blocks.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_attention.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"

namespace gapless::cuda {

template <PreparedFormat kFormat, typename CacheElement>
Status launch_decoder_kernel(Stream& stream, const DecoderLaunch& params, int num_blocks);

namespace {

// Where the scratch's arrays lie.
struct ScratchLayout {
  std::size_t norm = 0, wide = 0, qkv = 0, sums = 0, softmax = 0, outputs = 0, total = 0;

  ScratchLayout(int max_rows, int dim, int ff_dim, int num_heads) {
    const auto rows = static_cast<std::size_t>(decoder_slice_rows(max_rows));
    const auto d = static_cast<std::size_t>(dim), f = static_cast<std::size_t>(ff_dim);
    const std::size_t parts = rows * static_cast<std::size_t>(num_heads) * kMaxUnits;
    norm = take(2 * rows * d * sizeof(Bf16));
    wide = take(2 * rows * (d + f) * sizeof(Bf16));
    qkv = take(2 * rows * 3 * d * sizeof(Bf16));
    sums = take(2 * kDecoderColumnRanks * rows * d * sizeof(float));
    softmax = take(parts * sizeof(float2));
    outputs = take(parts * kDecoderHeadDim * sizeof(float));
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = total;
    total += (bytes + 255) / 256 * 256;
    return at;
  }
};

DecoderLayer make_layer(const DecoderBlock& block) {
  return {.input_weights = static_cast<const char*>(block.prepared_in),
          .output_weights = static_cast<const char*>(block.prepared_out),
          .gamma = static_cast<const Bf16*>(block.norm.gamma),
          .beta = static_cast<const Bf16*>(block.norm.beta),
          .qkv_bias = static_cast<const Bf16*>(block.qkv.bias),
          .fc1_bias = static_cast<const Bf16*>(block.ff.up.bias),
          .proj_bias = static_cast<const Bf16*>(block.proj.bias),
          .fc2_bias = static_cast<const Bf16*>(block.ff.down.bias),
          .keys = block.kv.k,
          .values = block.kv.v};
}

template <typename... Args>
Status no(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}

}  // namespace

Status check_decoder_kernel(const DecoderBlocksParams& params, int num_multiprocessors) {
  const DecoderBlocksParams& p = params;
  if (!p.decode) return no("it is not a decode step");
  if (p.num_blocks < 1 || p.num_blocks > kMaxDecoderLayers) {
    return no("{} layers, at most {}", p.num_blocks, kMaxDecoderLayers);
  }
  const int max_rows = std::min(kMaxSeats, num_multiprocessors);
  if (p.num_tokens < 1 || p.num_tokens > max_rows || p.num_sequences != p.num_tokens) {
    return no("{} rows, at most {}", p.num_tokens, max_rows);
  }
  const DecoderBlock& first = p.blocks[0];
  const int dim = first.qkv.in, ff_dim = first.ff.up.out;
  for (int i = 0; i < p.num_blocks; ++i) {
    const DecoderBlock& b = p.blocks[i];
    if (b.residual != Residual::kParallel) return no("the blocks are sequential");
    if (b.norm.kind != NormKind::kLayer) return no("the norms are RMS norms");
    if (b.q_norm.gamma != nullptr) return no("q and k heads are normalised");
    if (b.ff.kind != FeedForwardKind::kDense || b.ff.activation != Activation::kGeluTanh) {
      return no("the feed-forward is not gelu(up), down");
    }
    if (b.prepared_in == nullptr || b.prepared_out == nullptr) return no("weights not prepared");
    if (b.prepared_format != first.prepared_format || b.kv.format != first.kv.format ||
        b.norm.eps != first.norm.eps) {
      return no("the blocks differ in format or eps");
    }
    for (const LinearWeights* w : {&b.qkv, &b.proj, &b.ff.up, &b.ff.down}) {
      if (w->bias == nullptr) return no("a product has no bias");
    }
  }
  if (p.head != nullptr && (p.head->linear.prepared == nullptr ||
                            p.head->linear.prepared_format != first.prepared_format ||
                            p.head->linear.bias == nullptr ||
                            p.head->norm.kind != NormKind::kLayer)) {
    return no("the head is not a prepared product with a bias behind a LayerNorm");
  }
  if (p.heads.head_dim != kDecoderHeadDim) {
    return no("heads of {}, not {}", p.heads.head_dim, kDecoderHeadDim);
  }
  if (p.heads.num_kv_heads != p.heads.num_heads) return no("grouped queries");
  if (p.heads.num_heads % 2 != 0 || p.heads.q_width() != dim) {
    return no("{} heads of {} in a width of {}", p.heads.num_heads, p.heads.head_dim, dim);
  }
  if (p.rotary_dim % (2 * kVector) != 0 || p.rotary_dim <= 0 || p.rotary_dim > kDecoderHeadDim) {
    return no("{} rotary dims", p.rotary_dim);
  }
  if (dim % kProductColumns != 0 || ff_dim % kProductColumns != 0 || dim > kMaxDecoderDim) {
    return no("a width of {} and {}: multiples of {}, the first at most {}", dim, ff_dim,
              kProductColumns, kMaxDecoderDim);
  }
  if (p.max_context > kMaxDecoderContext) {
    return no("a context of {}, at most {}", p.max_context, kMaxDecoderContext);
  }
  return ok_status();
}

Status decoder_blocks(Stream& stream, const DecoderBlocksParams& params, void* counters,
                      int num_multiprocessors) {
  const int dim = params.blocks[0].qkv.in, ff_dim = params.blocks[0].ff.up.out;
  const ScratchLayout layout(params.num_tokens, dim, ff_dim, params.heads.num_heads);
  auto* scratch = static_cast<char*>(params.block_scratch);
  DecoderLaunch p = {};
  p.num_layers = params.num_blocks;
  for (int i = 0; i < params.num_blocks; ++i) p.layers[i] = make_layer(params.blocks[i]);
  p.dim = dim;
  p.ff_dim = ff_dim;
  p.num_heads = params.heads.num_heads;
  p.rotary_dim = params.rotary_dim;
  p.eps = params.blocks[0].norm.eps;
  p.num_rows = params.num_tokens;
  p.x = static_cast<Bf16*>(params.x);
  p.sequences = params.sequences;
  p.rows = params.rows;
  p.row_states = params.row_states;
  p.page_table = params.page_table;
  p.page_table_stride = params.page_table_stride;
  p.rope_table = params.rope_table;
  p.norm = reinterpret_cast<Bf16*>(scratch + layout.norm);
  p.wide = reinterpret_cast<Bf16*>(scratch + layout.wide);
  p.qkv = reinterpret_cast<Bf16*>(scratch + layout.qkv);
  p.sums = reinterpret_cast<float*>(scratch + layout.sums);
  p.part_softmax = reinterpret_cast<float2*>(scratch + layout.softmax);
  p.part_outputs = reinterpret_cast<float*>(scratch + layout.outputs);
  p.counters = static_cast<DecoderCounters*>(counters);
  if (params.head != nullptr) {
    const DecoderHead& head = *params.head;
    p.head_weights = static_cast<const char*>(head.linear.prepared);
    p.head_gamma = static_cast<const Bf16*>(head.norm.gamma);
    p.head_beta = static_cast<const Bf16*>(head.norm.beta);
    p.head_bias = static_cast<const Bf16*>(head.linear.bias);
    p.logits = head.logits;
    p.vocab = head.linear.out;
  }
  const bool fp8_weights = params.blocks[0].prepared_format == PreparedFormat::kFp8;
  const bool fp8_cache = params.blocks[0].kv.format == KvFormat::kFp8;
  const auto launch_kernel = fp8_weights ? fp8_cache
                                               ? launch_decoder_kernel<PreparedFormat::kFp8, E4m3>
                                               : launch_decoder_kernel<PreparedFormat::kFp8, Bf16>
                             : fp8_cache ? launch_decoder_kernel<PreparedFormat::kNative, E4m3>
                                         : launch_decoder_kernel<PreparedFormat::kNative, Bf16>;
  return launch_kernel(stream, p, num_multiprocessors);
}

std::size_t decoder_blocks_scratch_bytes(int max_rows, int dim, int ff_dim, int num_heads) {
  return ScratchLayout(max_rows, dim, ff_dim, num_heads).total;
}

std::size_t decoder_blocks_counter_bytes() {
  return sizeof(DecoderCounters);
}

}  // namespace gapless::cuda
