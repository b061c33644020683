// The decoder's blocks as a sequence of ops: what every backend can do, and what a backend's own
// version must agree with.
#include "kernels/kernels.h"

namespace gapless {
namespace {

class ComposedBlocks {
 public:
  ComposedBlocks(Kernels& kernels, Stream& stream, const DecoderBlocksParams& params)
      : kernels_(kernels), stream_(stream), p_(params), dim_(params.blocks[0].qkv.in) {}

  Status run_block(const DecoderBlock& block) const {
    GAPLESS_RETURN_IF_ERROR(layer_norm(block.gamma, block.beta, p_.norm));
    GAPLESS_RETURN_IF_ERROR(kernels_.linear(stream_, linear(p_.norm, block.qkv, p_.qkv)));
    GAPLESS_RETURN_IF_ERROR(run_attention(block));
    // A prefill's residual goes back and forth between x and the place of qkv: a product of many
    // rows whose output is its own residual costs the backend a copy.
    void* const after_attention = p_.decode ? p_.x : p_.qkv;
    GAPLESS_RETURN_IF_ERROR(kernels_.linear(
        stream_, residual_linear(p_.attention, block.proj, p_.x, after_attention)));
    LinearParams fc1 = linear(p_.norm, block.fc1, p_.inner);
    fc1.activation = Activation::kGeluTanh;
    GAPLESS_RETURN_IF_ERROR(kernels_.linear(stream_, fc1));
    return kernels_.linear(stream_,
                           residual_linear(p_.inner, block.fc2, after_attention, p_.x));
  }

  Status run_head(const DecoderHead& head) const {
    GAPLESS_RETURN_IF_ERROR(layer_norm(head.gamma, head.beta, head.norm));
    LinearParams params = linear(head.norm, head.linear, head.logits);
    params.y_dtype = DType::kF32;
    params.decode = true;
    return kernels_.linear(stream_, params);
  }

 private:
  Status layer_norm(const void* gamma, const void* beta, void* y) const {
    return kernels_.layer_norm(stream_, {.x = p_.x,
                                         .x_stride = dim_,
                                         .gamma = gamma,
                                         .beta = beta,
                                         .y = y,
                                         .y_stride = dim_,
                                         .num_rows = p_.num_tokens,
                                         .dim = dim_});
  }

  LinearParams linear(const void* x, const LinearWeights& weights, void* y) const {
    return {.x = x,
            .x_stride = weights.in,
            .weights = weights,
            .y = y,
            .y_stride = weights.out,
            .y_dtype = kernels_.activation_dtype(),
            .num_rows = p_.num_tokens,
            .decode = p_.decode};
  }

  // y = input W^T + b + x.
  LinearParams residual_linear(const void* input, const LinearWeights& weights, const void* x,
                               void* y) const {
    LinearParams params = linear(input, weights, y);
    params.residual = x;
    params.residual_stride = weights.out;
    params.residual_rows = p_.num_tokens;
    return params;
  }

  // Rotates and caches queries, keys and values, then attends.
  Status run_attention(const DecoderBlock& block) const {
    const std::int64_t qkv_stride = 3 * std::int64_t{dim_};
    GAPLESS_RETURN_IF_ERROR(kernels_.rope_and_cache(stream_, {.qkv = p_.qkv,
                                                              .qkv_stride = qkv_stride,
                                                              .positions = p_.positions,
                                                              .cache_slots = p_.cache_slots,
                                                              .rope_table = p_.rope_table,
                                                              .kv = block.kv,
                                                              .num_tokens = p_.num_tokens,
                                                              .num_heads = p_.num_heads,
                                                              .head_dim = p_.head_dim,
                                                              .rotary_dim = p_.rotary_dim}));
    return kernels_.paged_attention(stream_, {.qkv = p_.qkv,
                                              .qkv_stride = qkv_stride,
                                              .out = p_.attention,
                                              .out_stride = dim_,
                                              .kv = block.kv,
                                              .page_table = p_.page_table,
                                              .page_table_stride = p_.page_table_stride,
                                              .sequences = p_.sequences,
                                              .num_sequences = p_.num_sequences,
                                              .num_tokens = p_.num_tokens,
                                              .max_new_tokens = p_.max_new_tokens,
                                              .max_context = p_.max_context,
                                              .num_heads = p_.num_heads,
                                              .head_dim = p_.head_dim,
                                              .scratch = p_.attention_scratch});
  }

  Kernels& kernels_;
  Stream& stream_;
  const DecoderBlocksParams& p_;
  const int dim_;
};

}  // namespace

Status Kernels::decoder_blocks(Stream& stream, const DecoderBlocksParams& params) {
  if (params.num_blocks == 0) return ok_status();
  const ComposedBlocks blocks(*this, stream, params);
  for (int i = 0; i < params.num_blocks; ++i) {
    GAPLESS_RETURN_IF_ERROR(blocks.run_block(params.blocks[i]));
  }
  return params.head == nullptr ? ok_status() : blocks.run_head(*params.head);
}

}  // namespace gapless
