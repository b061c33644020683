#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

struct NormCase {
  int num_rows;
  int dim;
  NormKind kind = NormKind::kLayer;
};

void PrintTo(const NormCase& c, std::ostream* os) {
  *os << c.num_rows << "x" << c.dim << (c.kind == NormKind::kRms ? " rms" : "");
}

class NormTest : public KernelsTest, public ::testing::WithParamInterface<NormCase> {
 protected:
  static constexpr int kPad = 8;

  NormParams params(const NormCase& c) {
    NormParams p;
    p.x_stride = c.dim + kPad;
    p.y_stride = c.dim + 2 * kPad;
    p.num_rows = c.num_rows;
    p.dim = c.dim;
    return p;
  }

  static NormWeights weights(const NormCase& c, const void* gamma, const void* beta) {
    if (c.kind == NormKind::kRms) return {.kind = c.kind, .gamma = gamma, .eps = 1e-6f};
    return {.gamma = gamma, .beta = beta};
  }
};

TEST_P(NormTest, AgreesWithReferenceRowByRow) {
  const NormCase c = GetParam();
  NormParams p = params(c);
  const auto y_stride = static_cast<std::size_t>(p.y_stride);
  // A mean far from zero: a one-pass variance would lose digits.
  const TestTensor x = random_tensor(static_cast<std::size_t>(c.num_rows) * p.x_stride, 1.0f, 8.0f);
  const TestTensor gamma = random_tensor(c.dim, 0.5f, 1.0f);
  const TestTensor beta = random_tensor(c.dim, 0.5f);

  std::vector<float> expected(c.num_rows * y_stride);
  p.x = x.ref(), p.weights = weights(c, gamma.ref(), beta.ref()), p.y = expected.data();
  reference::norm(p);

  const Buffer y = poisoned(expected.size());
  p.x = x.dev(), p.weights = weights(c, gamma.dev(), beta.dev()), p.y = y.data();
  run(kernels_->norm(*stream_, p));
  const std::vector<float> actual = floats(y);
  for (std::size_t r = 0; r < static_cast<std::size_t>(c.num_rows); ++r) {
    const auto row = rows_of(actual, y_stride, r, r + 1);
    ASSERT_TRUE(rows_close(row.first(c.dim), rows_of(expected, y_stride, r, r + 1).first(c.dim),
                           c.dim, tolerance()))
        << "row " << r;
    ASSERT_TRUE(all_poison(row.subspan(c.dim))) << "wrote past row " << r;
  }

  // The last row alone has the same bits.
  const std::size_t last = c.num_rows - 1;
  const Buffer alone = poisoned(y_stride);
  p.x = static_cast<const char*>(x.dev()) + last * p.x_stride * dtype_bytes(dtype());
  p.y = alone.data();
  p.num_rows = 1;
  run(kernels_->norm(*stream_, p));
  EXPECT_TRUE(bits_equal(floats(alone), rows_of(actual, y_stride, last, last + 1)));
}

TEST_P(NormTest, OutputMayBeTheInput) {
  const NormCase c = GetParam();
  NormParams p = params(c);
  p.y_stride = p.x_stride;
  const std::size_t size = static_cast<std::size_t>(c.num_rows) * p.x_stride;
  const TestTensor x = random_tensor(size);
  const TestTensor gamma = random_tensor(c.dim), beta = random_tensor(c.dim);
  const Buffer y = poisoned(size);
  p.x = x.dev(), p.weights = weights(c, gamma.dev(), beta.dev()), p.y = y.data();
  run(kernels_->norm(*stream_, p));
  const std::vector<float> separate = floats(y);
  p.y = x.device.data();
  run(kernels_->norm(*stream_, p));
  const std::vector<float> in_place = floats(x.device);
  for (std::size_t r = 0; r < static_cast<std::size_t>(c.num_rows); ++r) {
    const auto stride = static_cast<std::size_t>(p.x_stride);
    EXPECT_TRUE(bits_equal(rows_of(in_place, stride, r, r + 1).first(c.dim),
                           rows_of(separate, stride, r, r + 1).first(c.dim)));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormTest,
                         ::testing::Values(NormCase{1, 256}, NormCase{3, 288}, NormCase{17, 256},
                                           NormCase{129, 288}, NormCase{729, 288}, NormCase{2, 720},
                                           NormCase{17, 1152}, NormCase{64, 2048},
                                           NormCase{5, 64, NormKind::kRms},
                                           NormCase{33, 288, NormKind::kRms},
                                           NormCase{9, 4096, NormKind::kRms}));

}  // namespace
}  // namespace gapless
