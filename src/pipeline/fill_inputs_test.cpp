// A step's inputs, number by number: what the simulated model does not look at (padding, the last
// tokens) as well.
#include "pipeline/fill_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace gapless {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::uint8_t kStale = 0x5a;  // what an earlier step left

class FillInputsTest : public ::testing::Test {
 protected:
  FillInputsTest() {
    limits_.max_seats = 4;
    limits_.max_prefill_tokens = 96;
    limits_.max_prefill_sequences = 3;
    limits_.num_pages = 32;
    limits_.max_pages_per_row = 6;
    limits_.num_image_slots = 2;
    limits_.max_page_copies = 2;
    limits_.max_page_deltas = 18;
    limits_.max_graph_tokens = 64;
    info_.vocab = 100;
    info_.max_context = 96;
    info_.image_tokens = 20;
    seating_.emplace(info_, limits_, 8);
    const StepLayout layout(limits_);
    memory_.assign(layout.total_bytes(), kStale);
    inputs_ = layout.at(memory_.data());
  }

  RowId seat(int num_tokens) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = SequenceId(num_tokens);
    for (int i = 0; i < num_tokens; ++i) sequence->prompt.inputs.push_back({.id = 10 + i});
    sequence->prompt.row.max_generated = 4;
    sequence->prompt.row.position = 77;  // the loop's to set
    Sequence* const seated = sequence.get();
    EXPECT_TRUE(seating_->seat(sequence));
    return seated->row;
  }
  template <typename T>
  static std::vector<T> first(const T* values, int count) {
    return {values, values + count};
  }
  int slot(RowId row, int position) { return seating_->pages(row).cache_slot(position); }

  StepLimits limits_;
  StepModelInfo info_;
  std::optional<Seating> seating_;
  std::vector<std::uint8_t> memory_;
  StepInputs inputs_;
};

TEST_F(FillInputsTest, TwoPromptsPaddedToTheirBucket) {
  const RowId a = seat(18), b = seat(3);
  StepPlan plan;
  plan.kind = StepKind::kPrefill;
  plan.num_rows = 2;
  plan.row_ids[0] = a;
  plan.row_ids[1] = b;
  const StepShape shape = fill_prefill(plan, limits_, *seating_, info_.image_tokens, inputs_);
  EXPECT_EQ(shape.num_tokens, 32) << "21 tokens";
  EXPECT_EQ(shape.num_rows, 3);
  EXPECT_EQ(shape.num_segments, 3);

  EXPECT_THAT(first(inputs_.rows, 3), ElementsAre(a.value, b.value, -1));
  EXPECT_THAT(first(inputs_.last_tokens, 3), ElementsAre(17, 20, 0));
  EXPECT_THAT(first(inputs_.tokens_consumed, 3), ElementsAre(18, 3, 0));
  EXPECT_EQ(inputs_.sequences[1].first_token, 18);
  EXPECT_EQ(inputs_.sequences[1].num_tokens, 3);
  EXPECT_EQ(inputs_.sequences[2].num_tokens, 0) << "padding";
  for (int t = 0; t < 21; ++t) {
    const int position = t < 18 ? t : t - 18;
    EXPECT_EQ(inputs_.inputs[t].id, 10 + position);
    EXPECT_EQ(inputs_.positions[t], position);
    EXPECT_EQ(inputs_.cache_slots[t], slot(t < 18 ? a : b, position));
  }
  EXPECT_THAT(first(inputs_.cache_slots + 21, 11), Each(0)) << "the trash page";
  EXPECT_THAT(first(inputs_.positions + 21, 11), Each(0));
  EXPECT_EQ(inputs_.inputs[31].id, 0);

  EXPECT_EQ(*inputs_.num_installs, 2);
  EXPECT_EQ(inputs_.installs[0].position, 0);
  EXPECT_EQ(*inputs_.num_copies, 0);
  ASSERT_EQ(*inputs_.num_deltas, 3) << "21 and 6 places";
  EXPECT_EQ(inputs_.deltas[1].row, a.value);
  EXPECT_EQ(inputs_.deltas[1].index, 1);
  EXPECT_EQ(inputs_.deltas[1].page * 16 + 1, slot(a, 17));
  EXPECT_EQ(inputs_.deltas[2].index, 0);
}

TEST_F(FillInputsTest, ADecodeNamesItsRowsAndChangesNothing) {
  const RowId a = seat(18), b = seat(3), c = seat(5);
  StepPlan plan;
  plan.kind = StepKind::kDecode;
  plan.num_rows = 3;
  plan.row_ids[0] = c;
  plan.row_ids[1] = a;
  plan.row_ids[2] = b;
  const StepShape shape = fill_decode(plan, limits_, inputs_);
  EXPECT_EQ(shape.num_rows, 4);
  EXPECT_THAT(first(inputs_.rows, 4), ElementsAre(c.value, a.value, b.value, -1));
  EXPECT_EQ(*inputs_.num_installs, 0);
  EXPECT_EQ(*inputs_.num_deltas, 0);
  EXPECT_EQ(*inputs_.num_copies, 0);
}

}  // namespace
}  // namespace gapless
