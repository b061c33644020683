#include "pipeline/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "pipeline/sequence.h"

namespace gapless {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

StepLimits small_limits() {
  StepLimits limits;
  limits.max_seats = 16;
  limits.max_prefill_tokens = 100;
  limits.max_prefill_sequences = 4;
  limits.max_crops_per_encode = 10;
  limits.max_images_per_encode = 3;
  limits.max_page_deltas = 20;
  limits.max_page_copies = 2;
  return limits;
}

SeatView decoding(int row) {
  return {.row = RowId(row), .need = SeatNeed::kDecode};
}
SeatView prompt(int row, int num_tokens) {
  return {.row = RowId(row), .need = SeatNeed::kPrefill, .num_tokens = num_tokens, .num_pages = 1};
}
SeatView image(int row, int num_crops, int image_slot, int image = 0) {
  return {.row = RowId(row),
          .need = SeatNeed::kEncode,
          .image = image,
          .num_crops = num_crops,
          .image_slot = image_slot};
}
// Pairs of row and image.
std::vector<std::pair<int, int>> images_of(const std::optional<StepPlan>& plan) {
  std::vector<std::pair<int, int>> images;
  if (plan) {
    for (const PlannedImage& planned : plan->images()) {
      images.emplace_back(planned.row.value, planned.image);
    }
  }
  return images;
}

std::vector<int> rows_of(const std::optional<StepPlan>& plan) {
  std::vector<int> rows;
  if (plan) {
    for (const RowId row : plan->rows()) rows.push_back(row.value);
  }
  return rows;
}

std::optional<StepPlan> plan(std::vector<SeatView> seats, FillTurn turn = {}) {
  return plan_step(seats, small_limits(), turn);
}

TEST(PlanTest, NothingToDo) {
  EXPECT_FALSE(plan({}).has_value());
  EXPECT_FALSE(plan({{.row = RowId(0), .need = SeatNeed::kNothing}}).has_value());
}

// A prompt of several images is as many sequences to the attention.
TEST(PlanTest, APrefillTakesSoManySegments) {
  SeatView two = prompt(0, 10);
  two.num_segments = 2;
  SeatView three = prompt(1, 10);
  three.num_segments = 3;
  EXPECT_THAT(rows_of(plan({two, prompt(2, 5), prompt(3, 5)})), ElementsAre(0, 2, 3));
  EXPECT_THAT(rows_of(plan({two, three, prompt(2, 5)})), ElementsAre(0)) << "first come";
  EXPECT_THAT(rows_of(plan({three, prompt(2, 5), two})), ElementsAre(1, 2));
}

TEST(PlanTest, DecodeTakesEveryRowThatCan) {
  const auto step = plan({decoding(3), {.row = RowId(1)}, decoding(0)});
  EXPECT_EQ(step->kind, StepKind::kDecode);
  EXPECT_THAT(rows_of(step), ElementsAre(3, 0));
}

TEST(PlanTest, HostMaskedRowsComeFirst) {
  SeatView masked = decoding(2);
  masked.host_masked = true;
  SeatView regions = decoding(5);
  regions.decodes_regions = true;
  const auto step = plan({decoding(0), regions, masked});
  EXPECT_EQ(step->num_host_masked, 1);
  EXPECT_TRUE(step->with_regions);
  EXPECT_EQ(rows_of(step).front(), 2);
  EXPECT_THAT(rows_of(step), UnorderedElementsAre(0, 2, 5));
}

SeatView waiting_for_mask(int row) {
  SeatView view = decoding(row);
  view.host_masked = true;
  view.mask_is_ready = false;
  return view;
}

// A path behind its box is as cheap as text.
TEST(SequenceTest, DecodesRegionsAsLongAsTheyMayCome) {
  Sequence sequence;
  EXPECT_FALSE(sequence.decodes_regions());
  sequence.prompt.row.flags = kRowDecodesRegions;
  sequence.num_launched = 100;
  EXPECT_TRUE(sequence.decodes_regions());
  sequence.prompt.num_region_tokens = 3;
  for (sequence.num_launched = 0; sequence.num_launched < 6; ++sequence.num_launched) {
    EXPECT_EQ(sequence.decodes_regions(), sequence.num_launched < 3) << sequence.num_launched;
  }
}

// Rule 6.
TEST(PlanTest, PlainRowsWaitForNobodysMask) {
  SeatView ready = waiting_for_mask(4);
  ready.mask_is_ready = true;
  const auto mixed =
      plan({waiting_for_mask(2), decoding(0), ready, waiting_for_mask(5), decoding(1)});
  EXPECT_THAT(rows_of(mixed), UnorderedElementsAre(0, 1, 4));
  EXPECT_EQ(rows_of(mixed).front(), 4);
  EXPECT_EQ(mixed->num_host_masked, 1);
  // No plain row is there: their forward runs while masks are built, and nobody goes ahead alone.
  EXPECT_THAT(rows_of(plan({waiting_for_mask(2), ready})), ElementsAre(2, 4));
  const auto alone = plan({waiting_for_mask(2), {.row = RowId(7)}, waiting_for_mask(5)});
  EXPECT_THAT(rows_of(alone), ElementsAre(2, 5));
  EXPECT_EQ(alone->num_host_masked, 2);
  // Who does not decode is asked nothing.
  SeatView prompt_of_masked = prompt(3, 5);
  prompt_of_masked.host_masked = true;
  EXPECT_THAT(rows_of(plan({prompt_of_masked})), ElementsAre(3));
}

TEST(PlanTest, AStepKnowsWhetherARowHoldsAGrammar) {
  SeatView held = decoding(3);
  held.holds_grammar = true;
  EXPECT_TRUE(plan({decoding(0), held})->with_grammars);
  EXPECT_EQ(plan({decoding(0), held})->num_host_masked, 0);
  EXPECT_FALSE(plan({decoding(0)})->with_grammars);
  SeatView prompt_of_held = prompt(3, 5);
  prompt_of_held.holds_grammar = true;
  EXPECT_TRUE(plan({prompt_of_held})->with_grammars);
}

TEST(PlanTest, PrefillsArePackedUnderTheTokenBudgetInOrder) {
  EXPECT_THAT(rows_of(plan({prompt(0, 60), prompt(1, 40), prompt(2, 1)})), ElementsAre(0, 1));
  EXPECT_THAT(rows_of(plan({prompt(0, 60), prompt(1, 41), prompt(2, 1)})), ElementsAre(0))
      << "nobody overtakes the one who does not fit";
  EXPECT_EQ(
      rows_of(plan({prompt(0, 1), prompt(1, 1), prompt(2, 1), prompt(3, 1), prompt(4, 1)})).size(),
      4u);
}

TEST(PlanTest, PrefillsRespectPageDeltasAndCopies) {
  SeatView many_pages = prompt(0, 1);
  many_pages.num_pages = 15;
  SeatView more_pages = prompt(1, 1);
  more_pages.num_pages = 6;
  EXPECT_THAT(rows_of(plan({many_pages, more_pages})), ElementsAre(0));
  std::vector<SeatView> hits;
  for (int row = 0; row < 3; ++row) {
    hits.push_back(prompt(row, 1));
    hits.back().copies_tail = true;
  }
  EXPECT_THAT(rows_of(plan(hits)), ElementsAre(0, 1));
}

TEST(PlanTest, OnePromptOfAPackComputesASharedPrefix) {
  SeatView first = prompt(0, 10), second = prompt(1, 10), other = prompt(2, 10);
  first.prefix_group = second.prefix_group = 7;
  other.prefix_group = 8;
  EXPECT_THAT(rows_of(plan({first, second, other})), ElementsAre(0, 2));
}

TEST(PlanTest, ImagesArePackedUnderTheCropBudget) {
  EXPECT_THAT(rows_of(plan({image(0, 5, 0), image(1, 5, 1), image(2, 1, 2)})), ElementsAre(0, 1));
  EXPECT_THAT(rows_of(plan({image(0, 1, 0), image(1, 1, 1), image(2, 1, 2), image(3, 1, 3)})),
              ElementsAre(0, 1, 2));
}

// Rule 4.
TEST(PlanTest, AnImageLargerThanTheBudgetGoesAloneInParts) {
  std::vector<std::pair<int, int>> parts;
  SeatView large = image(0, 23, 0);
  while (large.first_crop < large.num_crops) {
    const auto step = plan({large, image(1, 1, 1)});
    EXPECT_THAT(images_of(step), ElementsAre(Pair(0, 0)));
    const PlannedImage& part = step->images().front();
    parts.emplace_back(part.first_crop, part.num_crops);
    large.first_crop += part.num_crops;
  }
  EXPECT_THAT(parts, ElementsAre(Pair(0, 10), Pair(10, 10), Pair(20, 3)));
  EXPECT_THAT(images_of(plan({image(1, 1, 1), large})), ElementsAre(Pair(1, 0)))
      << "nor behind another one";
  const auto whole = plan({image(1, 6, 1), image(2, 4, 2)});
  EXPECT_EQ(whole->images()[1].first_crop, 0);
  EXPECT_EQ(whole->images()[1].num_crops, 4);
}

// Between two parts of one image everybody else gets their turn.
TEST(PlanTest, PromptsAndRowsGoBetweenThePartsOfAnImage) {
  SeatView large = image(0, 100, 0);
  const std::vector<SeatView> others = {prompt(1, 5), decoding(2)};
  FillTurn turn;
  std::vector<StepKind> kinds;
  for (int i = 0; i < 6; ++i) {
    const auto step = plan({large, others[0], others[1]}, turn);
    turn.launched(step->kind);
    kinds.push_back(step->kind);
    if (step->kind == StepKind::kEncode) large.first_crop += step->images().front().num_crops;
  }
  EXPECT_THAT(kinds, ElementsAre(StepKind::kEncode, StepKind::kPrefill, StepKind::kDecode,
                                 StepKind::kEncode, StepKind::kPrefill, StepKind::kDecode));
  EXPECT_EQ(large.first_crop, 20);
}

TEST(PlanTest, ASharedImageIsEncodedOnce) {
  EXPECT_THAT(rows_of(plan({image(0, 5, 4), image(1, 5, 4), image(2, 5, 5)})), ElementsAre(0, 2));
}

TEST(PlanTest, SeveralImagesOfASequenceGoTogether) {
  const auto step = plan({image(4, 2, 0), image(4, 3, 1, 1), image(2, 1, 2)});
  EXPECT_THAT(rows_of(step), ElementsAre(4, 2)) << "each row once";
  EXPECT_THAT(images_of(step), ElementsAre(Pair(4, 0), Pair(4, 1), Pair(2, 0)));
  // As many as fit, and the rest later.
  EXPECT_THAT(images_of(plan({image(4, 5, 0), image(4, 6, 1, 1), image(2, 1, 2)})),
              ElementsAre(Pair(4, 0)));
  EXPECT_THAT(
      images_of(plan({image(4, 1, 0), image(4, 1, 1, 1), image(4, 1, 2, 2), image(4, 1, 3, 3)})),
      ElementsAre(Pair(4, 0), Pair(4, 1), Pair(4, 2)));
  // Images that an earlier row or the row itself encodes are left out.
  EXPECT_THAT(
      images_of(plan({image(4, 1, 7), image(4, 1, 7, 1), image(2, 1, 7), image(2, 1, 8, 1)})),
      ElementsAre(Pair(4, 0), Pair(2, 1)));
}

TEST(PlanTest, EncodeAndPrefillAlternate) {
  const std::vector<SeatView> seats = {prompt(0, 1), image(1, 1, 0)};
  FillTurn turn;
  turn.launched(StepKind::kEncode);
  EXPECT_EQ(plan(seats, turn)->kind, StepKind::kPrefill);
  turn.launched(StepKind::kPrefill);
  EXPECT_EQ(plan(seats, turn)->kind, StepKind::kEncode);
}

// Both waits that plan.h states, with every kind of work always waiting.
TEST(PlanTest, NobodyStarvesWhenEverythingWaitsAllTheTime) {
  const std::vector<SeatView> seats = {prompt(0, 90), image(1, 10, 0), decoding(2)};
  FillTurn turn;
  int since_decode = 0, since_prefill = 0, since_encode = 0;
  for (int i = 0; i < 100; ++i) {
    const StepKind kind = plan(seats, turn)->kind;
    turn.launched(kind);
    since_decode = kind == StepKind::kDecode ? 0 : since_decode + 1;
    since_prefill = kind == StepKind::kPrefill ? 0 : since_prefill + 1;
    since_encode = kind == StepKind::kEncode ? 0 : since_encode + 1;
    ASSERT_LE(since_decode, kMaxFillsInARow);
    ASSERT_LE(since_prefill, kMaxFillsInARow + 1);
    ASSERT_LE(since_encode, kMaxFillsInARow + 1);
  }
}

// Rule 5: half of the device for those who decode, where one step would be next to nothing.
TEST(PlanTest, ALongFillOwesDecodeStepsAsMuchTime) {
  constexpr std::int64_t kStepNs = 10'000'000;
  const std::vector<SeatView> seats = {decoding(0), image(1, 4, 0), prompt(2, 30)};
  FillTurn turn;
  turn.ended(StepKind::kEncode, kLongFillNs, kLongFillNs);
  EXPECT_NE(plan(seats, turn)->kind, StepKind::kDecode) << "not long yet";
  turn.ended(StepKind::kEncode, 50 * kStepNs, kLongFillNs);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(plan(seats, turn)->kind, StepKind::kDecode) << i;
    turn.ended(StepKind::kDecode, kStepNs, kLongFillNs);
  }
  EXPECT_NE(plan(seats, turn)->kind, StepKind::kDecode) << "and no more than that";
  turn.ended(StepKind::kPrefill, 50 * kStepNs, kLongFillNs);
  EXPECT_NE(plan({image(1, 4, 0)}, turn)->kind, StepKind::kDecode) << "nobody decodes";
}

TEST(PlanTest, FillsGoOnWhenNoRowCanDecode) {
  FillTurn turn;
  turn.fills_in_a_row = 10;
  EXPECT_EQ(plan({prompt(0, 1)}, turn)->kind, StepKind::kPrefill);
}

}  // namespace
}  // namespace gapless
