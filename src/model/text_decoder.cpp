#include "model/text_decoder.h"

#include <algorithm>
#include <vector>

#include "kernels/dense_ops.h"
#include "kernels/restored_linear.h"

namespace gapless {

TextDecoder::TextDecoder(const ModelContext& context, const TextShape& shape,
                         const TextWeights& weights, const TextWorkspace& workspace,
                         const DeviceState& state, const float* rope_table_dev,
                         ChosenExperts* chosen_experts_dev)
    : context_(context),
      shape_(shape),
      weights_(weights),
      workspace_(workspace),
      state_(state),
      rope_table_dev_(rope_table_dev),
      chosen_experts_dev_(chosen_experts_dev) {
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    DecoderBlock block = weights.blocks[static_cast<std::size_t>(layer)];
    block.kv = state.kv_layer(layer);
    blocks_.push_back(block);
  }
}

Status TextDecoder::tune(Stream& stream, int max_tokens) const {
  // Finer than a tile of the products' kernels where few tiles make a product: with six tiles' rows
  // and two more, another kernel is the fastest.
  std::vector<int> row_counts;
  for (int rows = 16; rows < max_tokens;) {
    row_counts.push_back(rows);
    rows += rows < 1024 ? 16 : rows < 2048 ? 32 : rows < 4096 ? 64 : 128;
  }
  row_counts.push_back(max_tokens);
  // The blocks' products have the same shapes, but for the feed-forward of blocks with experts, whose op finds
  // its own way.
  const Kernels& kernels = *context_.kernels;
  const DecoderBlock& block = weights_.blocks.front();
  const TextWorkspace& w = workspace_;
  // As decoder_blocks() lays a prefill's products out.
  void* after_attention = w.qkv;
  std::vector<LinearParams> products = {
      dense_linear(kernels, w.norm, block.qkv, w.qkv, max_tokens),
      residual_linear(kernels, w.attention, block.proj, w.x, after_attention, max_tokens)};
  const auto with_matrices = std::ranges::find_if(weights_.blocks, [](const DecoderBlock& one) {
    return one.ff.kind != FeedForwardKind::kExperts;
  });
  if (with_matrices != weights_.blocks.end()) {
    const FeedForward& ff = with_matrices->ff;
    LinearParams up = dense_linear(kernels, w.norm, ff.up, w.inner, max_tokens);
    if (ff.kind == FeedForwardKind::kDense) up.activation = ff.activation;
    LinearParams down =
        residual_linear(kernels, w.inner, ff.down, after_attention, w.x, max_tokens);
    down.x_stride = ff.up.out;
    products.insert(products.end(), {up, down});
  }
  for (const LinearParams& plain : products) {
    const LinearParams params = with_fp8_input(*context_.kernels, plain, w.row_scales);
    GAPLESS_RETURN_IF_ERROR(context_.kernels->tune_linear(stream, params, row_counts));
  }
  return ok_status();
}

DecoderBlocksParams TextDecoder::blocks_params(const DecoderBatch& batch) const {
  DecoderBlocksParams params;
  params.blocks = blocks_.data();
  params.num_blocks = shape_.num_layers;
  params.x = batch.x;
  params.positions = batch.positions;
  params.cache_slots = batch.cache_slots;
  params.rope_table = rope_table_dev_;
  params.page_table = state_.page_table();
  params.page_table_stride = state_.page_table_stride();
  params.sequences = batch.sequences;
  params.rows = batch.rows;
  params.row_states = state_.row_states();
  params.num_sequences = batch.num_sequences;
  params.num_tokens = batch.num_tokens;
  params.max_new_tokens = batch.max_new_tokens;
  params.max_context = shape_.max_context;
  params.heads = shape_.heads;
  params.rotary_dim = shape_.rotary_dim;
  params.decode = batch.decode;
  params.norm = workspace_.norm;
  params.qkv = workspace_.qkv;
  params.attention = workspace_.attention;
  params.inner = workspace_.inner;
  params.row_scales = workspace_.row_scales;
  params.router_rows = workspace_.router_rows;
  params.attention_scratch = workspace_.attention_scratch;
  params.op_scratch = workspace_.op_scratch;
  params.block_scratch = workspace_.block_scratch;
  return params;
}

DecoderHead TextDecoder::head(float* logits) const {
  return {.norm = weights_.post_ln,
          .linear = weights_.lm_head,
          .normed = workspace_.last_norm,
          .logits = logits};
}

Status TextDecoder::record_blocks(Stream& stream, const DecoderBatch& batch) const {
  DecoderBlocksParams params = blocks_params(batch);
  params.num_blocks = 1;
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    params.blocks = &blocks_[static_cast<std::size_t>(layer)];
    GAPLESS_RETURN_IF_ERROR(context_.kernels->decoder_blocks(stream, params));
    GAPLESS_RETURN_IF_ERROR(
        context_.record(stream, "text.block", layer, batch.x, batch.num_tokens, shape_.dim));
  }
  return ok_status();
}

Status TextDecoder::run_prefill(Stream& stream, const DecoderBatch& batch,
                                const std::int32_t* last_tokens, int num_rows, void* hidden) const {
  if (context_.recorder != nullptr) {
    GAPLESS_RETURN_IF_ERROR(record_blocks(stream, batch));
    return context_.kernels->gather_rows(
        stream,
        {.x = batch.x, .index = last_tokens, .y = hidden, .num_rows = num_rows, .dim = shape_.dim});
  }
  DecoderBlocksParams params = blocks_params(batch);
  params.wanted_tokens = last_tokens;
  params.num_wanted = num_rows;
  params.wanted_x = hidden;
  return context_.kernels->decoder_blocks(stream, params);
}

Status TextDecoder::run_decode(Stream& stream, const DecoderBatch& batch, float* logits) const {
  if (context_.recorder != nullptr) {
    GAPLESS_RETURN_IF_ERROR(record_blocks(stream, batch));
    return compute_logits(stream, batch.x, batch.num_tokens, logits);
  }
  DecoderHead with_head = head(logits);
  with_head.needed = workspace_.needed_logits;
  DecoderBlocksParams params = blocks_params(batch);
  params.head = &with_head;
  params.shared_prefixes = workspace_.shared_prefixes;
  params.any_lives = workspace_.any_lives;
  params.chosen_experts = chosen_experts_dev_;
  return context_.kernels->decoder_blocks(stream, params);
}

Status TextDecoder::check_fast_decode(int num_rows) const {
  const DecoderHead with_head = head(nullptr);
  DecoderBlocksParams params = blocks_params(
      {.num_sequences = num_rows, .num_tokens = num_rows, .max_new_tokens = 1, .decode = true});
  params.head = &with_head;
  return context_.kernels->check_fast_decoder(params);
}

Status TextDecoder::compute_logits(Stream& stream, const void* hidden, int num_rows,
                                   float* logits) const {
  GAPLESS_RETURN_IF_ERROR(context_.kernels->norm(
      stream, dense_norm(hidden, weights_.post_ln, workspace_.last_norm, shape_.dim, num_rows)));
  GAPLESS_RETURN_IF_ERROR(
      context_.record(stream, "text.post_ln", workspace_.last_norm, num_rows, shape_.dim));
  LinearParams head =
      dense_linear(*context_.kernels, workspace_.last_norm, weights_.lm_head, logits, num_rows);
  head.y_dtype = DType::kF32;
  // A row per sequence, in prefill too: the same few-row algorithm, so that a token's logits do not
  // depend on the kind of step that made them.
  head.decode = true;
  return restored_linear(*context_.kernels, stream, head);
}

}  // namespace gapless
