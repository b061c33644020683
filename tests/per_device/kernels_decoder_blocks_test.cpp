// Moondream's parallel blocks in decode steps.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/per_device/decoder_blocks_fixture.h"

namespace gapless::decoder_blocks {
namespace {

// Of widths whose units have even numbers of chunks, as launches of more than 64 rows want.
constexpr Shape kEven = {.num_heads = 16, .ff_dim = 1024, .num_blocks = 2, .vocab = 272};
// Where there are no launches it need not be as wide, and takes minutes if it is.
constexpr Shape kNarrow = {.num_heads = 2, .ff_dim = 128, .num_blocks = 1, .vocab = 16};

class DecoderBlocksTest : public BlocksTest {
 protected:
  Shape shape_of(int num_rows) const {
    if (num_rows <= 64) return {};
    return of_launch(kEven, kNarrow);
  }
};

TEST_P(DecoderBlocksTest, OneRow) {
  for (const int cached : {0, 15, 16, 31, 32, 127, 128, 850, 2047}) {
    check(make_problem({}, {cached}), {});
  }
}

TEST_P(DecoderBlocksTest, AnyNumberOfRows) {
  for (const int count : of_launch<Counts>({2, 7, 8, 9, 16, 17, 22, 32, 33, 64}, {2, 9, 33})) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check(make_problem({}, contexts(count)), {0, count / 2, count - 1});
  }
}

// Of more rows than a launch takes there are several.
TEST_P(DecoderBlocksTest, ManyRows) {
  for (const int count : of_launch<Counts>({65, 100, 200, 256}, {65})) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check(make_problem(of_launch(Shape(), kNarrow), contexts(count)), {0, 63, 64, count - 1});
  }
  if (!prepares(128)) return;
  for (const int count : {65, 128, 200}) {
    SCOPED_TRACE(std::to_string(count) + " rows of even units");
    check(make_problem(kEven, contexts(count)), {0, 64, count - 1});
  }
}

TEST_P(DecoderBlocksTest, ManyKeys) {
  check(
      make_problem(
          {.num_heads = of_launch(8, 2), .ff_dim = 128, .num_blocks = of_launch(2, 1), .vocab = 16},
          many_keys()),
      {0, 30});
}

// On 132 multiprocessors each one's turns of the ring come and go twice over while it attends:
// whoever follows other stages alone must not take one turn for another.
TEST_P(DecoderBlocksTest, TurnsOfTheRingWithoutActivations) {
  for (const int rows : of_launch<Counts>({12, 40, 100}, {12})) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    std::vector<int> cached;
    for (int i = 0; i < rows; ++i) cached.push_back(2047 - 3 * i);
    check(make_problem({.num_heads = of_launch(16, 2),
                        .ff_dim = rows > 64 ? 1024 : 128,
                        .num_blocks = 2,
                        .vocab = 16,
                        .shares_pages = true},
                       cached),
          {1});
  }
}

// Rows about several pictures: of many lengths, some shorter than what others have in common, some done.
class SharedPrefixTest : public DecoderBlocksTest {
 protected:
  // The others read each row's pages.
  bool shares_pages() const { return std::string(kernels_->path()) == "9.0a"; }

  Problem rows_about_pictures(int count, int num_pictures, int num_pages) {
    const int common = num_pages * kPageTokens;
    const std::vector<int> lengths = {common + 10, common + 130, common,
                                      common + 31, common + 200, common / 2};
    std::vector<int> cached;
    std::vector<Picture> pictures;
    for (int i = 0; i < count; ++i) {
      const bool is_done = count > 3 && i % 11 == 3, is_alone = count > 8 && i % 9 == 7;
      cached.push_back(is_done       ? -1
                       : i % 13 == 5 ? 40
                                     : lengths[static_cast<std::size_t>(i % (i < 12 ? 5 : 6))]);
      pictures.push_back(is_alone ? Picture() : Picture{i % num_pictures, num_pages});
    }
    Shape shape{.num_heads = 4, .ff_dim = 256, .num_blocks = 2, .vocab = 64};
    if (count > 64) shape = kEven, shape.num_blocks = 1;
    return make_problem(shape, cached, pictures);
  }

  // Rows' bits are those that they have alone, and if nobody tells what they share.
  void expect_bits_of_rows_alone(Problem p, int stride) {
    const int count = static_cast<int>(p.cached.size());
    const Result together = run_device(p, 0, count);
    for (int i = 0; i < count; i += stride)
      expect_same_rows(p, run_device(p, i, 1), together, i, 1);
    p.tells_prefixes = false;
    expect_same_rows(p, run_device(p, 0, count), together, 0, count);
  }
};

TEST_P(SharedPrefixTest, RowsHaveTheBitsThatTheyHaveAlone) {
  const std::vector<int> counts =
      shares_pages() ? std::vector<int>{2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64, 65, 128, 200}
                     : std::vector<int>{3, 9};
  for (const int count : counts) {
    for (const int num_pictures : {1, 3}) {
      SCOPED_TRACE(std::to_string(count) + " rows about " + std::to_string(num_pictures));
      expect_bits_of_rows_alone(rows_about_pictures(count, num_pictures, count % 2 == 0 ? 45 : 7),
                                count < 20    ? 1
                                : count <= 64 ? 5
                                              : 17);
    }
  }
}

TEST_P(SharedPrefixTest, RowsAreWhatTheOracleSays) {
  check(rows_about_pictures(12, 1, 10), {0, 1, 11});
  check(rows_about_pictures(40, 3, 9), {2, 39});
}

// On 132 multiprocessors each has several units of sets.
TEST_P(SharedPrefixTest, ManyHeads) {
  const int count = shares_pages() ? 20 : 3;
  const auto n = static_cast<std::size_t>(count);
  expect_bits_of_rows_alone(
      make_problem({.num_heads = 32, .ff_dim = 128, .num_blocks = 2, .vocab = 16},
                   std::vector<int>(n, 850), std::vector<Picture>(n, Picture{0, 45})),
      7);
}

// What a set shares is read through its first row's page table: the others may name what is no number.
TEST_P(SharedPrefixTest, ASetsPagesAreReadOnce) {
  if (!shares_pages()) GTEST_SKIP() << "this backend reads each row's pages";
  for (const int count : {2, 8, 20, 100, 140}) {
    if (GetParam() == KvFormat::kFp8 && count <= 8)
      continue;  // so few share nothing of such a cache
    SCOPED_TRACE(std::to_string(count) + " rows");
    const auto n = static_cast<std::size_t>(count);
    Problem p = make_problem(count > 64 ? kEven : Shape(), std::vector<int>(n, 300),
                             std::vector<Picture>(n, Picture{0, 17}));
    const Result expected = run_device(p, 0, count);
    for (int i = 0; i < count; ++i) {
      if (i % kMaxSharingRows == 0) continue;
      const std::int64_t seat = p.sequences[static_cast<std::size_t>(i)].row;
      const auto pages = p.page_table.begin() + seat * p.shape.pages_per_row();
      std::fill(pages, pages + 16, 0);
    }
    expect_same_rows(p, run_device(p, 0, count), expected, 0, count);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SharedPrefixTest,
                         ::testing::Values(KvFormat::kNative, KvFormat::kFp8), kv_format_name);

TEST_P(DecoderBlocksTest, NeededLogitsAreThoseAmongAll) {
  for (const int count : of_launch<Counts>({1, 8, 9, 20, 40}, {1, 9})) {
    check_needed_logits(
        {.num_heads = 4, .ff_dim = 256, .num_blocks = 3, .vocab = 3000, .shares_pages = true},
        count);
  }
  Shape even = kEven;
  even.vocab = 3000, even.shares_pages = true;
  for (const int count : {100, 150}) {
    if (prepares(128)) check_needed_logits(even, count);
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

// More pieces of columns than sums are kept apart, in kernels of all numbers of rows.
TEST_P(DecoderBlocksTest, ManyColumnsHaveTheSameBitsInAnyBatch) {
  const Problem p = make_problem(
      of_launch<Shape>({.num_heads = 18, .ff_dim = 2432, .num_blocks = 2, .vocab = 3000},
                       {.num_heads = 3, .ff_dim = 544, .num_blocks = 1, .vocab = 300}),
      contexts(64));
  const Result all = run_device(p, 0, 64);
  for (const int count : {1, 8, 16, 32}) {
    expect_same_rows(p, run_device(p, 0, count), all, 0, count);
    expect_same_rows(p, run_device(p, 64 - count, count), all, 64 - count, count);
  }
}

// Steps of one launch of up to 128 rows, of two, and of launches of 64.
TEST_P(DecoderBlocksTest, ManyRowsHaveTheSameBitsInAnyBatch) {
  // The first has to be composed of single ops everywhere.
  std::vector<Shape> shapes = {{.num_heads = 3, .ff_dim = 96, .num_blocks = 2, .vocab = 100}};
  if (prepares(128)) {
    shapes.push_back({.num_heads = 4, .ff_dim = 256, .num_blocks = 2, .vocab = 64});
    shapes.push_back({.num_heads = 16, .ff_dim = 3072, .num_blocks = 2, .vocab = 3000});
    shapes.push_back({.num_heads = 32, .ff_dim = 8192, .num_blocks = 1, .vocab = 2064});
  }
  for (const Shape& shape : shapes) {
    std::vector<int> cached = contexts(256);
    if (shape.num_heads > 4) {
      for (int& tokens : cached) tokens = std::min(tokens, 90);
    }
    const Problem p = make_problem(shape, cached);
    const Result all = run_device(p, 0, 256);
    for (const int count : of_launch<Counts>({1, 9, 33, 64, 65, 100, 128, 129, 200}, {1, 33, 65})) {
      SCOPED_TRACE(std::to_string(count) + " rows of " + std::to_string(shape.dim()));
      expect_same_rows(p, run_device(p, 256 - count, count), all, 256 - count, count);
    }
  }
}

TEST_P(DecoderBlocksTest, WeightsIn8BitsGiveWhatTheirCopiesInTGive) {
  if (!prepares(128)) GTEST_SKIP() << "this backend prepares no weights";
  const std::vector<Shape> shapes = {
      {.num_heads = 2, .ff_dim = 128, .num_blocks = 3, .vocab = 16},
      {.num_heads = 10, .ff_dim = 1152, .num_blocks = 2, .vocab = 3000},
      {.num_heads = 32, .ff_dim = 8192, .num_blocks = 1, .vocab = 2064},
      kEven,
      // On 132 multiprocessors some of the ring's stages end where the ring does.
      {.num_heads = 4, .ff_dim = 4096, .num_blocks = 12, .vocab = 16},
  };
  for (const Shape& shape : shapes) {
    for (const int rows : {1, 9, 20, 33, 100}) {
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
      for (const KvPart part : kParts) {
        std::vector<float> expected = new_entry(p, native.caches[0], part, i);
        for (float& value : expected) value = round_to_e4m3(value);
        EXPECT_TRUE(bits_equal(new_entry(p, fp8.caches[0], part, i), expected)) << "row " << i;
      }
    }
  }
}

// Most blocks of a launch have nothing to do in most steps of a layer, and must not run ahead.
TEST_P(DecoderBlocksTest, FewColumns) {
  const Problem p = make_problem({.num_heads = 2, .ff_dim = 128, .num_blocks = 12, .vocab = 16},
                                 std::vector<int>(64, 40));
  const Result first = run_device(p, 0, 64);
  for (int i = of_launch(20, 2); i > 0; --i) {
    expect_same_rows(p, run_device(p, 0, 64), first, 0, 64);
  }
  for (const float x : first.x) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(DecoderBlocksTest, FewColumnsAndManyRows) {
  if (!prepares(128)) GTEST_SKIP() << "this backend has no launches of many blocks";
  const Problem p = make_problem({.num_heads = 16, .ff_dim = 1024, .num_blocks = 12, .vocab = 16},
                                 std::vector<int>(128, 40));
  const Result first = run_device(p, 0, 128);
  for (int i = 0; i < 20; ++i) expect_same_rows(p, run_device(p, 0, 128), first, 0, 128);
  for (const float x : first.x) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(DecoderBlocksTest, DoneRowsBesideLiveOnesTouchNoPage) {
  for (const int count : of_launch<Counts>({2, 8, 12, 24, 40, 150}, {2, 24, 150})) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check_done_rows_touch_no_page(shape_of(count), count);
  }
}

// Nothing is computed for them, and the launches before and after do not notice.
TEST_P(DecoderBlocksTest, AStepOfDoneRowsDoesNothing) {
  for (const int count : of_launch<Counts>({1, 8, 12, 24, 40, 150}, {1, 24, 150})) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Shape shape = shape_of(count);
    const Problem live = make_problem(shape, contexts(count));
    const Problem dead = make_problem(shape, std::vector<int>(static_cast<std::size_t>(count), -1));
    const Result before = run_device(live, 0, count);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Result nothing = run_device(dead, 0, count);
      EXPECT_TRUE(bits_equal(nothing.x, dead.x.host));
      for (const float logit : nothing.logits) ASSERT_TRUE(std::isnan(logit)) << "poison";
    }
    expect_same_rows(live, run_device(live, 0, count), before, 0, count);
  }
}

// Nor are the ops of a graph run where all rows are done, and with one alive they all are.
TEST_P(DecoderBlocksTest, AComposedStepOfDoneRowsDoesNothingInAGraph) {
  composes_in_graph_ = true;
  for (const int count : {1, 9}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Problem dead = make_problem({}, std::vector<int>(static_cast<std::size_t>(count), -1));
    const Result nothing = run_device(dead, 0, count);
    EXPECT_TRUE(bits_equal(nothing.x, dead.x.host));
    for (const float logit : nothing.logits) ASSERT_TRUE(std::isnan(logit)) << "poison";
    for (std::size_t block = 0; block < dead.blocks.size(); ++block) {
      EXPECT_TRUE(bits_equal(nothing.caches[block], dead.blocks[block].cache.host));
    }
    std::vector<int> cached(static_cast<std::size_t>(count), -1);
    cached.back() = 40;
    check(make_problem({}, cached), {count - 1});
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

// The first launch's rows are done, or the second's.
TEST_P(DecoderBlocksTest, ALaunchOfDoneRowsLeavesTheOtherAsItIs) {
  for (const bool first_is_done : {false, true}) {
    std::vector<int> cached(200, 70);
    for (int i = 0; i < 200; ++i) {
      if ((i < 128) == first_is_done) cached[static_cast<std::size_t>(i)] = -1;
    }
    check(make_problem(shape_of(200), cached),
          {first_is_done ? 128 : 0, first_is_done ? 199 : 127});
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
