#include "measure/forward_work.h"

#include <algorithm>

namespace gapless {
namespace {

// x W^T with x of `rows` rows.
double product_flop(double rows, double in, double out) {
  return 2 * rows * in * out;
}

// Scores and weighted sums of so many (query, key) pairs in all heads together.
double attention_flop(double pairs, double width) {
  return 4 * pairs * width;
}

// Prompts of a decoder, of which prefix_len tokens see each other. feed_forward(layer, queries): a layer's, for so many
// tokens; per_token: what a layer computes besides for each token.
template <typename FeedForward>
double decoder_flop(const TextShape& shape, int num_sequences, int num_tokens, int prefix_len,
                    FeedForward feed_forward, double per_token) {
  const double d = shape.dim, q = shape.heads.q_width(), kv = shape.heads.kv_width();
  const double tokens = num_tokens, prefix = std::min(num_tokens, prefix_len);
  const double rows = tokens * num_sequences;
  // A token behind the prefix sees everything up to itself.
  const double pairs = prefix * prefix + (tokens * (tokens + 1) - prefix * (prefix + 1)) / 2;
  const auto layer = [&](int index, double queries, double all_pairs) {
    return product_flop(rows, d, 2 * kv) +
           product_flop(queries, d, 2 * q) +  // the query, and back from the heads
           feed_forward(index, queries) + rows * per_token +
           attention_flop(num_sequences * all_pairs, q);
  };
  // Of the last layer only the last token's output is read.
  double flop = product_flop(num_sequences, d, shape.vocab);
  for (int i = 0; i + 1 < shape.num_layers; ++i) flop += layer(i, rows, pairs);
  return flop + layer(shape.num_layers - 1, num_sequences, tokens);
}

}  // namespace

double encode_flop(const ModelConfig& config, int num_images, int crops_per_image) {
  const VisionConfig& vision = config.vision;
  const double patches = vision.num_image_tokens();
  const double crops = static_cast<double>(num_images) * crops_per_image;
  const double rows = crops * patches;
  const double e = vision.enc_dim;
  const double layer = product_flop(rows, e, 4 * e) +  // q, k, v and the projection
                       2 * product_flop(rows, e, vision.enc_ff_dim) +
                       attention_flop(crops * patches * patches, e);
  const double projection = product_flop(patches, 2 * e, vision.proj_inner_dim) +
                            product_flop(patches, vision.proj_inner_dim, vision.proj_out_dim);
  return product_flop(rows, vision.patch_values(), e) + vision.enc_n_layers * layer +
         num_images * projection;
}

double prefill_flop(const ModelConfig& config, int num_sequences, int num_tokens, int prefix_len) {
  const TextConfig& text = config.text;
  const MoeConfig& moe = text.moe;
  const double d = text.dim;
  const auto feed_forward = [&](int index, double queries) {
    // Without the padding of a TextShape.
    if (!text.has_experts(index)) return 2 * product_flop(queries, d, text.ff_dim);
    // Gate, up and down of each chosen expert.
    return product_flop(queries, d, moe.num_experts) +
           3 * product_flop(queries * moe.experts_per_token, d, moe.expert_inner_dim);
  };
  const double head_scales = text.tau_attn ? product_flop(1, 3 * d, 2 * text.n_heads) : 0;
  return decoder_flop(text_shape(config), num_sequences, num_tokens, prefix_len, feed_forward,
                      head_scales);
}

double text_prefill_flop(const TextShape& shape, int num_sequences, int num_tokens) {
  const auto feed_forward = [&](int, double queries) {
    return product_flop(queries, shape.dim, shape.up_dim) +
           product_flop(queries, shape.ff_dim, shape.dim);
  };
  return decoder_flop(shape, num_sequences, num_tokens, 0, feed_forward, 0);
}

}  // namespace gapless
