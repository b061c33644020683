// Experts: which are chosen, what becomes of their outputs, and what is not read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/limits.h"
#include "kernels/dense_ops.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

// Of sums of e4m3 numbers a GPU's accumulators keep some 14 bits. So a gate or an up may be rounded to the next bfloat16 number, and of
// what they make a few numbers to the next e4m3 number, up to an eighth away: where it is the largest of a row, that is a few
// hundredths of the row (0.033 was the most of 900 rows on an H200). On a CPU nearly none is. A row, an expert or a piece of 16
// columns with another's scale or numbers is far more.
constexpr double kFp8Tolerance = 3e-2, kCoarseFp8Tolerance = 6e-2;

struct Way {
  bool in_place = false;
  bool gives_logits = false;
  bool in_halves = false;                  // the first is not told residual and y
  std::vector<bool> lives = {};            // by row; empty: not told
  const struct Fp8Problem* fp8 = nullptr;  // not nullptr: products in 8 bits
};

// Rows and weights of a problem in 8 bits, and the same numbers on the host.
struct Fp8Rows {
  Fp8Buffers device;
  std::vector<float> host;
};
struct Fp8Problem {
  Fp8Rows x, up, down;
};

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

  // Rows, of x and of weights, of very different sizes; x but for what the router reads.
  Problem make_uneven_problem(const ExpertSizes& s, const std::vector<float>& logits) {
    Problem p = make_problem(s, logits);
    const auto scaled = [this](const TestTensor& rows, int width, int begin) {
      std::vector<float> values = rows.host;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto row = i / static_cast<std::size_t>(width);
        const bool is_scaled =
            i % static_cast<std::size_t>(width) >= static_cast<std::size_t>(begin);
        if (is_scaled) values[i] *= std::exp2(static_cast<float>(row % 5) - 2);
      }
      return tensor(std::move(values));
    };
    p.x = scaled(p.x, s.dim, s.num_experts);
    p.up = scaled(p.up, s.dim, 0);
    p.down = scaled(p.down, s.inner, 0);
    return p;
  }

  Fp8Problem in_fp8(const Problem& p) {
    const auto rounded = [this](const TestTensor& rows, int width) {
      Fp8Rows result{.device = rows_to_fp8(rows, width), .host = rows.host};
      std::vector<float> scales(rows.host.size() / static_cast<std::size_t>(width));
      reference::rows_to_fp8({.x = rows.ref(),
                              .x_stride = width,
                              .y = result.host.data(),
                              .y_stride = width,
                              .scales = scales.data(),
                              .num_rows = static_cast<int>(scales.size()),
                              .dim = width});
      return result;
    };
    return {.x = rounded(p.x, p.sizes.dim),
            .up = rounded(p.up, p.sizes.dim),
            .down = rounded(p.down, p.sizes.inner)};
  }

  double fp8_tolerance() const { return is_f32() ? kFp8Tolerance : kCoarseFp8Tolerance; }

  // Four experts that all rows choose, with several tiles each, and many that few rows choose.
  std::vector<float> uneven_logits(int num_rows) {
    std::vector<float> logits = distinct_logits(64, num_rows);
    for (std::size_t row = 0; row < static_cast<std::size_t>(num_rows); ++row) {
      for (std::size_t e = 0; e < 4; ++e)
        logits[row * 64 + 9 * e] = 20 + 0.5f * static_cast<float>(e);
    }
    return logits;
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
  std::vector<float> run_device(const Problem& p, int begin, int count, const Way& way = {}) {
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
    params.residual = way.in_place ? copy.dev() : row_of(params.residual);
    params.y = way.in_place ? copy.device.data() : y.data();
    params.num_rows = count;
    params.decode = count <= 8;
    params.scratch = scratch.data();
    if (way.fp8 != nullptr) {
      const std::size_t row_bytes = p.sizes.dim * kernels_->fp8_element_bytes();
      params.x_fp8 = way.fp8->x.device.values.as<std::byte>() + begin * row_bytes;
      params.x_fp8_stride = p.sizes.dim;
      params.x_scales = way.fp8->x.device.scales.as<float>() + begin;
      params.decode = false;
      const auto read = [](LinearWeights& weights, const Fp8Rows& rows) {
        weights.weight = nullptr;
        weights.fp8 = rows.device.values.data();
        weights.fp8_scales = rows.device.scales.as<float>();
      };
      read(params.ff.up, way.fp8->up);
      read(params.ff.down, way.fp8->down);
    }
    const TestTensor logits =
        tensor(way.gives_logits ? logits_of(p, begin, count) : std::vector{0.0f});
    if (way.gives_logits) {
      params.logits = logits.dev();
      params.ff.router = {};
    }
    std::vector<AttentionSequence> sequences;
    for (const bool lives : way.lives) {
      const auto row = static_cast<std::int32_t>(sequences.size());
      sequences.push_back({.row = row, .first_token = row, .num_tokens = lives ? 1 : 0});
    }
    const Buffer sequences_dev =
        upload(sequences.empty() ? std::vector<AttentionSequence>(1) : sequences);
    if (!sequences.empty()) params.sequences = sequences_dev.as<AttentionSequence>();
    if (way.in_halves) {
      ExpertsParams first = params;
      first.half = ExpertsHalf::kFirst;
      first.residual = nullptr, first.y = nullptr;
      run(kernels_->experts(*stream_, first));
      params.half = ExpertsHalf::kSecond;
    }
    run(kernels_->experts(*stream_, params));
    return floats(way.in_place ? copy.device : y);
  }

  // What the problem's router makes of its rows.
  static std::vector<float> logits_of(const Problem& p, int begin, int count) {
    std::vector<float> logits;
    for (int r = begin; r < begin + count; ++r) {
      const auto row = p.x.host.begin() + static_cast<std::ptrdiff_t>(r) * p.sizes.dim;
      logits.insert(logits.end(), row, row + p.sizes.num_experts);
    }
    return logits;
  }
  std::vector<float> run_device(const Problem& p) { return run_device(p, 0, p.num_rows); }

  std::vector<float> run_reference(const Problem& p, const Fp8Problem* fp8 = nullptr) {
    ExpertsParams params = params_of(p, [](const TestTensor& t) { return t.ref(); });
    if (fp8 != nullptr) {
      params.x_fp8 = fp8->x.host.data(), params.x_fp8_stride = p.sizes.dim;
      params.ff.up.fp8 = fp8->up.host.data();
      params.ff.down.fp8 = fp8->down.host.data();
    }
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
    for (const int num_rows : {1, 2, 3, 4, 8, 17, 33, 64, 65, 70, 200}) {
      const Problem p = make_problem(shape, num_rows);
      EXPECT_TRUE(rows_close(run_device(p), run_reference(p), shape.dim, tolerance()))
          << shape.num_experts << " experts, " << num_rows << " rows";
    }
  }
}

// Widths beyond 512 columns, and not whole pieces of them: products are summed up in pieces on a GPU.
TEST_F(ExpertsTest, WideOnesAgreeWithReference) {
  const ExpertSizes shapes[] = {
      {.dim = 1032, .inner = 520, .num_experts = 4, .experts_per_token = 2},
      {.dim = 520, .inner = 1096, .num_experts = 3, .experts_per_token = 3},
      {.dim = 2048, .inner = 1024, .num_experts = 2, .experts_per_token = 1}};
  for (const ExpertSizes& shape : shapes) {
    const Problem p = make_problem(shape, 66);
    const std::vector<float> expected = run_reference(p);
    for (const int num_rows : {1, 5, 64, 66}) {
      EXPECT_TRUE(rows_close(run_device(p, 0, num_rows), rows_of(expected, shape.dim, 0, num_rows),
                             shape.dim, tolerance()))
          << shape.dim << " wide, " << num_rows << " rows";
    }
  }
}

TEST_F(ExpertsTest, AllRowsMayChooseTheSameExperts) {
  const ExpertSizes shape{.dim = 72, .inner = 40, .num_experts = 8, .experts_per_token = 2};
  for (const int num_rows : {1, 4, 7, 16, 31, 64, 90}) {
    std::vector<float> logits;
    for (int r = 0; r < num_rows; ++r) {
      const float step = 0.125f * static_cast<float>(r % 5);  // other weights, the same experts
      logits.insert(logits.end(), {0, 0, 4 + step, 0, 0, 5, 0, 0});
    }
    const Problem p = make_problem(shape, logits);
    EXPECT_TRUE(rows_close(run_device(p), run_reference(p), shape.dim, tolerance()))
        << num_rows << " rows";
  }
}

TEST_F(ExpertsTest, RoutesMayBeUneven) {
  const ExpertSizes shape{.dim = 264, .inner = 136, .num_experts = 64, .experts_per_token = 8};
  const Problem p = make_problem(shape, uneven_logits(300));
  const std::vector<float> all = run_device(p);
  EXPECT_TRUE(rows_close(all, run_reference(p), shape.dim, tolerance()));
  for (const auto& [begin, count] : {std::pair{0, 300}, {100, 150}, {290, 10}}) {
    EXPECT_TRUE(
        bits_equal(run_device(p, begin, count), rows_of(all, shape.dim, begin, begin + count)))
        << begin << " and " << count;
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
  for (const auto& [begin, count] : {std::pair{0, 1},
                                     {1099, 1},
                                     {500, 8},
                                     {40, 33},
                                     {70, 64},
                                     {70, 65},
                                     {1000, 100},
                                     {3, 700}}) {
    EXPECT_TRUE(bits_equal(run_device(p, begin, count), rows_of(all, 64, begin, begin + count)))
        << begin << " and " << count;
  }
}

// Sums of many columns, whose order shows.
TEST_F(ExpertsTest, WideRowsDoNotDependOnTheBatch) {
  const ExpertSizes shape{.dim = 1544, .inner = 1032, .num_experts = 6, .experts_per_token = 4};
  const Problem p = make_problem(shape, 100);
  const std::vector<float> all = run_device(p);
  for (const auto& [begin, count] :
       {std::pair{0, 1}, {99, 1}, {50, 8}, {7, 30}, {20, 64}, {3, 65}}) {
    EXPECT_TRUE(
        bits_equal(run_device(p, begin, count), rows_of(all, shape.dim, begin, begin + count)))
        << begin << " and " << count;
  }
}

TEST_F(ExpertsTest, In8BitsTheyAgreeWithReference) {
  if (!kernels_->multiplies_fp8_experts()) GTEST_SKIP() << "this path has no such products";
  constexpr int kRows = 41;
  for (const ExpertSizes& shape :
       {ExpertSizes{.dim = 64, .inner = 16, .num_experts = 6, .experts_per_token = 3},
        ExpertSizes{.dim = 1040, .inner = 1552, .num_experts = 3, .experts_per_token = 2},
        ExpertSizes{.dim = 272, .inner = 144, .num_experts = 64, .experts_per_token = 8},
        ExpertSizes{.dim = 2048, .inner = 1024, .num_experts = 4, .experts_per_token = 2}}) {
    const Problem p = make_uneven_problem(shape, distinct_logits(shape.num_experts, kRows));
    const Fp8Problem fp8 = in_fp8(p);
    const std::vector<float> expected = run_reference(p, &fp8);
    const std::vector<float> all = run_device(p, 0, kRows, {.fp8 = &fp8});
    EXPECT_TRUE(rows_close(all, expected, shape.dim, fp8_tolerance())) << shape.dim << " wide";
    EXPECT_FALSE(rows_close(all, run_reference(p), shape.dim, fp8_tolerance()))
        << "rounding is more than that";
    for (const auto& [begin, count] : {std::pair{0, 1}, {40, 1}, {3, 2}, {10, 9}, {5, 33}}) {
      EXPECT_TRUE(bits_equal(run_device(p, begin, count, {.fp8 = &fp8}),
                             rows_of(all, shape.dim, begin, begin + count)))
          << shape.dim << " wide, " << begin << " and " << count;
    }
    EXPECT_TRUE(bits_equal(run_device(p, 0, kRows, {.in_halves = true, .fp8 = &fp8}), all));
    EXPECT_TRUE(bits_equal(
        run_device(p, 0, kRows, {.in_place = true, .gives_logits = true, .fp8 = &fp8}), all));
  }
}

// Experts with several tiles beside such with few rows.
TEST_F(ExpertsTest, In8BitsRoutesMayBeUneven) {
  if (!kernels_->multiplies_fp8_experts()) GTEST_SKIP() << "this path has no such products";
  const ExpertSizes shape{.dim = 272, .inner = 144, .num_experts = 64, .experts_per_token = 8};
  const Problem p = make_uneven_problem(shape, uneven_logits(300));
  const Fp8Problem fp8 = in_fp8(p);
  const std::vector<float> all = run_device(p, 0, 300, {.fp8 = &fp8});
  EXPECT_TRUE(rows_close(all, run_reference(p, &fp8), shape.dim, fp8_tolerance()));
  for (const auto& [begin, count] : {std::pair{0, 300}, {100, 150}, {290, 10}, {7, 1}}) {
    EXPECT_TRUE(bits_equal(run_device(p, begin, count, {.fp8 = &fp8}),
                           rows_of(all, shape.dim, begin, begin + count)))
        << begin << " and " << count;
  }
}

TEST_F(ExpertsTest, In8BitsTheyNeedCopiesAndWholePieces) {
  const bool checks = test_device_kind() == DeviceKind::kCuda && kernels_->multiplies_fp8_experts();
  if (!checks) GTEST_SKIP() << "a GPU with such products does";
  for (const ExpertSizes& shape :
       {ExpertSizes{.dim = 72, .inner = 16, .num_experts = 4, .experts_per_token = 2},
        ExpertSizes{.dim = 64, .inner = 24, .num_experts = 4, .experts_per_token = 2},
        ExpertSizes{.dim = 64, .inner = 16, .num_experts = 4, .experts_per_token = 2}}) {
    const bool fits = shape.dim % 16 == 0 && shape.inner % 16 == 0;
    const Problem p = make_problem(shape, 3);
    ExpertsParams params = params_of(p, [](const TestTensor& t) { return t.dev(); });
    params.x_fp8 = p.x.dev(), params.x_fp8_stride = 2 * shape.dim;
    if (!fits) params.ff.up.fp8 = params.ff.down.fp8 = p.up.dev();
    EXPECT_EQ(kernels_->experts(*stream_, params).code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(ExpertsTest, LogitsMayBeGiven) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 12, .experts_per_token = 3};
  for (const int num_rows : {9, 80, 1030}) {
    const Problem p = make_problem(shape, num_rows);
    EXPECT_TRUE(bits_equal(run_device(p, 0, num_rows, {.gives_logits = true}), run_device(p)));
  }
}

// Half of a logit comes from the first columns, half from the last ones, and a little from the bias.
TEST_F(ExpertsTest, RoutersAddUpAllColumnsAndTheBias) {
  for (const int dim : {64, 520, 2048}) {
    const ExpertSizes shape{.dim = dim, .inner = 16, .num_experts = 20, .experts_per_token = 3};
    for (const int num_rows : {1, 9, 33, 100}) {
      Problem p = make_problem(shape, num_rows);
      const auto width = static_cast<std::size_t>(dim);
      std::vector<float> x = p.x.host, router = p.router.host, bias(20);
      for (std::size_t e = 0; e < 20; ++e) {
        const std::size_t last = width - 20 + e;
        for (std::size_t row = 0; row < x.size(); row += width) {
          x[row + last] = x[row + e] /= 2;
        }
        router[e * width + last] = 1;
        bias[e] = 0.25f * static_cast<float>(e % 2);
      }
      p.x = tensor(std::move(x)), p.router = tensor(std::move(router));
      p.router_bias = tensor(std::move(bias));
      EXPECT_TRUE(rows_close(run_device(p), run_reference(p), dim, tolerance()))
          << dim << " wide, " << num_rows << " rows";
    }
  }
}

TEST_F(ExpertsTest, HalvesMakeTheWhole) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 12, .experts_per_token = 3};
  for (const int num_rows : {1, 4, 5, 64, 80}) {
    for (const bool given : {false, true}) {
      const Problem p = make_problem(shape, num_rows);
      EXPECT_TRUE(bits_equal(
          run_device(p, 0, num_rows, {.in_place = true, .gives_logits = given, .in_halves = true}),
          run_device(p)))
          << num_rows << " rows, logits given: " << given;
    }
  }
}

// Zeros of both signs are equal, the lower index goes first. (A router's sum is never -0.)
TEST_F(ExpertsTest, ZerosOfBothSignsAreTies) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 4, .experts_per_token = 2};
  const Problem zeros = make_problem(shape, std::vector<float>{0, 0, -1, 0});
  Problem p = make_problem(shape, std::vector<float>{-0.0f, 0, -1, 0});
  p.residual = tensor(zeros.residual.host);
  p.up = tensor(zeros.up.host), p.down = tensor(zeros.down.host);
  p.x = tensor(zeros.x.host);
  p.x.host[0] = -0.0f;  // a logit; the row is the same
  EXPECT_TRUE(bits_equal(run_device(p, 0, 1, {.gives_logits = true}), run_device(zeros)));
}

// Dead rows are not numbers, and so are the weights that only they chose.
TEST_F(ExpertsTest, DeadRowsDoNoHarm) {
  const ExpertSizes shape{.dim = 64, .inner = 24, .num_experts = 8, .experts_per_token = 2};
  constexpr int kRows = 21;
  std::vector<bool> lives;
  std::vector<float> logits;
  for (int r = 0; r < kRows; ++r) {
    lives.push_back(r % 3 != 1);
    std::vector<float> row(8, -4.0f);
    row[lives.back() ? r % 5 : 6] = 3;
    row[lives.back() ? 5 : 7] = 2;
    logits.insert(logits.end(), row.begin(), row.end());
  }
  Problem p = make_problem(shape, logits);
  const std::vector<float> expected = run_device(p);
  std::vector<float> x = p.x.host, up = p.up.host;
  for (int r = 1; r < kRows; r += 3) std::fill_n(x.begin() + r * 64 + 8, 56, NAN);
  std::fill(up.begin() + static_cast<std::ptrdiff_t>(up.size() / 8 * 6), up.end(), NAN);
  p.x = tensor(std::move(x)), p.up = tensor(std::move(up));
  // A router would make logits that are not numbers of such rows.
  const std::vector<float> actual = run_device(p, 0, kRows, {.gives_logits = true, .lives = lives});
  for (int r = 0; r < kRows; ++r) {
    if (!lives[r]) continue;
    EXPECT_TRUE(bits_equal(rows_of(actual, 64, r, r + 1), rows_of(expected, 64, r, r + 1)))
        << "row " << r;
  }
  // Nobody lives: nothing to do, and nothing to fail.
  run_device(p, 0, kRows, {.gives_logits = true, .lives = std::vector<bool>(kRows, false)});
}

TEST_F(ExpertsTest, TheResultMayTakeThePlaceOfTheResidual) {
  const ExpertSizes shape{.dim = 64, .inner = 16, .num_experts = 4, .experts_per_token = 2};
  const Problem p = make_problem(shape, 9);
  EXPECT_TRUE(bits_equal(run_device(p, 0, 9, {.in_place = true}), run_device(p)));
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
