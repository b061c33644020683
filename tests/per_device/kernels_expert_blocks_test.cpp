// Parallel blocks with experts and scaled heads in decode steps: Moondream 3's.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/per_device/decoder_blocks_fixture.h"

namespace gapless::decoder_blocks {
namespace {

class ExpertBlocksTest : public BlocksTest {
 protected:
  void SetUp() override {
    BlocksTest::SetUp();
    // The other paths have no such kernel.
    expects_launch_ = std::string(kernels_->path()) == "9.0a";
  }

  // Whether the backend says how many experts it read.
  bool expects_count() const { return expects_launch_; }
  // Most rows were compared with the oracle.
  void expect_most_rows_sure() const { EXPECT_GE(2 * num_sure_rows_, num_rows_); }
};

// Of three layers the first is dense. An expert is 128 wide.
Shape moondream3(int num_heads, int num_experts = 32) {
  return {.num_heads = num_heads,
          .ff_dim = 1024,
          .num_blocks = 3,
          .num_experts = num_experts,
          .experts_per_token = 8,
          .first_with_experts = 1};
}

TEST_P(ExpertBlocksTest, OneRow) {
  for (const int cached : {0, 15, 16, 31, 32, 127, 850, 2047}) {
    check(make_problem(moondream3(4), {cached}), {});
  }
  expect_most_rows_sure();
}

TEST_P(ExpertBlocksTest, AnyNumberOfRows) {
  for (const int count : of_launch<Counts>({2, 7, 8, 9, 16, 17, 32, 33, 64}, {2, 9, 33})) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check(make_problem(moondream3(4), contexts(count)), {0, count / 2, count - 1});
  }
  expect_most_rows_sure();
}

// All layers behind the first have experts, or only the last one.
TEST_P(ExpertBlocksTest, DenseLayersInFront) {
  for (const int first : {1, 2}) {
    for (const int count : {3, 20}) {
      SCOPED_TRACE(std::to_string(count) + " rows, experts from layer " + std::to_string(first));
      Shape shape = moondream3(4, 64);
      shape.first_with_experts = first;
      check(make_problem(shape, contexts(count)), {1});
    }
  }
  expect_most_rows_sure();
}

TEST_P(ExpertBlocksTest, Widths) {
  Shape narrow = moondream3(2, 16);
  narrow.ff_dim = 512, narrow.experts_per_token = 4, narrow.vocab = 16;
  check(make_problem(narrow, contexts(5)), {1});
  check(make_problem(narrow, contexts(40)), {1});
  // Wider experts, and more tiles of each product than a pass has rows.
  Shape wide = moondream3(10, 16);
  wide.ff_dim = 2048, wide.vocab = 3000;
  check(make_problem(wide, contexts(3)), {1});
  check(make_problem(wide, contexts(19)), {3});
  expect_most_rows_sure();
}

// All rows choose the same experts, so an expert has many passes.
TEST_P(ExpertBlocksTest, RowsThatChooseAlike) {
  for (const int count : {8, 9, 31, 64}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Shape shape = moondream3(4);
    Problem p = make_problem(shape, std::vector<int>(static_cast<std::size_t>(count), 0));
    const auto dim = static_cast<std::size_t>(shape.dim());
    std::vector<float> x = p.x.host;
    for (std::size_t i = dim; i < x.size(); ++i) x[i] = x[i % dim];
    p.x = tensor(x);
    const Result all = run_device(p, 0, count);
    expect_same_rows(p, run_device(p, count - 1, 1), all, count - 1, 1);
    expect_same_rows(p, run_device(p, 1, count - 1), all, 1, count - 1);
    if (expects_count()) {
      EXPECT_EQ(all.num_chosen, 16u);
    }
  }
}

// Without weights the router's logits are its biases: of equal ones the lower index wins.
TEST_P(ExpertBlocksTest, TiesGoToTheLowerIndex) {
  for (const int count : {1, 12}) {
    Problem p = make_problem(moondream3(4, 64), contexts(count));
    for (Block& block : p.blocks) {
      if (block.router.out == 0) continue;
      block.router.weight = tensor(std::vector<float>(block.router.weight.host.size(), 0.0f));
      std::vector<float> bias(64, 0.0f);
      for (const int e : {5, 63, 40}) bias[static_cast<std::size_t>(e)] = 0.5f;
      block.router.bias = tensor(bias);
    }
    prepare_blocks(p, PreparedFormat::kNative);
    check(p, {0});
  }
  EXPECT_EQ(num_sure_rows_, num_rows_);
}

// More units than a warp has lanes, and page tables of 8192 tokens.
TEST_P(ExpertBlocksTest, LongContexts) {
  Shape shape = moondream3(2, 16);
  shape.max_context = 8192, shape.vocab = 16, shape.num_blocks = 2;
  check(make_problem(shape, {8191}), {});
  check(make_problem(shape, {2048, 7000, -1, 1055, 1056, 2079, 2080, 4095, 4096, 33}), {1, 7});
}

TEST_P(ExpertBlocksTest, ManyKeys) {
  Shape shape = moondream3(of_launch(8, 2), 16);
  shape.vocab = 16;
  check(make_problem(shape, many_keys()), {0, 30});
}

TEST_P(ExpertBlocksTest, NeededLogitsAreThoseAmongAll) {
  Shape shape = moondream3(4);
  shape.vocab = 3000, shape.shares_pages = true;
  for (const int count : of_launch<Counts>({1, 9, 40}, {1, 9})) check_needed_logits(shape, count);
}

// Most blocks of a launch have nothing to do in most steps of a layer, and must not run ahead.
TEST_P(ExpertBlocksTest, FewColumns) {
  for (const int rows : of_launch<Counts>({1, 5, 64}, {5})) {
    Shape shape = moondream3(2, 16);
    shape.num_blocks = 12, shape.vocab = 16;
    const Problem p = make_problem(shape, std::vector<int>(static_cast<std::size_t>(rows), 40));
    const Result first = run_device(p, 0, rows);
    for (int i = of_launch(20, 2); i > 0; --i) {
      expect_same_rows(p, run_device(p, 0, rows), first, 0, rows);
    }
    for (const float x : first.x) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(ExpertBlocksTest, DoneRowsBesideLiveOnesTouchNoPage) {
  for (const int count : {2, 12, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    check_done_rows_touch_no_page(moondream3(4), count);
  }
}

// Nor do they choose experts: what is read is what the live rows chose.
TEST_P(ExpertBlocksTest, DoneRowsChooseNoExperts) {
  for (const int count : {4, 12, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    std::vector<int> cached(static_cast<std::size_t>(count), -1);
    cached[static_cast<std::size_t>(count) - 2] = 70;
    const Problem p = make_problem(moondream3(4), cached);
    const Result all = run_device(p, 0, count);
    expect_same_rows(p, run_device(p, count - 2, 1), all, count - 2, 1);
    if (expects_count()) {
      EXPECT_EQ(all.num_chosen, 16u);
    }
  }
}

TEST_P(ExpertBlocksTest, AStepOfDoneRowsDoesNothing) {
  for (const int count : {1, 12, 40}) {
    SCOPED_TRACE(std::to_string(count) + " rows");
    const Shape shape = moondream3(4);
    const Problem live = make_problem(shape, contexts(count));
    const Problem dead = make_problem(shape, std::vector<int>(static_cast<std::size_t>(count), -1));
    const Result before = run_device(live, 0, count);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Result nothing = run_device(dead, 0, count);
      EXPECT_EQ(nothing.num_chosen, 0u);
    }
    expect_same_rows(live, run_device(live, 0, count), before, 0, count);
  }
}

TEST_P(ExpertBlocksTest, WeightsIn8BitsGiveWhatTheirCopiesInTGive) {
  if (!prepares(128)) GTEST_SKIP() << "this backend prepares no weights";
  for (const int rows : {1, 9, 20, 33}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    check_weights_in_8_bits(moondream3(4), rows);
  }
}

// The widths of the model, but for fewer experts and layers.
TEST_P(ExpertBlocksTest, Moondream3) {
  Shape shape = moondream3(32, 16);
  shape.ff_dim = 8192, shape.num_blocks = 2, shape.vocab = 2064;
  check(make_problem(shape, contexts(is_f32() ? 1 : 4)), {0});
}

// With an 8-bit cache such steps are composed.
INSTANTIATE_TEST_SUITE_P(Formats, ExpertBlocksTest, ::testing::Values(KvFormat::kNative),
                         kv_format_name);

}  // namespace
}  // namespace gapless::decoder_blocks
