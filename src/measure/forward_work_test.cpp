#include "measure/forward_work.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

// A model small enough to count by hand.
ModelConfig small_config() {
  ModelConfig config;
  config.text = {.dim = 4,
                 .ff_dim = 8,
                 .n_layers = 3,
                 .vocab_size = 10,
                 .max_context = 16,
                 .n_heads = 2,
                 .n_kv_heads = 2};
  config.vision = {.enc_dim = 6,
                   .enc_patch_size = 1,
                   .enc_n_layers = 2,
                   .enc_ff_dim = 7,
                   .proj_inner_dim = 5,
                   .proj_out_dim = 4,
                   .crop_size = 2};
  return config;
}

TEST(ForwardWork, EncodeByHand) {
  // One crop of 4 patches of 3 values; per layer 4 x 6 x 24, twice 4 x 6 x 7, attention 2 x 16 x 6.
  const double embed = 2 * 4 * 3 * 6;
  const double layer = 2 * (4 * 6 * 24 + 2 * 4 * 6 * 7 + 2 * 16 * 6);
  const double projection = 2 * (4 * 12 * 5 + 4 * 5 * 4);
  EXPECT_EQ(encode_flop(small_config(), 1, 1), embed + 2 * layer + projection);
  EXPECT_EQ(encode_flop(small_config(), 2, 3), 6 * (embed + 2 * layer) + 2 * projection);
}

TEST(ForwardWork, PrefillByHand) {
  // 5 tokens, 3 of them prefix: 9 pairs among those, then 4 and 5.
  const double layer = 2 * (5 * 4 * 16 + 2 * 5 * 4 * 8 + 2 * 18 * 4);
  // Keys and values of all, the rest of the last token, which sees 5.
  const double last_layer = 2 * (5 * 4 * 8 + 4 * 8 + 2 * 4 * 8 + 2 * 5 * 4);
  const double logits = 2 * 4 * 10;
  const double all = 2 * layer + last_layer + logits;
  EXPECT_EQ(prefill_flop(small_config(), 1, 5, 3), all);
  EXPECT_EQ(prefill_flop(small_config(), 4, 5, 3), 4 * all);
  // All prefix, and no prefix: 25 and 15 pairs.
  const double pair = 2 * 4 * 4;
  EXPECT_EQ(prefill_flop(small_config(), 1, 5, 9), all + 7 * pair);
  EXPECT_EQ(prefill_flop(small_config(), 1, 5, 0), all - 3 * pair);
}

TEST(ForwardWork, TextPrefillByHand) {
  // Two layers of four query heads and one key head of 2, a gate beside an inner width of 6; 3 tokens, 6 pairs.
  const TextShape shape{.dim = 5,
                        .num_layers = 2,
                        .heads = {.num_heads = 4, .num_kv_heads = 1, .head_dim = 2},
                        .ff_dim = 6,
                        .up_dim = 12,
                        .vocab = 7};
  const double layer = 2 * 3 * (5 * (8 + 2 + 2) + 8 * 5 + 5 * 12 + 6 * 5) + 4 * 6 * 8;
  // Keys and values of all, the rest of the last token, which sees 3.
  const double last_layer = 2 * 3 * 5 * 4 + 2 * (5 * 8 + 8 * 5 + 5 * 12 + 6 * 5) + 4 * 3 * 8;
  EXPECT_EQ(text_prefill_flop(shape, 1, 3), layer + last_layer + 2 * 5 * 7);
  EXPECT_EQ(text_prefill_flop(shape, 2, 3), 2 * text_prefill_flop(shape, 1, 3));
}

}  // namespace
}  // namespace gapless
