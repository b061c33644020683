// Sequential blocks of the Llama family in decode steps: RMS norms, grouped queries of 128 dimensions, gated
// feed-forward.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/per_device/decoder_blocks_fixture.h"

namespace gapless::decoder_blocks {
namespace {

class SequentialBlocksTest : public BlocksTest {
 protected:
  void SetUp() override {
    BlocksTest::SetUp();
    expects_launch_ = true;
    // Several query heads read the same rounded keys and values, and no bias is added to what comes of it.
    fp8_tolerance_ = 5e-2;
  }
};

// Heads that are as wide together as the model is by chance only.
Shape llama(int num_heads, int num_kv_heads, int width, int ff_dim) {
  return {.num_heads = num_heads,
          .ff_dim = ff_dim,
          .head_dim = 128,
          .num_kv_heads = num_kv_heads,
          .rotary_dim = 128,
          .is_sequential = true,
          .width = width};
}

Shape with_head_norms(Shape shape) {
  shape.normalises_heads = true;
  return shape;
}

TEST_P(SequentialBlocksTest, OneRow) {
  for (const int cached : {0, 15, 16, 31, 32, 63, 64, 850, 2047}) {
    check(make_problem(llama(4, 1, 256, 512), {cached}), {});
  }
}

TEST_P(SequentialBlocksTest, AnyNumberOfRows) {
  for (const int count :
       of_launch<Counts>({2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200}, {2, 9, 33})) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check(make_problem(with_head_norms(llama(4, 2, 256, 512)), contexts(count)),
          {0, count / 2, count - 1});
  }
}

TEST_P(SequentialBlocksTest, Groups) {
  for (const auto& [heads, kv_heads] :
       {std::pair{3, 3}, {1, 1}, {2, 1}, {6, 3}, {3, 1}, {8, 2}, {12, 3}}) {
    SCOPED_TRACE(std::to_string(heads) + " query heads, " + std::to_string(kv_heads));
    check(make_problem(llama(heads, kv_heads, 384, 256), contexts(5)), {2});
    check(make_problem(with_head_norms(llama(heads, kv_heads, 384, 256)), contexts(11)), {3});
  }
}

TEST_P(SequentialBlocksTest, Widths) {
  Shape narrow = llama(4, 1, 128, 128);
  narrow.num_blocks = 3, narrow.vocab = 16;
  check(make_problem(narrow, contexts(5)), {1});
  // Rows that are wider than what all threads normalise at once.
  Shape wide = llama(4, 1, 2176, 128);
  wide.num_blocks = 2, wide.vocab = 3000;
  check(make_problem(wide, contexts(3)), {1});
  check(make_problem(wide, contexts(19)), {3});
  Shape tall = llama(2, 2, 128, 2944);
  tall.num_blocks = 1;
  check(make_problem(tall, contexts(9)), {3});
}

// More pieces of columns than sums are kept apart, in kernels of all numbers of rows.
TEST_P(SequentialBlocksTest, ManyColumnsHaveTheSameBitsInAnyBatch) {
  Shape shape = of_launch(llama(8, 2, 1152, 2432), llama(4, 2, 288, 608));
  shape.vocab = 3000;
  const int most = of_launch(256, 64);
  const Problem p = make_problem(shape, contexts(most));
  const Result all = run_device(p, 0, most);
  for (const int count : {1, 8, 16, 32, 64, 100}) {
    if (count >= most) continue;
    expect_same_rows(p, run_device(p, 0, count), all, 0, count);
    expect_same_rows(p, run_device(p, most - count, count), all, most - count, count);
  }
}

// More units than a warp has lanes, and twice that; page tables of 8192 tokens.
TEST_P(SequentialBlocksTest, LongContexts) {
  Shape shape = with_head_norms(llama(4, 1, 128, 128));
  shape.max_context = 8192, shape.vocab = 16;
  check(make_problem(shape, {8191}), {});
  check(make_problem(shape, {2048, 7000, -1, 1055, 1056, 2079, 2080, 4095, 4096, 33}), {1, 7});
}

// Their units are merged into parts, in blocks that depend on the number of rows.
TEST_P(SequentialBlocksTest, LongContextsHaveTheSameBitsInAnyBatch) {
  Shape shape = llama(4, 1, 128, 128);
  shape.max_context = 8192, shape.vocab = 16, shape.num_blocks = 1;
  std::vector<int> cached;
  const int most = of_launch(36, 10);
  for (int row = 0; row < most; ++row) cached.push_back(row * 2711 % 8191);
  const Problem p = make_problem(shape, cached);
  const Result all = run_device(p, 0, most);
  for (const int count : of_launch<Counts>({1, 8, 16, 32}, {1, 8})) {
    expect_same_rows(p, run_device(p, 0, count), all, 0, count);
    expect_same_rows(p, run_device(p, most - count, count), all, most - count, count);
  }
}

TEST_P(SequentialBlocksTest, ManyKeys) {
  Shape shape = of_launch(llama(8, 4, 256, 128), llama(4, 2, 128, 128));
  shape.vocab = 16;
  check(make_problem(shape, many_keys()), {0, 30});
}

TEST_P(SequentialBlocksTest, NeededLogitsAreThoseAmongAll) {
  Shape shape = llama(4, 2, 256, 256);
  shape.vocab = 3000, shape.shares_pages = true;
  for (const int count : of_launch<Counts>({1, 9, 40}, {1, 9})) check_needed_logits(shape, count);
}

// Most blocks of a launch have nothing to do in most steps of a layer, and must not run ahead.
TEST_P(SequentialBlocksTest, FewColumns) {
  for (const int rows : of_launch<Counts>({5, 64}, {5})) {
    Shape shape = llama(1, 1, 128, 128);
    shape.num_blocks = 12, shape.vocab = 16;
    const Problem p = make_problem(shape, std::vector<int>(static_cast<std::size_t>(rows), 40));
    const Result first = run_device(p, 0, rows);
    for (int i = of_launch(20, 2); i > 0; --i) {
      expect_same_rows(p, run_device(p, 0, rows), first, 0, rows);
    }
    for (const float x : first.x) ASSERT_TRUE(std::isfinite(x));
  }
}

// On other devices attention is an op of its own, with a promise of its own.
TEST_P(SequentialBlocksTest, DoneRowsBesideLiveOnesTouchNoPage) {
  for (const int count : {2, 12, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check_done_rows_touch_no_page(llama(4, 1, 256, 256), count);
  }
}

// Nothing is computed for them, and the launches before and after do not notice.
TEST_P(SequentialBlocksTest, AStepOfDoneRowsDoesNothing) {
  for (const int count : {1, 12, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Shape shape = llama(4, 1, 256, 256);
    const Problem live = make_problem(shape, contexts(count));
    const Problem dead = make_problem(shape, std::vector<int>(static_cast<std::size_t>(count), -1));
    const Result before = run_device(live, 0, count);
    for (int repeat = 0; repeat < 3; ++repeat) run_device(dead, 0, count);
    expect_same_rows(live, run_device(live, 0, count), before, 0, count);
  }
}

TEST_P(SequentialBlocksTest, WeightsIn8BitsGiveWhatTheirCopiesInTGive) {
  if (!prepares(128)) GTEST_SKIP() << "this backend prepares no weights";
  for (const int rows : {1, 9, 33}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    check_weights_in_8_bits(with_head_norms(llama(4, 2, 384, 1152)), rows);
  }
}

// The widths of both families' 8B models, but for a short feed-forward.
TEST_P(SequentialBlocksTest, Llama8B) {
  Shape shape = llama(32, 8, 4096, 1024);
  shape.num_blocks = 1, shape.vocab = 2064;
  check(make_problem(with_head_norms(shape), contexts(is_f32() ? 1 : 4)), {0});
}

INSTANTIATE_TEST_SUITE_P(Formats, SequentialBlocksTest,
                         ::testing::Values(KvFormat::kNative, KvFormat::kFp8), kv_format_name);

}  // namespace
}  // namespace gapless::decoder_blocks
