// The decoder's blocks as a sequence of ops: what every backend can do, and what a backend's own
// version must agree with.
#include "kernels/dense_ops.h"
#include "kernels/kernels.h"

namespace gapless {
namespace {

class ComposedBlocks {
 public:
  ComposedBlocks(Kernels& kernels, Stream& stream, const DecoderBlocksParams& params)
      : kernels_(kernels), stream_(stream), p_(params), dim_(params.blocks[0].qkv.in) {}

  Status run_block(const DecoderBlock& block) const {
    // qkv and fc1 read the same rows: both in 8 bits or neither.
    const bool norm_is_fp8 = !p_.decode && block.qkv.fp8 != nullptr && block.fc1.fp8 != nullptr;
    LayerNormParams norm =
        dense_layer_norm(p_.x, block.gamma, block.beta, p_.norm, dim_, p_.num_tokens);
    if (norm_is_fp8) norm = with_fp8_output(kernels_, norm, p_.row_scales);
    GAPLESS_RETURN_IF_ERROR(kernels_.layer_norm(stream_, norm));
    GAPLESS_RETURN_IF_ERROR(
        linear(dense_linear(kernels_, p_.norm, block.qkv, p_.qkv, p_.num_tokens), norm_is_fp8));
    GAPLESS_RETURN_IF_ERROR(run_attention(block));
    // A prefill's residual goes back and forth between x and the place of qkv: a product of many
    // rows whose output is its own residual costs the backend a copy.
    void* const after_attention = p_.decode ? p_.x : p_.qkv;
    GAPLESS_RETURN_IF_ERROR(linear(
        residual_linear(kernels_, p_.attention, block.proj, p_.x, after_attention, p_.num_tokens)));
    LinearParams fc1 = dense_linear(kernels_, p_.norm, block.fc1, p_.inner, p_.num_tokens);
    fc1.activation = Activation::kGeluTanh;
    GAPLESS_RETURN_IF_ERROR(linear(fc1, norm_is_fp8));
    const bool inner_is_fp8 = !p_.decode && block.fc2.fp8 != nullptr;
    if (inner_is_fp8) {
      GAPLESS_RETURN_IF_ERROR(kernels_.rows_to_fp8(
          stream_,
          in_place_rows_to_fp8(kernels_, p_.inner, block.fc2.in, p_.row_scales, p_.num_tokens)));
    }
    return linear(
        residual_linear(kernels_, p_.inner, block.fc2, after_attention, p_.x, p_.num_tokens),
        inner_is_fp8);
  }

  Status run_head(const DecoderHead& head) const {
    GAPLESS_RETURN_IF_ERROR(kernels_.layer_norm(
        stream_, dense_layer_norm(p_.x, head.gamma, head.beta, head.norm, dim_, p_.num_tokens)));
    LinearParams params =
        dense_linear(kernels_, head.norm, head.linear, head.logits, p_.num_tokens);
    params.y_dtype = DType::kF32;
    params.decode = true;
    return kernels_.linear(stream_, params);
  }

 private:
  Status linear(LinearParams params, bool input_is_fp8 = false) const {
    params.decode = p_.decode;
    if (input_is_fp8) params = with_fp8_input(kernels_, params, p_.row_scales);
    return kernels_.linear(stream_, params);
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
