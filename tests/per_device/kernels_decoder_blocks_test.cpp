// Moondream's parallel blocks in decode steps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/per_device/decoder_blocks_fixture.h"

namespace gapless::decoder_blocks {
namespace {

class DecoderBlocksTest : public BlocksTest {};

TEST_P(DecoderBlocksTest, OneRow) {
  for (const int cached : {0, 15, 16, 31, 32, 127, 128, 850, 2047}) {
    check(make_problem({}, {cached}), {});
  }
}

TEST_P(DecoderBlocksTest, AnyNumberOfRows) {
  for (const int count : {2, 7, 8, 9, 16, 17, 22, 32, 33, 64}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check(make_problem({}, contexts(count)), {0, count / 2, count - 1});
  }
}

TEST_P(DecoderBlocksTest, ManyKeys) {
  check(make_problem({.num_heads = 8, .ff_dim = 128, .num_blocks = 2, .vocab = 16}, many_keys()),
        {0, 30});
}

// On 132 multiprocessors each one's turns of the ring come and go twice over while it attends:
// whoever follows other stages alone must not take one turn for another.
TEST_P(DecoderBlocksTest, TurnsOfTheRingWithoutActivations) {
  for (const int rows : {12, 40}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    std::vector<int> cached;
    for (int i = 0; i < rows; ++i) cached.push_back(2047 - 3 * i);
    check(make_problem(
              {.num_heads = 16, .ff_dim = 128, .num_blocks = 2, .vocab = 16, .shares_pages = true},
              cached),
          {1});
  }
}

TEST_P(DecoderBlocksTest, NeededLogitsAreThoseAmongAll) {
  for (const int count : {1, 8, 9, 20, 40}) {
    check_needed_logits(
        {.num_heads = 4, .ff_dim = 256, .num_blocks = 3, .vocab = 3000, .shares_pages = true},
        count);
  }
}

TEST_P(DecoderBlocksTest, OtherWidths) {
  check(make_problem({.num_heads = 2, .ff_dim = 128, .num_blocks = 3, .vocab = 16}, contexts(5)),
        {1});
  check(
      make_problem({.num_heads = 10, .ff_dim = 1152, .num_blocks = 1, .vocab = 3000}, contexts(19)),
      {3});
  // Shapes that a backend may have to compose: an odd number of heads, widths of 32s.
  check(make_problem({.num_heads = 3, .ff_dim = 96, .num_blocks = 2, .vocab = 100}, contexts(9)),
        {0});
}

TEST_P(DecoderBlocksTest, WeightsIn8BitsGiveWhatTheirCopiesInTGive) {
  if (!prepares(128)) GTEST_SKIP() << "this backend prepares no weights";
  const std::vector<Shape> shapes = {
      {.num_heads = 2, .ff_dim = 128, .num_blocks = 3, .vocab = 16},
      {.num_heads = 10, .ff_dim = 1152, .num_blocks = 2, .vocab = 3000},
      {.num_heads = 32, .ff_dim = 8192, .num_blocks = 1, .vocab = 2064},
      // On 132 multiprocessors some of the ring's stages end where the ring does.
      {.num_heads = 4, .ff_dim = 4096, .num_blocks = 12, .vocab = 16},
  };
  for (const Shape& shape : shapes) {
    for (const int rows : {1, 9, 20, 33}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(shape.dim()));
      check_weights_in_8_bits(shape, rows);
    }
  }
}

// The first block's new entries depend on x alone: bit for bit the native ones, rounded.
TEST_P(DecoderBlocksTest, NewEntriesAreTheNativeOnesRounded) {
  if (GetParam() == KvFormat::kNative) return;
  for (const int count : {3, 20}) {
    Problem p = make_problem({}, contexts(count));
    const Result fp8 = run_device(p, 0, count);
    p.shape.kv_format = KvFormat::kNative;
    const Result native = run_device(p, 0, count);
    for (int i = 0; i < count; ++i) {
      if (p.cached[i] < 0) continue;
      for (const auto& [actual, unrounded] : {std::pair(&fp8.keys[0], &native.keys[0]),
                                              std::pair(&fp8.values[0], &native.values[0])}) {
        std::vector<float> expected = new_entry(p, *unrounded, i);
        for (float& value : expected) value = round_to_e4m3(value);
        EXPECT_TRUE(bits_equal(new_entry(p, *actual, i), expected)) << "row " << i;
      }
    }
  }
}

// Most blocks of a launch have nothing to do in most steps of a layer, and must not run ahead.
TEST_P(DecoderBlocksTest, FewColumns) {
  const Problem p = make_problem({.num_heads = 2, .ff_dim = 128, .num_blocks = 12, .vocab = 16},
                                 std::vector<int>(64, 40));
  const Result first = run_device(p, 0, 64);
  for (int i = 0; i < 20; ++i) expect_same_rows(p, run_device(p, 0, 64), first, 0, 64);
  for (const float x : first.x) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(DecoderBlocksTest, DoneRowsBesideLiveOnesTouchNoPage) {
  for (const int count : {2, 8, 12, 24, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check_done_rows_touch_no_page({}, count);
  }
}

// Nothing is computed for them, and the launches before and after do not notice.
TEST_P(DecoderBlocksTest, AStepOfDoneRowsDoesNothing) {
  for (const int count : {1, 8, 12, 24, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Problem live = make_problem({}, contexts(count));
    const Problem dead = make_problem({}, std::vector<int>(static_cast<std::size_t>(count), -1));
    const Result before = run_device(live, 0, count);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Result nothing = run_device(dead, 0, count);
      EXPECT_TRUE(bits_equal(nothing.x, dead.x.host));
      for (const float logit : nothing.logits) ASSERT_TRUE(std::isnan(logit)) << "poison";
    }
    expect_same_rows(live, run_device(live, 0, count), before, 0, count);
  }
}

// The rows' states are looked at early and may say less than the plan: the plan has the last word.
TEST_P(DecoderBlocksTest, ThePlanSaysWhoLives) {
  for (const int count : {3, 12}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    Problem p = make_problem({}, contexts(count));
    const Result expected = run_device(p, 0, count);
    for (RowState& row : p.row_states) row.done = 1;
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
    p.tells_rows = false;
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
    // Nobody lives, and nobody was told so early.
    Problem dead = make_problem({}, std::vector<int>(static_cast<std::size_t>(count), -1));
    for (RowState& row : dead.row_states) row.done = 0;
    run_device(dead, 0, count);
    p.tells_rows = true;
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
  }
}

TEST_P(DecoderBlocksTest, Moondream2) {
  const int rows = is_f32() ? 2 : 5;  // the oracle is slow
  check(make_problem({.num_heads = 32, .ff_dim = 8192, .num_blocks = 1, .vocab = 2064},
                     contexts(rows)),
        {0});
}

INSTANTIATE_TEST_SUITE_P(Formats, DecoderBlocksTest,
                         ::testing::Values(KvFormat::kNative, KvFormat::kFp8), kv_format_name);

}  // namespace
}  // namespace gapless::decoder_blocks
