#include "kernels/one_launch_decoder.h"

#include <utility>

namespace gapless {
namespace {

using Limits = OneLaunchDecoder;

template <typename... Args>
Status no(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}

Status check_block(const DecoderBlock& block, const DecoderBlock& first) {
  if (block.residual != Residual::kParallel) return no("its blocks are sequential");
  if (block.norm.kind != NormKind::kLayer) return no("its norms are RMS norms");
  if (block.head_scales.alpha != nullptr) return no("its query and value heads are scaled (tau)");
  if (block.q_norm.gamma != nullptr || block.k_norm.gamma != nullptr) {
    return no("its query and key heads are normalised");
  }
  if (block.ff.kind == FeedForwardKind::kExperts) return no("its feed-forward has experts");
  if (block.ff.kind != FeedForwardKind::kDense) return no("its feed-forward is gated");
  if (block.ff.activation != Activation::kGeluTanh) return no("its activation is not GELU");
  for (const LinearWeights* product : {&block.qkv, &block.proj, &block.ff.up, &block.ff.down}) {
    if (product->bias == nullptr) return no("a product has no bias");
  }
  if (block.norm.eps != first.norm.eps || block.kv.format != first.kv.format) {
    return no("its blocks differ in eps or in the format of the KV cache");
  }
  return ok_status();
}

Status check_head(const DecoderHead& head, const DecoderBlock& first) {
  if (head.norm.kind != NormKind::kLayer || head.norm.eps != first.norm.eps) {
    return no("its last norm is not the blocks' LayerNorm");
  }
  if (head.linear.bias == nullptr) return no("the product of its logits has no bias");
  return ok_status();
}

Status check_sizes(const DecoderBlocksParams& p) {
  const DecoderBlock& first = p.blocks[0];
  const AttentionHeads& heads = p.heads;
  const int dim = first.qkv.in, inner = first.ff.inner();
  if (heads.head_dim != Limits::kHeadDim) {
    return no("its heads have {} dims, not {}", heads.head_dim, Limits::kHeadDim);
  }
  if (heads.num_kv_heads != heads.num_heads) {
    return no("its {} query heads share {} key heads", heads.num_heads, heads.num_kv_heads);
  }
  if (heads.num_heads % 2 != 0) return no("it has an odd number of heads, {}", heads.num_heads);
  if (heads.q_width() != dim) {
    return no("its heads are {} wide together, the model {}", heads.q_width(), dim);
  }
  if (dim > Limits::kMaxDim) return no("it is {} wide, more than {}", dim, Limits::kMaxDim);
  for (const int width : {dim, inner}) {
    if (width % Limits::kWidthMultiple != 0) {
      return no("a width of {} is no multiple of {}", width, Limits::kWidthMultiple);
    }
  }
  if (p.rotary_dim <= 0 || p.rotary_dim > heads.head_dim ||
      p.rotary_dim % Limits::kRotaryMultiple != 0) {
    return no("{} rotary dims are no multiple of {}", p.rotary_dim, Limits::kRotaryMultiple);
  }
  if (p.max_context > Limits::kMaxContext) {
    return no("its context is {} tokens, more than {}", p.max_context, Limits::kMaxContext);
  }
  return ok_status();
}

}  // namespace

Status check_one_launch_decoder(const DecoderBlocksParams& params) {
  if (params.num_blocks < 1 || params.num_blocks > Limits::kMaxLayers) {
    return no("it has {} layers, more than {}", params.num_blocks, Limits::kMaxLayers);
  }
  for (int i = 0; i < params.num_blocks; ++i) {
    GAPLESS_RETURN_IF_ERROR(check_block(params.blocks[i], params.blocks[0]));
  }
  if (params.head != nullptr) GAPLESS_RETURN_IF_ERROR(check_head(*params.head, params.blocks[0]));
  return check_sizes(params);
}

}  // namespace gapless
