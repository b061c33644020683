#include "model/text_decoder.h"

#include <vector>

namespace gapless {

// Rotates and caches the layer's queries, keys and values (TextWorkspace::qkv), then attends.
Status TextDecoder::run_attention(Stream& stream, int layer, const DecoderBatch& batch) const {
  const std::int64_t qkv_stride = 3 * std::int64_t{shape_.dim};
  RopeAndCacheParams rope;
  rope.qkv = workspace_.qkv;
  rope.qkv_stride = qkv_stride;
  rope.positions = batch.positions;
  rope.cache_slots = batch.cache_slots;
  rope.rope_table = rope_table_dev_;
  rope.kv = state_.kv_layer(layer);
  rope.num_tokens = batch.num_tokens;
  rope.num_heads = shape_.num_heads;
  rope.head_dim = shape_.head_dim;
  rope.rotary_dim = shape_.rotary_dim;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->rope_and_cache(stream, rope));

  PagedAttentionParams attention;
  attention.qkv = workspace_.qkv;
  attention.qkv_stride = qkv_stride;
  attention.out = workspace_.attention;
  attention.out_stride = shape_.dim;
  attention.kv = state_.kv_layer(layer);
  attention.page_table = state_.page_table();
  attention.page_table_stride = state_.page_table_stride();
  attention.sequences = batch.sequences;
  attention.num_sequences = batch.num_sequences;
  attention.num_tokens = batch.num_tokens;
  attention.max_new_tokens = batch.max_new_tokens;
  attention.max_context = shape_.max_context;
  attention.num_heads = shape_.num_heads;
  attention.head_dim = shape_.head_dim;
  attention.scratch = workspace_.attention_scratch;
  return context_.kernels->paged_attention(stream, attention);
}

TextDecoder::BlockProducts TextDecoder::products(const TextBlockWeights& block,
                                                 const DecoderBatch& batch) const {
  const TextWorkspace& w = workspace_;
  const int rows = batch.num_tokens;
  void* after_attention = batch.decode ? batch.x : w.after_attention;
  BlockProducts products{
      .qkv = dense_linear(context_, w.norm, block.qkv, w.qkv, rows),
      .proj = residual_linear(context_, w.attention, block.proj, batch.x, after_attention, rows),
      .fc1 = dense_linear(context_, w.norm, block.fc1, w.inner, rows),
      .fc2 = residual_linear(context_, w.inner, block.fc2, after_attention, batch.x, rows)};
  products.fc1.activation = Activation::kGeluTanh;
  for (LinearParams* params : {&products.qkv, &products.proj, &products.fc1, &products.fc2}) {
    params->decode = batch.decode;
  }
  return products;
}

Status TextDecoder::run_block(Stream& stream, int layer, const DecoderBatch& batch) const {
  Kernels& kernels = *context_.kernels;
  const TextBlockWeights& block = weights_.blocks[static_cast<std::size_t>(layer)];
  const BlockProducts product = products(block, batch);
  GAPLESS_RETURN_IF_ERROR(kernels.layer_norm(
      stream, dense_layer_norm(batch.x, block.ln, workspace_.norm, batch.num_tokens)));
  GAPLESS_RETURN_IF_ERROR(kernels.linear(stream, product.qkv));
  GAPLESS_RETURN_IF_ERROR(run_attention(stream, layer, batch));
  GAPLESS_RETURN_IF_ERROR(kernels.linear(stream, product.proj));
  GAPLESS_RETURN_IF_ERROR(kernels.linear(stream, product.fc1));
  return kernels.linear(stream, product.fc2);
}

Status TextDecoder::tune(Stream& stream, int max_tokens) const {
  // Steps of one tile of the products' kernels, and wider ones where a tile more is little.
  std::vector<int> row_counts;
  for (int rows = 128; rows < max_tokens; rows += rows < 2048 ? 128 : rows < 4096 ? 256 : 512) {
    row_counts.push_back(rows);
  }
  row_counts.push_back(max_tokens);
  const BlockProducts product =
      products(weights_.blocks.front(), {.x = workspace_.x, .num_tokens = max_tokens});
  for (const LinearParams& params : {product.qkv, product.proj, product.fc1, product.fc2}) {
    GAPLESS_RETURN_IF_ERROR(context_.kernels->tune_linear(stream, params, row_counts));
  }
  return ok_status();
}

Status TextDecoder::run_blocks(Stream& stream, const DecoderBatch& batch) const {
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    GAPLESS_RETURN_IF_ERROR(run_block(stream, layer, batch));
    GAPLESS_RETURN_IF_ERROR(
        context_.record(stream, "text.block", layer, batch.x, batch.num_tokens, shape_.dim));
  }
  return ok_status();
}

Status TextDecoder::compute_logits(Stream& stream, const void* hidden, int num_rows,
                                   float* logits) const {
  GAPLESS_RETURN_IF_ERROR(context_.kernels->layer_norm(
      stream, dense_layer_norm(hidden, weights_.post_ln, workspace_.last_norm, num_rows)));
  GAPLESS_RETURN_IF_ERROR(
      context_.record(stream, "text.post_ln", workspace_.last_norm, num_rows, shape_.dim));
  LinearParams head =
      dense_linear(context_, workspace_.last_norm, weights_.lm_head, logits, num_rows);
  head.y_dtype = DType::kF32;
  // A row per sequence, in prefill too: the same few-row algorithm, so that a token's logits do not
  // depend on the kind of step that made them.
  head.decode = true;
  return context_.kernels->linear(stream, head);
}

}  // namespace gapless
