// Experts: which are chosen, what becomes of their outputs, and what is not read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/limits.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

class ExpertsTest : public KernelsTest {
 protected:
  struct Problem {
    ExpertSizes sizes;
    TestTensor x, residual, router, router_bias, up, down;
    int num_rows = 0;
  };

  // The router copies the first num_experts elements of a row: logits are what `logits` says, to the bit.
  Problem make_problem(const ExpertSizes& s, const std::vector<float>& logits) {
    const auto num_rows = logits.size() / static_cast<std::size_t>(s.num_experts);
    std::vector<float> x = random_values(num_rows * s.dim);
    for (std::size_t r = 0; r < num_rows; ++r) {
      std::copy_n(logits.begin() + static_cast<std::ptrdiff_t>(r) * s.num_experts, s.num_experts,
                  x.begin() + static_cast<std::ptrdiff_t>(r) * s.dim);
    }
    std::vector<float> router(static_cast<std::size_t>(s.num_experts) * s.dim, 0.0f);
    for (int e = 0; e < s.num_experts; ++e) router[static_cast<std::size_t>(e) * s.dim + e] = 1;
    const auto matrices = [&](int out, int in) {
      return random_tensor(static_cast<std::size_t>(s.num_experts) * out * in,
                           1 / std::sqrt(1.0f * in));
    };
    return {.sizes = s,
            .x = tensor(std::move(x)),
            .residual = random_tensor(num_rows * s.dim),
            .router = tensor(std::move(router)),
            .router_bias = tensor(std::vector<float>(s.num_experts, 0.0f)),
            .up = matrices(2 * s.inner, s.dim),
            .down = matrices(s.dim, s.inner),
            .num_rows = static_cast<int>(num_rows)};
  }
  Problem make_problem(const ExpertSizes& s, int num_rows) {
    return make_problem(s, distinct_logits(s.num_experts, num_rows));
  }

  // Each row a shuffle of num_experts values half a unit apart, exact in bfloat16.
  std::vector<float> distinct_logits(int num_experts, int num_rows) {
    std::vector<float> all;
    for (int r = 0; r < num_rows; ++r) {
      std::vector<float> row(static_cast<std::size_t>(num_experts));
      for (int e = 0; e < num_experts; ++e) row[e] = 0.5f * static_cast<float>(e - num_experts / 2);
      std::shuffle(row.begin(), row.end(), random_);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  template <typename Pick>
  static ExpertsParams params_of(const Problem& p, Pick data) {
    const ExpertSizes& s = p.sizes;
    return {.x = data(p.x),
            .residual = data(p.residual),
            .num_rows = p.num_rows,
            .ff = {.kind = FeedForwardKind::kExperts,
                   .activation = Activation::kGeluErf,
                   .up_offset = 1,
                   .up = {.weight = data(p.up), .in = s.dim, .out = 2 * s.inner},
                   .down = {.weight = data(p.down), .in = s.inner, .out = s.dim},
                   .num_experts = s.num_experts,
                   .experts_per_token = s.experts_per_token,
                   .router = {data(p.router), data(p.router_bias), s.dim, s.num_experts}}};
  }

  // Rows [begin, begin + count) of the problem.
  std::vector<float> run_device(const Problem& p, int begin, int count, bool in_place = false) {
    ExpertsParams params = params_of(p, [](const TestTensor& t) { return t.dev(); });
    const std::size_t skipped = static_cast<std::size_t>(begin) * p.sizes.dim;
    const auto row_of = [&](const void* rows) {
      return static_cast<const char*>(rows) + skipped * dtype_bytes(dtype());
    };
    const TestTensor copy = tensor(
        {p.residual.host.begin() + static_cast<std::ptrdiff_t>(skipped),
         p.residual.host.begin() +
             static_cast<std::ptrdiff_t>(skipped + static_cast<std::size_t>(count) * p.sizes.dim)});
    const Buffer y = poisoned(static_cast<std::size_t>(count) * p.sizes.dim);
    const Buffer scratch =
        poisoned_bytes(kernels_->experts_scratch_bytes(std::max(count, 1), p.sizes));
    params.x = row_of(params.x);
    params.residual = in_place ? copy.dev() : row_of(params.residual);
    params.y = in_place ? copy.device.data() : y.data();
    params.num_rows = count;
    params.decode = count <= 8;
    params.scratch = scratch.data();
    run(kernels_->experts(*stream_, params));
    return floats(in_place ? copy.device : y);
  }
  std::vector<float> run_device(const Problem& p) { return run_device(p, 0, p.num_rows); }

  std::vector<float> run_reference(const Problem& p) {
    ExpertsParams params = params_of(p, [](const TestTensor& t) { return t.ref(); });
    std::vector<float> y(p.residual.host.size());
    params.y = y.data();
    reference::experts(params, dtype());
    return y;
  }
};

TEST_F(ExpertsTest, AgreesWithReference) {
  const ExpertSizes shapes[] = {
      {.dim = 64, .inner = 32, .num_experts = 8, .experts_per_token = 2},
      {.dim = 80, .inner = 48, .num_experts = 5, .experts_per_token = 5},
      {.dim = 136, .inner = 24, .num_experts = 64, .experts_per_token = 8},
      {.dim = 64, .inner = 16, .num_experts = 16, .experts_per_token = 1},
      {.dim = 256,
       .inner = 64,
       .num_experts = kMaxExperts,
       .experts_per_token = kMaxExpertsPerToken}};
  for (const ExpertSizes& shape : shapes) {
    for (const int num_rows : {1, 3, 70, 200}) {
      const Problem p = make_problem(shape, num_rows);
      EXPECT_TRUE(rows_close(run_device(p), run_reference(p), shape.dim, tolerance()))
          << shape.num_experts << " experts, " << num_rows << " rows";
    }
  }
}

// Equal logits: the experts of the lowest indices, with equal weights.
TEST_F(ExpertsTest, TiesGoToTheLowestIndex) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 12, .experts_per_token = 3};
  std::vector<float> logits(12, 1.0f);
  logits[9] = 2;  // then 0 and 1
  const Problem p = make_problem(shape, logits);
  EXPECT_TRUE(rows_close(run_device(p), run_reference(p), shape.dim, tolerance()));
  std::vector<reference::ChosenExpert> chosen(3);
  reference::choose_experts(logits, chosen);
  EXPECT_EQ(chosen[0].expert, 9);
  EXPECT_EQ(chosen[1].expert, 0);
  EXPECT_EQ(chosen[2].expert, 1);
  EXPECT_FLOAT_EQ(chosen[0].weight, 1 / (1 + 2 * std::exp(-1.0f)));
  EXPECT_EQ(chosen[1].weight, chosen[2].weight);
}

// Whose weights are not numbers.
TEST_F(ExpertsTest, ExpertsThatNobodyChoseAreNotRead) {
  const ExpertSizes shape{.dim = 64, .inner = 32, .num_experts = 8, .experts_per_token = 2};
  for (const int num_rows : {1, 90}) {
    std::vector<float> logits;
    for (int r = 0; r < num_rows; ++r) {
      std::vector<float> row(8, -4.0f);
      row[r % 2 == 0 ? 3 : 6] = 2;
      row[7] = 1;
      logits.insert(logits.end(), row.begin(), row.end());
    }
    Problem p = make_problem(shape, logits);
    const std::vector<float> clean = run_device(p);
    for (TestTensor* weights : {&p.up, &p.down}) {
      std::vector<float> values = weights->host;
      const std::size_t each = values.size() / 8;
      for (std::size_t e = 0; e < 8; ++e) {
        const bool is_chosen = e == 3 || e == 7 || (e == 6 && num_rows > 1);
        if (is_chosen) continue;
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(e * each), each, NAN);
      }
      *weights = tensor(std::move(values));
    }
    EXPECT_TRUE(bits_equal(run_device(p), clean)) << num_rows << " rows";
  }
}

// More rows than are sorted at once, and tiles of any filling.
TEST_F(ExpertsTest, RowsDoNotDependOnTheBatch) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 8, .experts_per_token = 3};
  const Problem p = make_problem(shape, 1100);
  const std::vector<float> all = run_device(p);
  for (const auto& [begin, count] : {std::pair{0, 1}, {1099, 1}, {500, 8}, {1000, 100}, {3, 700}}) {
    EXPECT_TRUE(bits_equal(run_device(p, begin, count), rows_of(all, 64, begin, begin + count)))
        << begin << " and " << count;
  }
}

TEST_F(ExpertsTest, TheResultMayTakeThePlaceOfTheResidual) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 4, .experts_per_token = 2};
  const Problem p = make_problem(shape, 9);
  EXPECT_TRUE(bits_equal(run_device(p, 0, 9, /*in_place=*/true), run_device(p)));
}

// A row that is not numbers spoils itself alone.
TEST_F(ExpertsTest, LogitsThatAreNotNumbersDoNoHarm) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 4, .experts_per_token = 3};
  std::vector<float> logits = distinct_logits(4, 5);
  const Problem clean = make_problem(shape, logits);
  Problem p = make_problem(shape, logits);
  p.residual = tensor(clean.residual.host);
  p.up = tensor(clean.up.host), p.down = tensor(clean.down.host);
  std::vector<float> x = clean.x.host;
  std::fill_n(x.begin() + 2 * 64, 64, NAN);
  p.x = tensor(std::move(x));
  const std::vector<float> expected = run_device(clean), actual = run_device(p);
  for (const int row : {0, 1, 3, 4}) {
    EXPECT_TRUE(bits_equal(rows_of(actual, 64, row, row + 1), rows_of(expected, 64, row, row + 1)));
  }
  EXPECT_TRUE(std::isnan(actual[2 * 64]));
}

}  // namespace
}  // namespace gapless
