// The oracle itself, against values worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/reference_ops.h"
#include "kernels/sampling_uniform.h"

namespace gapless::reference {
namespace {

TEST(ReferenceTest, GeluTanh) {
  // The formula evaluated by another language.
  EXPECT_NEAR(gelu_tanh(1.0), 0.8411919906082768, 1e-12);
  EXPECT_NEAR(gelu_tanh(-1.0), -0.15880800939172324, 1e-12);
  EXPECT_NEAR(gelu_tanh(3.0), 2.996362607918227, 1e-12);
}

TEST(ReferenceTest, LinearAddsBiasThenActivatesThenAddsTheResidual) {
  const float x[] = {1, 2}, weight[] = {3, 4, -1, 0.5f}, bias[] = {-10, 0}, residual[] = {100, 200};
  float y[2];
  linear({.x = x,
          .x_stride = 2,
          .weights = {weight, bias, 2, 2},
          .y = y,
          .y_stride = 2,
          .num_rows = 1,
          .activation = Activation::kGeluTanh,
          .residual = residual,
          .residual_stride = 2,
          .residual_rows = 1});
  EXPECT_FLOAT_EQ(y[0], 100.841192f);  // gelu(3 + 8 - 10) + 100
  EXPECT_FLOAT_EQ(y[1], 200.0f);       // gelu(0) + 200
}

TEST(ReferenceTest, LayerNormOfThreeValues) {
  const float x[] = {1, 2, 6}, gamma[] = {1, 1, 2}, beta[] = {0, 0, 5};
  float y[3];
  norm({.x = x,
        .weights = {.gamma = gamma, .beta = beta, .eps = 0},
        .y = y,
        .num_rows = 1,
        .dim = 3});
  const float deviation = std::sqrt(14.0f / 3);  // biased: (4 + 1 + 9) / 3
  EXPECT_FLOAT_EQ(y[0], -2 / deviation);
  EXPECT_FLOAT_EQ(y[1], -1 / deviation);
  EXPECT_FLOAT_EQ(y[2], 2 * 3 / deviation + 5);
}

TEST(ReferenceTest, PatchesAreChannelThenRowThenColumn) {
  // Two patches of 2x2 side by side would need a 4x2 crop; crops are square: 4x4 gives four.
  std::vector<std::uint8_t> crop(4 * 4 * 3);
  std::iota(crop.begin(), crop.end(), std::uint8_t{0});
  std::vector<float> lut(256), patches(4 * 16, -1.0f);
  std::iota(lut.begin(), lut.end(), 0.0f);
  patchify({.crops = crop.data(),
            .lut = lut.data(),
            .patches = patches.data(),
            .num_crops = 1,
            .crop_size = 4,
            .patch_size = 2,
            .patch_stride = 16});
  // Patch 1 (row 0, column 1): pixels (0,2) (0,3) (1,2) (1,3) at bytes 6 9 18 21, per channel.
  const std::vector<float> expected = {6, 9, 18, 21, 7, 10, 19, 22, 8, 11, 20, 23, 0, 0, 0, 0};
  EXPECT_EQ(std::vector<float>(patches.begin() + 16, patches.begin() + 32), expected);
}

// Features that name their place: the crop, and the row inside it.
TEST(ReferenceTest, StitchingTakesEachPositionFromTheTileThatOwnsIt) {
  constexpr int kGrid = 27;
  std::vector<float> features(3 * kGrid * kGrid * 2);
  for (int crop = 0; crop < 3; ++crop) {
    for (int p = 0; p < kGrid * kGrid; ++p) {
      features[(crop * kGrid * kGrid + p) * 2] = static_cast<float>(crop);
      features[(crop * kGrid * kGrid + p) * 2 + 1] = static_cast<float>(p / kGrid);
    }
  }
  std::vector<float> out(kGrid * kGrid * 4);
  StitchAndPoolParams params{.features = features.data(),
                             .out = out.data(),
                             .tile_rows = 2,
                             .tile_cols = 1,
                             .grid = kGrid,
                             .overlap_margin = 4,
                             .dim = 2};
  stitch_and_pool(params);
  // 46 stitched rows: 0..22 from the first tile, 23..45 from rows 4..26 of the second. Windows of
  // the published table: (0,2) (1,4) (3,6) ... (21,...): output row 13 covers rows 22, 23.
  auto at = [&](int row, int channel) { return out[(row * kGrid + 5) * 4 + channel]; };
  EXPECT_EQ(at(0, 0), 0);             // the global crop
  EXPECT_EQ(at(0, 1), 0);             //
  EXPECT_FLOAT_EQ(at(0, 3), 0.5f);    // rows 0, 1
  EXPECT_FLOAT_EQ(at(1, 3), 2.0f);    // rows 1, 2, 3
  EXPECT_FLOAT_EQ(at(2, 3), 4.0f);    // rows 3, 4, 5
  EXPECT_FLOAT_EQ(at(13, 2), 1.5f);   // row 22 of tile 1, row 23 of tile 2
  EXPECT_FLOAT_EQ(at(13, 3), 13.0f);  // (22 + 4) / 2
  EXPECT_FLOAT_EQ(at(26, 2), 2.0f);
  EXPECT_FLOAT_EQ(at(26, 3), 25.5f);  // rows 44, 45: 25, 26 of the second tile
}

TEST(ReferenceTest, OneTileIsTheGlobalCropTwice) {
  std::vector<float> features(9 * 3), out(9 * 6);
  std::iota(features.begin(), features.end(), 0.0f);
  stitch_and_pool(
      {.features = features.data(), .out = out.data(), .grid = 3, .overlap_margin = 1, .dim = 3});
  for (int p = 0; p < 9; ++p) {
    for (int d = 0; d < 3; ++d) {
      EXPECT_EQ(out[p * 6 + d], features[p * 3 + d]);
      EXPECT_EQ(out[p * 6 + 3 + d], features[p * 3 + d]);
    }
  }
}

// 3 and 4 have a root mean square of sqrt(12.5); nothing is subtracted.
TEST(ReferenceTest, RmsNormOfTwoValues) {
  const float x[] = {3, 4}, gamma[] = {1, 2};
  float y[2];
  norm({.x = x,
        .weights = {.kind = NormKind::kRms, .gamma = gamma, .eps = 0},
        .y = y,
        .num_rows = 1,
        .dim = 2});
  EXPECT_FLOAT_EQ(y[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(y[1], 2 * 4 / std::sqrt(12.5f));
}

TEST(ReferenceTest, GateTimesUp) {
  const float x[] = {0, 2, 5, 7};  // gates 0 and 2, ups 5 and 7
  float y[2];
  gate({.x = x, .x_stride = 4, .y = y, .y_stride = 2, .num_rows = 1, .dim = 2});
  EXPECT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(y[1], 7 * 2 / (1 + std::exp(-2.0f)));
}

// Two query heads on one key head: [q0 q1 k v] of one value each. The second head's query is
// normalised and turned like the first's, and both see the same key.
TEST(ReferenceTest, GroupedQueriesShareAKeyHead) {
  float qkv[8] = {3, 4, 0, 2, 6, 8, 10, 20};  // heads of 2
  const float table[] = {1, 0}, ones[] = {1, 1};
  const std::int32_t position = 0, slot = 16;
  const NormWeights norm{.kind = NormKind::kRms, .gamma = ones, .eps = 0};
  const AttentionHeads heads{.num_heads = 2, .num_kv_heads = 1, .head_dim = 2};
  std::vector<float> cache(2 * 2 * 16 * 2, 0.0f);  // two pages of keys, values
  rope_and_cache({.qkv = qkv,
                  .qkv_stride = 8,
                  .positions = &position,
                  .cache_slots = &slot,
                  .rope_table = table,
                  .q_norm = norm,
                  .k_norm = norm,
                  .kv = {cache.data()},
                  .num_tokens = 1,
                  .heads = heads,
                  .rotary_dim = 2});
  const float root = std::sqrt(12.5f);
  EXPECT_FLOAT_EQ(qkv[0], 3 / root);
  EXPECT_FLOAT_EQ(qkv[3], std::sqrt(2.0f));  // (0, 2)
  EXPECT_FLOAT_EQ(cache[2 * 16 * 2], 6 / (2 * root));
  EXPECT_EQ(cache[3 * 16 * 2 + 1], 20);
  const std::int32_t page_table[] = {1};
  const AttentionSequence sequence{.num_tokens = 1};
  float out[4] = {};
  paged_attention({.qkv = qkv,
                   .qkv_stride = 8,
                   .out = out,
                   .out_stride = 4,
                   .kv = {cache.data()},
                   .page_table = page_table,
                   .page_table_stride = 1,
                   .sequences = &sequence,
                   .num_sequences = 1,
                   .num_tokens = 1,
                   .heads = heads});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{10, 20, 10, 20}));
}

TEST(ReferenceTest, RopeTurnsHalfSplitPairs) {
  // One head of 4, rotary over all of it; position 1 of the table turns pair 0 by 90 degrees and
  // leaves pair 1.
  float qkv[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const float table[] = {1, 0, 1, 0, /* position 1: */ 0, 1, 1, 0};
  const std::int32_t position = 1, slot = 3;
  std::vector<float> cache(2 * 16 * 4, 0.0f);
  const float *const k = cache.data(), *const v = k + 16 * 4;
  rope_and_cache({.qkv = qkv,
                  .qkv_stride = 12,
                  .positions = &position,
                  .cache_slots = &slot,
                  .rope_table = table,
                  .kv = {cache.data()},
                  .num_tokens = 1,
                  .heads = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 4},
                  .rotary_dim = 4});
  EXPECT_EQ(std::vector<float>(qkv, qkv + 4), (std::vector<float>{-3, 2, 1, 4}));
  EXPECT_EQ(std::vector<float>(&k[12], &k[12] + 4), (std::vector<float>{-7, 6, 5, 8}));
  EXPECT_EQ(std::vector<float>(&v[12], &v[12] + 4), (std::vector<float>{9, 10, 11, 12}));
}

// Keys of zero: every visible value counts the same, so the mean tells who was visible.
TEST(ReferenceTest, PrefixSeesItselfBothWaysAndTheRestIsCausal) {
  constexpr int kTokens = 5;
  std::vector<float> cache(2 * 2 * 16, 0.0f), qkv(kTokens * 3, 1.0f), out(kTokens);
  const std::int32_t page_table[] = {1};
  for (int i = 0; i < kTokens; ++i) cache[3 * 16 + i] = static_cast<float>(1 << i);
  const AttentionSequence sequence{.num_tokens = kTokens, .prefix_len = 3};
  paged_attention({.qkv = qkv.data(),
                   .qkv_stride = 3,
                   .out = out.data(),
                   .out_stride = 1,
                   .kv = {cache.data()},
                   .page_table = page_table,
                   .page_table_stride = 1,
                   .sequences = &sequence,
                   .num_sequences = 1,
                   .heads = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 1}});
  for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(out[i], 7.0f / 3) << i;
  EXPECT_FLOAT_EQ(out[3], 15.0f / 4);
  EXPECT_FLOAT_EQ(out[4], 31.0f / 5);
}

TEST(ReferenceTest, FourierFeaturesPutCosinesFirst) {
  // W = [1/8, 1/4] and x = 1: z = pi/4, pi/2. The encoder is the identity.
  const float frequencies[] = {0.125f, 0.25f};
  const float identity[] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const TokenInput input{InputKind::kCoord, 5, 1.0f, 0};
  float out[4];
  embed({.inputs = &input,
         .region = {.coord_encoder = {identity, nullptr, 4, 4}, .coord_features = frequencies},
         .out = out,
         .num_tokens = 1,
         .dim = 4});
  EXPECT_NEAR(out[0], std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(out[1], 0, 1e-6);
  EXPECT_NEAR(out[2], std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(out[3], 1, 1e-6);
}

TEST(ReferenceTest, SampleRowFollowsTheInverseCdf) {
  // p = 0.5, 0.125, 0.25, 0.125 in order of ids; best first: 0, 2, 1, 3.
  const float logits[] = {std::log(4.0f), 0, std::log(2.0f), 0};
  RowState row;
  row.sampling.temperature = 1;
  auto token_at = [&](double u) { return sample_row(logits, 4, row, nullptr, nullptr, u).token; };
  EXPECT_EQ(token_at(0), 0);
  EXPECT_EQ(token_at(0.499), 0);
  EXPECT_EQ(token_at(0.501), 2);
  EXPECT_EQ(token_at(0.76), 1);
  EXPECT_EQ(token_at(0.88), 3);
  row.sampling.top_k = 2;  // 0 and 2, at 2/3 and 1/3
  EXPECT_EQ(token_at(0.66), 0);
  EXPECT_EQ(token_at(0.67), 2);
  row.sampling.top_k = 0,
  row.sampling.top_p = 0.6f;  // 0.5 before token 2: kept; 0.75 before token 1: not
  EXPECT_EQ(token_at(0.99), 2);
  row.sampling.top_p = 1, row.sampling.min_p = 0.3f;  // tokens 1 and 3 have a quarter of the first
  EXPECT_EQ(token_at(0.99), 2);
  row.sampling.temperature = 0;
  EXPECT_EQ(token_at(0.99), 0);
  EXPECT_NEAR(sample_row(logits, 4, row, nullptr, nullptr, 0).logprob, std::log(0.5), 1e-6);
}

TEST(ReferenceTest, TheFiltersBoundsAreInclusive) {
  const float logits[] = {0, 0};
  RowState row;
  row.sampling.temperature = 1;
  row.sampling.top_p = 0.5f;  // exactly what is before the second token
  EXPECT_EQ(sample_row(logits, 2, row, nullptr, nullptr, 0.99).token, 1);
  row.sampling.top_p = 1, row.sampling.min_p = 1;  // exactly the second one's share of the first
  EXPECT_EQ(sample_row(logits, 2, row, nullptr, nullptr, 0.99).token, 1);
}

TEST(ReferenceTest, ARowWithALogitThatIsNotFiniteIsGreedy) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const float logits[] = {1, bad, 1.5f, 1.4f};
    RowState row;
    row.sampling.temperature = 1;
    for (const double u : {0.0, 0.5, 0.99}) {
      EXPECT_EQ(sample_row(logits, 4, row, nullptr, nullptr, u).token, 2) << bad << " at " << u;
    }
  }
}

TEST(ReferenceTest, ARowWithoutCandidatesEnds) {
  const float logits[] = {NAN, INFINITY, -INFINITY};
  RowState row;
  row.sampling.temperature = 1;
  EXPECT_EQ(sample_row(logits, 3, row, nullptr, nullptr, 0.5).token, 0);
  row.num_stop_ids = 2;
  row.stop_ids[0] = 2;
  row.stop_ids[1] = 1;
  EXPECT_EQ(sample_row(logits, 3, row, nullptr, nullptr, 0.5).token, 2);
}

TEST(ReferenceTest, EachTokenOfARowIsDrawnWithItsOwnNumber) {
  constexpr int kVocab = 64;
  const std::vector<float> logits(kVocab, 1.0f);
  RowState row;
  row.sampling.temperature = 1;
  row.sampling.seed = 7;
  const std::int32_t seat = 0;
  for (const int num_generated : {0, 1, 2, 9}) {
    row.num_generated = num_generated;
    std::int32_t token = -1;
    float logprob = 0;
    sample({.logits = logits.data(),
            .rows = &seat,
            .row_states = &row,
            .tokens = &token,
            .logprobs = &logprob,
            .num_rows = 1,
            .vocab = kVocab});
    const double u = sampling_uniform(row.sampling.seed, num_generated);
    EXPECT_EQ(token, static_cast<std::int32_t>(u * kVocab)) << num_generated;
  }
}

// Counts are read on the device; the launch's bounds hold whatever they say.
TEST(ReferenceTest, BeginStepKeepsToTheLaunchsBounds) {
  RowState states[2];
  RowState installs[2];
  installs[0].sampling.seed = 5, installs[1].sampling.seed = 6;
  const std::int32_t install_rows[] = {0, 1};
  const PageTableDelta deltas[] = {{.row = 0, .index = 0, .page = 8},
                                   {.row = 0, .index = 1, .page = 9}};
  const std::int32_t two = 2;
  std::int32_t page_table[] = {-1, -1};
  begin_step({.install_rows = install_rows,
              .installs = installs,
              .deltas = deltas,
              .num_installs = &two,
              .num_deltas = &two,
              .max_installs = 1,
              .max_deltas = 1,
              .row_states = states,
              .page_table = page_table,
              .page_table_stride = 2});
  EXPECT_EQ(states[0].sampling.seed, 5u);
  EXPECT_EQ(states[1].sampling.seed, 0u);
  EXPECT_EQ(page_table[0], 8);
  EXPECT_EQ(page_table[1], -1);
}

TEST(ReferenceTest, BinsToValues) {
  EXPECT_EQ(coordinate_of_bin(0, 1024), 0.0f);
  EXPECT_EQ(coordinate_of_bin(1023, 1024), 1.0f);
  EXPECT_FLOAT_EQ(coordinate_of_bin(512, 1024), 512.0f / 1023);
  EXPECT_EQ(size_of_bin(0, 1024), 1.0f / 1024);
  EXPECT_EQ(size_of_bin(1023, 1024), 1.0f);
}

TEST(ReferenceTest, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(round_to(DType::kBF16, 1.0f), 1.0f);
  EXPECT_EQ(round_to(DType::kBF16, 1.00390625f), 1.0f);       // halfway, to even
  EXPECT_EQ(round_to(DType::kBF16, 1.01171875f), 1.015625f);  // halfway, to even
  EXPECT_EQ(round_to(DType::kBF16, 0.0039215689f), 0.00393676758f);
  EXPECT_TRUE(std::isnan(round_to(DType::kBF16, NAN)));
  EXPECT_EQ(round_to(DType::kBF16, INFINITY), INFINITY);
}

}  // namespace
}  // namespace gapless::reference
