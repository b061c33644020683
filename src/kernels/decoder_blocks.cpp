// The decoder's blocks as a sequence of ops: what every backend can do, and what a backend's own
// version must agree with.
#include "kernels/dense_ops.h"
#include "kernels/kernels.h"
#include "kernels/restored_linear.h"

namespace gapless {
namespace {

class ComposedBlocks {
 public:
  ComposedBlocks(Kernels& kernels, Stream& stream, const DecoderBlocksParams& params)
      : kernels_(kernels), stream_(stream), p_(params), dim_(params.blocks[0].qkv.in) {}

  // All but the last block, or the last one too where all tokens' results are wanted.
  Status run_block(const DecoderBlock& block) const {
    // A prefill's residual goes back and forth between x and the place of qkv: a product of many
    // rows whose output is its own residual costs the backend a copy.
    const Rows rows{.x = p_.x,
                    .attention = p_.attention,
                    .after_attention = p_.decode ? p_.x : p_.qkv,
                    .logits = early_logits(block),
                    .num_rows = p_.num_tokens};
    GAPLESS_RETURN_IF_ERROR(make_heads(block, rows.logits));
    const bool beside = starts_beside_attention(block);
    if (beside) {
      GAPLESS_RETURN_IF_ERROR(stream_.begin_branch());
      GAPLESS_RETURN_IF_ERROR(start_feed_forward(block, rows));
      GAPLESS_RETURN_IF_ERROR(stream_.end_branch());
    }
    GAPLESS_RETURN_IF_ERROR(attend(block));
    return run_outputs(block, rows, beside);
  }

  // The last block where some tokens' results are wanted: their rows become rows of their own.
  Status run_last_block(const DecoderBlock& block) const {
    GAPLESS_RETURN_IF_ERROR(make_heads(block, nullptr));
    GAPLESS_RETURN_IF_ERROR(attend(block));
    const Rows rows{.x = p_.wanted_x,
                    .attention = p_.qkv,
                    .after_attention = p_.attention,
                    .num_rows = p_.num_wanted};
    GAPLESS_RETURN_IF_ERROR(gather(p_.x, rows.x, dim_));
    GAPLESS_RETURN_IF_ERROR(gather(p_.attention, rows.attention, p_.heads.q_width()));
    if (block.residual == Residual::kParallel) {
      GAPLESS_RETURN_IF_ERROR(normalise(block, block.norm, rows.x, rows.num_rows));
    }
    return run_outputs(block, rows, false);
  }

  Status run_head(const DecoderHead& head) const {
    GAPLESS_RETURN_IF_ERROR(
        kernels_.norm(stream_, dense_norm(p_.x, head.norm, head.normed, dim_, p_.num_tokens)));
    LinearParams params =
        dense_linear(kernels_, head.normed, head.linear, head.logits, p_.num_tokens);
    params.y_dtype = DType::kF32;
    params.decode = true;
    params.needed = head.needed;
    return restored_linear(kernels_, stream_, params);
  }

 private:
  // What follows a block's attention. In a parallel block `norm` is already that of x.
  struct Rows {
    void* x;  // in and out
    void* attention;
    void* after_attention;   // x + proj(attention); may be x
    void* logits = nullptr;  // early_logits()
    int num_rows = 0;
  };

  // A parallel block's qkv and ff.up read the same rows: both in 8 bits or neither. (A router reads them as they are.)
  bool norm_is_fp8(const DecoderBlock& block) const {
    return !p_.decode && block.qkv.fp8 != nullptr && block.ff.up.fp8 != nullptr;
  }

  Status normalise(const DecoderBlock& block, const NormWeights& weights, const void* x,
                   int num_rows) const {
    NormParams norm = dense_norm(x, weights, p_.norm, dim_, num_rows);
    if (norm_is_fp8(block)) {
      norm = with_fp8_output(kernels_, norm, p_.row_scales);
      if (block.ff.kind == FeedForwardKind::kExperts) norm.exact_y = p_.router_rows;
    }
    return kernels_.norm(stream_, norm);
  }

  // Where the router's logits go if they are made beside qkv: a parallel block's router reads the same rows. `inner` is
  // free where there are experts.
  void* early_logits(const DecoderBlock& block) const {
    const FeedForward& ff = block.ff;
    const bool early = p_.decode && block.residual == Residual::kParallel &&
                       ff.kind == FeedForwardKind::kExperts && ff.num_experts <= ff.up.out;
    return early ? p_.inner : nullptr;
  }

  // A parallel block's feed-forward reads the same rows as its attention, and the residual only at its end. In a decode step
  // attention is a chain of small launches that leaves most of the device idle. Rows that are restored share their memory.
  // In a prefill it is experts' first half alone, small launches too.
  bool starts_beside_attention(const DecoderBlock& block) const {
    if (block.residual != Residual::kParallel) return false;
    if (!p_.decode) return block.ff.kind == FeedForwardKind::kExperts;
    return block.proj.restore.prepared == nullptr && block.ff.up.restore.prepared == nullptr;
  }

  // `started`: the feed-forward, in a branch that is to be joined.
  Status run_outputs(const DecoderBlock& block, const Rows& rows, bool started) const {
    GAPLESS_RETURN_IF_ERROR(linear(residual_linear(kernels_, rows.attention, block.proj, rows.x,
                                                   rows.after_attention, rows.num_rows)));
    if (block.residual == Residual::kSequential) {
      GAPLESS_RETURN_IF_ERROR(normalise(block, block.ff_norm, rows.after_attention, rows.num_rows));
    }
    GAPLESS_RETURN_IF_ERROR(started ? stream_.join_branch() : start_feed_forward(block, rows));
    return finish_feed_forward(block, rows);
  }

  // What does not need the residual.
  Status start_feed_forward(const DecoderBlock& block, const Rows& rows) const {
    if (block.ff.kind != FeedForwardKind::kExperts) return run_up(block, rows.num_rows);
    return run_experts(block, rows, ExpertsHalf::kFirst);
  }

  Status finish_feed_forward(const DecoderBlock& block, const Rows& rows) const {
    if (block.ff.kind == FeedForwardKind::kExperts) {
      return run_experts(block, rows, ExpertsHalf::kSecond);
    }
    LinearParams down = residual_linear(kernels_, p_.inner, block.ff.down, rows.after_attention,
                                        rows.x, rows.num_rows);
    down.x_stride = block.ff.up.out;
    const bool inner_is_fp8 = !p_.decode && block.ff.down.fp8 != nullptr;
    if (inner_is_fp8) {
      GAPLESS_RETURN_IF_ERROR(kernels_.rows_to_fp8(
          stream_, in_place_rows_to_fp8(kernels_, p_.inner, block.ff.inner(), down.x_stride,
                                        p_.row_scales, rows.num_rows)));
    }
    return linear(down, inner_is_fp8);
  }

  Status run_experts(const DecoderBlock& block, const Rows& rows, ExpertsHalf half) const {
    ExpertsParams params{.x = p_.norm,
                         .residual = rows.after_attention,
                         .y = rows.x,
                         .num_rows = rows.num_rows,
                         .ff = block.ff,
                         .decode = p_.decode,
                         .logits = rows.logits,
                         .sequences = p_.decode ? p_.sequences : nullptr,
                         .half = half,
                         .scratch = p_.op_scratch};
    if (norm_is_fp8(block)) {
      params = with_fp8_input(kernels_, params, p_.norm, p_.row_scales);
      params.x = p_.router_rows;
    }
    return kernels_.experts(stream_, params);
  }

  // Into the first ff.inner() columns of each row of `inner`, whose rows are ff.up.out apart.
  Status run_up(const DecoderBlock& block, int num_rows) const {
    const FeedForward& ff = block.ff;
    LinearParams up = dense_linear(kernels_, p_.norm, ff.up, p_.inner, num_rows);
    const bool gated = ff.kind == FeedForwardKind::kGated;
    if (!gated) up.activation = ff.activation;
    GAPLESS_RETURN_IF_ERROR(linear(up, norm_is_fp8(block)));
    if (!gated) return ok_status();
    return kernels_.gate(stream_, {.x = p_.inner,
                                   .x_stride = ff.up.out,
                                   .y = p_.inner,
                                   .y_stride = ff.up.out,
                                   .num_rows = num_rows,
                                   .dim = ff.inner(),
                                   .activation = ff.activation,
                                   .up_offset = ff.up_offset});
  }

  Status gather(const void* x, void* y, int dim) const {
    return kernels_.gather_rows(
        stream_,
        {.x = x, .index = p_.wanted_tokens, .y = y, .num_rows = p_.num_wanted, .dim = dim});
  }

  Status linear(LinearParams params, bool input_is_fp8 = false) const {
    params.decode = p_.decode;
    if (input_is_fp8) params = with_fp8_input(kernels_, params, p_.row_scales);
    return restored_linear(kernels_, stream_, params);
  }

  // Of the normalised rows; `logits`: early_logits().
  Status make_qkv(const DecoderBlock& block, void* logits) const {
    LinearParams qkv = dense_linear(kernels_, p_.norm, block.qkv, p_.qkv, p_.num_tokens);
    if (logits == nullptr) return linear(qkv, norm_is_fp8(block));
    LinearParams router = dense_linear(kernels_, p_.norm, block.ff.router, logits, p_.num_tokens);
    qkv.decode = router.decode = true;
    return kernels_.linear_pair(stream_, qkv, router);
  }

  // Scales, rotates and caches.
  Status place_heads(const DecoderBlock& block) const {
    const RopeAndCacheParams rope{.qkv = p_.qkv,
                                  .qkv_stride = p_.heads.qkv_width(),
                                  .positions = p_.positions,
                                  .cache_slots = p_.cache_slots,
                                  .rope_table = p_.rope_table,
                                  .q_norm = block.q_norm,
                                  .k_norm = block.k_norm,
                                  .kv = block.kv,
                                  .num_tokens = p_.num_tokens,
                                  .heads = p_.heads,
                                  .rotary_dim = p_.rotary_dim};
    if (block.head_scales.alpha == nullptr) return kernels_.rope_and_cache(stream_, rope);
    return kernels_.scale_rope_and_cache(
        stream_,
        {.qkv = p_.qkv,
         .qkv_stride = p_.heads.qkv_width(),
         .positions = p_.positions,
         .scales = block.head_scales,
         .num_tokens = p_.num_tokens,
         .heads = p_.heads,
         .decode = p_.decode,
         // op_scratch may be the experts' already, and in a decode step `inner` the feed-forward's.
         .scratch = p_.decode ? p_.attention_scratch : p_.inner},
        rope);
  }

  // Normalises, and makes queries, keys and values.
  Status make_heads(const DecoderBlock& block, void* logits) const {
    GAPLESS_RETURN_IF_ERROR(normalise(block, block.norm, p_.x, p_.num_tokens));
    return make_qkv(block, logits);
  }

  Status attend(const DecoderBlock& block) const {
    GAPLESS_RETURN_IF_ERROR(place_heads(block));
    return kernels_.paged_attention(stream_, {.qkv = p_.qkv,
                                              .qkv_stride = p_.heads.qkv_width(),
                                              .out = p_.attention,
                                              .out_stride = p_.heads.q_width(),
                                              .kv = block.kv,
                                              .page_table = p_.page_table,
                                              .page_table_stride = p_.page_table_stride,
                                              .sequences = p_.sequences,
                                              .num_sequences = p_.num_sequences,
                                              .num_tokens = p_.num_tokens,
                                              .max_new_tokens = p_.max_new_tokens,
                                              .max_context = p_.max_context,
                                              .heads = p_.heads,
                                              .scratch = p_.attention_scratch});
  }

  Kernels& kernels_;
  Stream& stream_;
  const DecoderBlocksParams& p_;
  const int dim_;
};

Status run_all(const ComposedBlocks& blocks, const DecoderBlocksParams& params) {
  const int last = params.num_blocks - 1;
  for (int i = 0; i < last; ++i) {
    GAPLESS_RETURN_IF_ERROR(blocks.run_block(params.blocks[i]));
  }
  GAPLESS_RETURN_IF_ERROR(params.wanted_tokens == nullptr
                              ? blocks.run_block(params.blocks[last])
                              : blocks.run_last_block(params.blocks[last]));
  return params.head == nullptr ? ok_status() : blocks.run_head(*params.head);
}

}  // namespace

Status Kernels::decoder_blocks(Stream& stream, const DecoderBlocksParams& params) {
  if (params.num_blocks == 0) return ok_status();
  const ComposedBlocks blocks(*this, stream, params);
  if (params.any_lives == nullptr) return run_all(blocks, params);
  GAPLESS_RETURN_IF_ERROR(stream.begin_if(params.any_lives));
  const Status status = run_all(blocks, params);
  // Also after an error: the stream must not stay in the condition.
  const Status ended = stream.end_if();
  return status.ok() ? ended : status;
}

}  // namespace gapless
