#include "kernels/one_launch_decoder.h"

#include <utility>

namespace gapless {
namespace {

using Limits = OneLaunchDecoder;

template <typename... Args>
Status no(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}

bool is_sequential(const DecoderBlock& block) {
  return block.residual == Residual::kSequential;
}

bool has_experts(const DecoderBlock& block) {
  return block.ff.kind == FeedForwardKind::kExperts;
}

bool scales_heads(const DecoderBlock& block) {
  return block.head_scales.alpha != nullptr;
}

// Of the lists without experts.
Status check_plain(const DecoderBlock& block) {
  if (scales_heads(block)) return no("its query and value heads are scaled (tau)");
  if (has_experts(block)) return no("its feed-forward has experts");
  return ok_status();
}

// What every block must be like, parallel or sequential.
Status check_alike(const DecoderBlock& block, const DecoderBlock& first) {
  if (block.residual != first.residual)
    return no("some of its blocks are sequential, some are not");
  if (block.norm.eps != first.norm.eps || block.kv.format != first.kv.format) {
    return no("its blocks differ in eps or in the format of the KV cache");
  }
  return ok_status();
}

Status check_experts(const FeedForward& ff) {
  using Own = Limits::Experts;
  if (ff.activation != Activation::kGeluErf || ff.up_offset != 1) {
    return no("its experts' gate is not GELU(a) * (b + 1)");
  }
  if (ff.up.bias != nullptr || ff.down.bias != nullptr) return no("its experts have biases");
  if (ff.num_experts > Own::kMaxExperts || ff.num_experts % Own::kExpertsMultiple != 0) {
    return no("it has {} experts: no multiple of {} up to {}", ff.num_experts,
              Own::kExpertsMultiple, Own::kMaxExperts);
  }
  if (ff.experts_per_token > Own::kMaxChoices ||
      ff.experts_per_token % Own::kChoicesMultiple != 0) {
    return no("a token has {} experts: no multiple of {} up to {}", ff.experts_per_token,
              Own::kChoicesMultiple, Own::kMaxChoices);
  }
  if (ff.inner() > Own::kMaxInner || ff.inner() % Limits::kWidthMultiple != 0) {
    return no("an expert's width of {} is no multiple of {} up to {}", ff.inner(),
              Limits::kWidthMultiple, Own::kMaxInner);
  }
  return ok_status();
}

// Blocks of a model whose last block has experts.
Status check_with_experts(const DecoderBlock& block, const DecoderBlock& last) {
  if (!scales_heads(block)) return no("it has experts, and heads that are not scaled");
  const HeadScales& scales = block.head_scales;
  if (scales.activation != Activation::kGeluTanh || scales.products.bias != nullptr ||
      scales.bf16_positions != last.head_scales.bf16_positions) {
    return no("its heads are scaled in another way");
  }
  const FeedForward &ff = block.ff, &experts = last.ff;
  if (!has_experts(block)) {
    if (ff.inner() != experts.inner() * experts.experts_per_token) {
      return no("its dense layers are {} wide, a token's experts {}", ff.inner(),
                experts.inner() * experts.experts_per_token);
    }
    return ok_status();
  }
  GAPLESS_RETURN_IF_ERROR(check_experts(ff));
  if (ff.num_experts != experts.num_experts || ff.inner() != experts.inner() ||
      ff.experts_per_token != experts.experts_per_token) {
    return no("its layers differ in their experts");
  }
  return ok_status();
}

Status check_parallel(const DecoderBlock& block) {
  if (block.norm.kind != NormKind::kLayer) return no("its norms are RMS norms");
  if (block.q_norm.gamma != nullptr || block.k_norm.gamma != nullptr) {
    return no("its query and key heads are normalised");
  }
  for (const LinearWeights* product : {&block.qkv, &block.proj}) {
    if (product->bias == nullptr) return no("a product has no bias");
  }
  if (has_experts(block)) return ok_status();
  if (block.ff.kind != FeedForwardKind::kDense) return no("its feed-forward is gated");
  if (block.ff.activation != Activation::kGeluTanh) return no("its activation is not GELU");
  for (const LinearWeights* product : {&block.ff.up, &block.ff.down}) {
    if (product->bias == nullptr) return no("a product has no bias");
  }
  return ok_status();
}

Status check_sequential(const DecoderBlock& block) {
  if (block.norm.kind != NormKind::kRms || block.ff_norm.kind != NormKind::kRms) {
    return no("its blocks are sequential and have other norms than RMS norms");
  }
  if (block.ff_norm.eps != block.norm.eps) return no("its norms differ in eps");
  if ((block.q_norm.gamma == nullptr) != (block.k_norm.gamma == nullptr)) {
    return no("only its query or only its key heads are normalised");
  }
  for (const NormWeights* heads : {&block.q_norm, &block.k_norm}) {
    if (heads->gamma == nullptr) continue;
    if (heads->kind != NormKind::kRms || heads->eps != block.norm.eps) {
      return no("its heads are normalised by another norm than its rows");
    }
  }
  if (block.ff.kind != FeedForwardKind::kGated) return no("its blocks are sequential, not gated");
  if (block.ff.activation != Activation::kSilu || block.ff.up_offset != 0) {
    return no("its gate is not SiLU");
  }
  for (const LinearWeights* product : {&block.qkv, &block.proj, &block.ff.up, &block.ff.down}) {
    if (product->bias != nullptr) return no("a product of its sequential blocks has a bias");
  }
  return ok_status();
}

Status check_head(const DecoderHead& head, const DecoderBlock& first) {
  if (head.norm.kind != first.norm.kind || head.norm.eps != first.norm.eps) {
    return no("its last norm is not like its blocks'");
  }
  const bool has_bias = head.linear.bias != nullptr;
  if (has_bias == is_sequential(first)) {
    return no("the product of its logits has {} bias", has_bias ? "a" : "no");
  }
  return ok_status();
}

Status check_widths(int dim, int inner, int max_dim) {
  if (dim > max_dim) return no("it is {} wide, more than {}", dim, max_dim);
  for (const int width : {dim, inner}) {
    if (width % Limits::kWidthMultiple != 0) {
      return no("a width of {} is no multiple of {}", width, Limits::kWidthMultiple);
    }
  }
  return ok_status();
}

Status check_context(int max_context, int limit) {
  if (max_context <= limit) return ok_status();
  return no("its context is {} tokens, more than {}", max_context, limit);
}

// Of parallel blocks, with experts or not.
template <typename Own>
Status check_parallel_sizes(const DecoderBlocksParams& p) {
  const DecoderBlock& first = p.blocks[0];
  const AttentionHeads& heads = p.heads;
  const int dim = first.qkv.in;
  if (heads.head_dim != Own::kHeadDim) {
    return no("its heads have {} dims, not {}", heads.head_dim, Own::kHeadDim);
  }
  if (heads.num_kv_heads != heads.num_heads) {
    return no("its {} query heads share {} key heads", heads.num_heads, heads.num_kv_heads);
  }
  if (heads.num_heads % 2 != 0) return no("it has an odd number of heads, {}", heads.num_heads);
  if (heads.q_width() != dim) {
    return no("its heads are {} wide together, the model {}", heads.q_width(), dim);
  }
  GAPLESS_RETURN_IF_ERROR(check_widths(dim, first.ff.inner(), Own::kMaxDim));
  if (p.rotary_dim <= 0 || p.rotary_dim > heads.head_dim ||
      p.rotary_dim % Own::kRotaryMultiple != 0) {
    return no("{} rotary dims are no multiple of {}", p.rotary_dim, Own::kRotaryMultiple);
  }
  return check_context(p.max_context, Own::kMaxContext);
}

Status check_sequential_sizes(const DecoderBlocksParams& p) {
  using Own = Limits::Sequential;
  const DecoderBlock& first = p.blocks[0];
  const AttentionHeads& heads = p.heads;
  if (heads.head_dim != Own::kHeadDim) {
    return no("its blocks are sequential and its heads have {} dims, not {}", heads.head_dim,
              Own::kHeadDim);
  }
  if (heads.group_size() > Own::kMaxGroup) {
    return no("{} of its query heads share a key head, more than {}", heads.group_size(),
              Own::kMaxGroup);
  }
  GAPLESS_RETURN_IF_ERROR(check_widths(first.qkv.in, first.ff.inner(), Own::kMaxDim));
  if (p.rotary_dim != heads.head_dim) {
    return no("only {} dims of its heads of {} are rotated", p.rotary_dim, heads.head_dim);
  }
  return check_context(p.max_context, Own::kMaxContext);
}

}  // namespace

Status check_one_launch_decoder(const DecoderBlocksParams& params) {
  if (params.num_blocks < 1 || params.num_blocks > Limits::kMaxLayers) {
    return no("it has {} layers, more than {}", params.num_blocks, Limits::kMaxLayers);
  }
  const DecoderBlock &first = params.blocks[0], &last = params.blocks[params.num_blocks - 1];
  const bool with_experts = has_experts(last) && !is_sequential(first);
  if (with_experts && params.num_blocks > Limits::Experts::kMaxLayers) {
    return no("it has experts and {} layers, more than {}", params.num_blocks,
              Limits::Experts::kMaxLayers);
  }
  if (with_experts && has_experts(first)) return no("its first layer has experts");
  if (with_experts && first.kv.format != KvFormat::kNative) {
    return no("it has experts and an 8-bit cache");
  }
  for (int i = 0; i < params.num_blocks; ++i) {
    const DecoderBlock& block = params.blocks[i];
    GAPLESS_RETURN_IF_ERROR(check_alike(block, first));
    GAPLESS_RETURN_IF_ERROR(with_experts ? check_with_experts(block, last) : check_plain(block));
    GAPLESS_RETURN_IF_ERROR(is_sequential(first) ? check_sequential(block) : check_parallel(block));
    if (i > 0 && has_experts(params.blocks[i - 1]) && !has_experts(block)) {
      return no("a dense layer follows one with experts");
    }
  }
  if (params.head != nullptr) GAPLESS_RETURN_IF_ERROR(check_head(*params.head, first));
  if (is_sequential(first)) return check_sequential_sizes(params);
  return with_experts ? check_parallel_sizes<Limits::Experts>(params)
                      : check_parallel_sizes<Limits::Parallel>(params);
}

}  // namespace gapless
