#include "pipeline/step_graphs.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/limits.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

TEST(StepGraphsTest, BucketsTakeWhatTheyAreAskedFor) {
  EXPECT_EQ(decode_bucket(1, 6), 1);
  EXPECT_EQ(decode_bucket(3, 6), 4);
  EXPECT_EQ(decode_bucket(4, 6), 4);
  EXPECT_EQ(decode_bucket(5, 6), 6) << "no bucket is larger than the seats";
  StepLimits limits;
  limits.max_graph_tokens = 700;
  EXPECT_EQ(prefill_token_bucket(1, limits), 16);
  EXPECT_EQ(prefill_token_bucket(33, limits), 64);
  EXPECT_EQ(prefill_token_bucket(128, limits), 128);
  EXPECT_EQ(prefill_token_bucket(129, limits), 256);
  EXPECT_EQ(prefill_token_bucket(641, limits), 700) << "the last one ends at the limit";
  EXPECT_EQ(prefill_token_bucket(701, limits), 701) << "no graph";
  EXPECT_EQ(prefill_row_bucket(1, 16), 1);
  EXPECT_EQ(prefill_row_bucket(2, 16), 4);
  EXPECT_EQ(prefill_row_bucket(2, 3), 3);
  EXPECT_EQ(prefill_row_bucket(5, 16), 16);
}

class StepGraphsCaptureTest : public ::testing::Test {
 protected:
  StepGraphsCaptureTest() {
    limits_.max_seats = 4;
    limits_.max_prefill_sequences = 2;
    limits_.max_graph_tokens = 32;
    limits_.max_graph_crops = 3;
    stream_ = device_.create_stream("compute").value();
    memory_ = device_.allocate(16).value();
  }
  Status fill(StepPart, const StepShape&) { return stream_->fill_bytes(memory_.data(), 1, 16); }

  SimDevice device_;
  StepLimits limits_;
  Buffer memory_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(StepGraphsCaptureTest, EveryBucketHasItsGraphs) {
  StepGraphs graphs;
  ASSERT_TRUE(graphs
                  .capture(*stream_, limits_,
                           [&](StepPart part, const StepShape& shape) { return fill(part, shape); })
                  .ok());
  for (const int rows : {1, 2, 4}) {
    for (const bool with_regions : {false, true}) {
      const StepShape decode{.num_rows = rows, .with_regions = with_regions};
      for (const StepPart part : {StepPart::kForward, StepPart::kSampling, StepPart::kBoth}) {
        EXPECT_NE(graphs.find(part, decode), nullptr) << rows << " rows";
      }
    }
  }
  for (const int tokens : {16, 32}) {
    for (const int rows : {1, 2}) {
      const StepShape prefill{
          .kind = StepKind::kPrefill, .num_rows = rows, .num_tokens = tokens, .num_segments = rows};
      EXPECT_NE(graphs.find(StepPart::kForward, prefill), nullptr) << tokens << " tokens";
      EXPECT_NE(graphs.find(StepPart::kSampling, prefill), nullptr);
    }
  }
  for (int crops = 1; crops <= 3; ++crops) {
    const StepShape encode{.kind = StepKind::kEncode, .num_crops = crops};
    EXPECT_NE(graphs.find(StepPart::kForward, encode), nullptr) << crops << " crops";
  }
  EXPECT_EQ(graphs.find(StepPart::kForward, {.kind = StepKind::kEncode, .num_crops = 4}), nullptr);
  EXPECT_EQ(
      graphs.find(StepPart::kForward, {.kind = StepKind::kEncode, .num_crops = 3, .first_crop = 3}),
      nullptr)
      << "a graph writes its features to the first places";
  EXPECT_EQ(graphs.find(StepPart::kForward, {.num_rows = 3}), nullptr);
}

// Rows without a grammar replay what they always did; a model without grammars has no graph for them.
TEST_F(StepGraphsCaptureTest, SamplingsUnderGrammarsAreGraphsOfTheirOwn) {
  for (const bool holds_grammars : {false, true}) {
    StepGraphs graphs;
    std::vector<StepShape> samplings;
    const auto enqueue = [&](StepPart part, const StepShape& shape) {
      if (part != StepPart::kForward && shape.with_grammars) samplings.push_back(shape);
      return fill(part, shape);
    };
    ASSERT_TRUE(graphs.capture(*stream_, limits_, enqueue, holds_grammars).ok());
    EXPECT_EQ(samplings.empty(), !holds_grammars);
    for (const bool with_regions : {false, true}) {
      StepShape decode{.num_rows = 4, .with_regions = with_regions};
      const Graph* const plain = graphs.find(StepPart::kBoth, decode);
      const Graph* const forward = graphs.find(StepPart::kForward, decode);
      StepShape prefill{.kind = StepKind::kPrefill, .num_rows = 2, .with_regions = with_regions};
      decode.with_grammars = prefill.with_grammars = true;
      EXPECT_EQ(graphs.find(StepPart::kForward, decode), forward);
      EXPECT_EQ(graphs.find(StepPart::kBoth, decode) != nullptr, holds_grammars);
      EXPECT_EQ(graphs.find(StepPart::kSampling, prefill) != nullptr, holds_grammars);
      EXPECT_NE(graphs.find(StepPart::kBoth, decode), plain);
    }
  }
}

TEST_F(StepGraphsCaptureTest, AFailedCaptureLeavesTheStreamAtWork) {
  StepGraphs graphs;
  int num_calls = 0;
  const Status captured =
      graphs.capture(*stream_, limits_, [&](StepPart part, const StepShape& shape) {
        return ++num_calls == 3 ? invalid_argument("no such op") : fill(part, shape);
      });
  EXPECT_EQ(captured.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(num_calls, 3);
  EXPECT_TRUE(fill({}, {}).ok());
  const Status synchronized = stream_->synchronize();
  EXPECT_TRUE(synchronized.ok()) << synchronized.to_string();
  EXPECT_EQ(*memory_.as<std::uint8_t>(), 1) << "done, not recorded";
}

}  // namespace
}  // namespace gapless
