#include <algorithm>
#include <cmath>
#include <ostream>
#include <vector>

#include "kernels/fp8.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

using RoundToFp8Test = KernelsTest;

TEST_F(RoundToFp8Test, IsTheHostsRoundingRowByRow) {
  struct Case {
    int rows, size;
  };
  for (const Case& c : {Case{1, 1}, Case{3, 255}, Case{64, 256}, Case{17, 1000}}) {
    std::vector<float> values = random_values(static_cast<std::size_t>(c.rows * c.size));
    for (int r = 0; r < c.rows; ++r) {
      // Rows of very different sizes; one of zeros.
      const float factor = r == 1 ? 0.0f : std::exp2(static_cast<float>(r % 9 * 7 - 20));
      for (int i = 0; i < c.size; ++i) values[static_cast<std::size_t>(r * c.size + i)] *= factor;
    }
    const TestTensor tensor_in_place = tensor(values);
    const Buffer& weight = tensor_in_place.device;
    const std::vector<float> before = floats(weight);  // as T holds them
    run(kernels_->round_to_fp8(*stream_,
                               {.weight = weight.data(), .num_rows = c.rows, .row_size = c.size}));

    std::vector<float> expected;
    for (int r = 0; r < c.rows; ++r) {
      const auto row = rows_of(before, c.size, r, r + 1);
      float max_value = 0;
      for (const float value : row) max_value = std::max(max_value, std::fabs(value));
      const int exponent = fp8_row_exponent(max_value);
      for (const float value : row) {
        expected.push_back(std::ldexp(round_to_e4m3(std::ldexp(value, -exponent)), exponent));
      }
    }
    const std::vector<float> rounded = floats(weight);
    EXPECT_TRUE(bits_equal(rounded, expected));
    EXPECT_NE(rounded, before);
    run(kernels_->round_to_fp8(*stream_,
                               {.weight = weight.data(), .num_rows = c.rows, .row_size = c.size}));
    EXPECT_TRUE(bits_equal(floats(weight), expected)) << "rounding twice changes nothing";
  }
}

// Rows in 8 bits on the device, and the same numbers on the host and in T.
struct Fp8Rows {
  Buffer values, scales;
  std::vector<float> host;
  Buffer in_t;
};

class Fp8RowsTest : public KernelsTest {
 protected:
  // [num_rows, dim], rows of very different sizes.
  std::vector<float> uneven_rows(int num_rows, int dim) {
    std::vector<float> values = random_values(static_cast<std::size_t>(num_rows * dim));
    for (int r = 0; r < num_rows; ++r) {
      const float factor = std::exp2(static_cast<float>(r % 7 * 5 - 15));
      for (int i = 0; i < dim; ++i) values[static_cast<std::size_t>(r * dim + i)] *= factor;
    }
    return values;
  }

  // By rows, as fp8.h says.
  static std::vector<float> rounded(const std::vector<float>& values, int dim) {
    std::vector<float> result;
    for (std::size_t r = 0; r < values.size() / static_cast<std::size_t>(dim); ++r) {
      const auto row = rows_of(values, dim, r, r + 1);
      float largest = 0;
      for (const float value : row) largest = std::max(largest, std::fabs(value));
      const int exponent = fp8_activation_exponent(largest);
      for (const float value : row) {
        result.push_back(std::ldexp(round_to_e4m3(std::ldexp(value, -exponent)), exponent));
      }
    }
    return result;
  }

  Fp8Rows fp8_rows(const TestTensor& x, int dim) {
    auto [values, scales] = rows_to_fp8(x, dim);
    TestTensor same = tensor(rounded(x.host, dim));
    return {std::move(values), std::move(scales), std::move(same.host), std::move(same.device)};
  }

  LinearParams product(const Fp8Rows& x, int num_rows, const Fp8Rows& weights, int in, int out,
                       const Buffer& y) {
    LinearParams p{.x = x.values.data(), .x_stride = in};
    p.weights = {.weight = weights.in_t.data(),
                 .in = in,
                 .out = out,
                 .fp8 = weights.values.data(),
                 .fp8_scales = weights.scales.as<float>()};
    p.y = y.data(), p.y_stride = out, p.y_dtype = dtype(), p.num_rows = num_rows;
    p.x_scales = x.scales.as<float>();
    return p;
  }

  // What the device holds: its product with the unit matrix.
  std::vector<float> numbers(const Fp8Rows& x, int dim) {
    std::vector<float> unit(static_cast<std::size_t>(dim * dim));
    for (int i = 0; i < dim; ++i) unit[static_cast<std::size_t>(i * dim + i)] = 1;
    const Fp8Rows weights = fp8_rows(tensor(unit), dim);
    const Buffer y = poisoned(x.host.size());
    run(kernels_->linear(*stream_,
                         product(x, static_cast<int>(x.host.size()) / dim, weights, dim, dim, y)));
    return floats(y);
  }
};

TEST_F(Fp8RowsTest, AreTheHostsRounding) {
  for (const int dim : {16, 272, 1152}) {
    std::vector<float> values = uneven_rows(40, dim);
    std::fill_n(values.begin() + dim, dim, 0.0f);
    const Fp8Rows rows = fp8_rows(tensor(values), dim);
    EXPECT_EQ(numbers(rows, dim), rows.host) << dim;
    EXPECT_NE(rows.host, values);
  }
}

TEST_F(Fp8RowsTest, MayTakeThePlaceOfTheRows) {
  constexpr int kRows = 300, kDim = 4352;
  const TestTensor x = tensor(uneven_rows(kRows, kDim));
  const Fp8Rows apart = fp8_rows(x, kDim);
  const auto stride =
      static_cast<std::int64_t>(kDim * dtype_bytes(dtype()) / kernels_->fp8_element_bytes());
  const Buffer scales = poisoned_bytes(kRows * sizeof(float));
  run(kernels_->rows_to_fp8(*stream_, {.x = x.dev(),
                                       .x_stride = kDim,
                                       .y = x.device.data(),
                                       .y_stride = stride,
                                       .scales = scales.as<float>(),
                                       .num_rows = kRows,
                                       .dim = kDim}));
  EXPECT_EQ(download<float>(scales), download<float>(apart.scales));
  const auto bytes = download<std::uint8_t>(x.device);
  const auto expected = download<std::uint8_t>(apart.values);
  const std::size_t row_bytes = kDim * kernels_->fp8_element_bytes();
  for (std::size_t r = 0; r < kRows; ++r) {
    ASSERT_TRUE(std::equal(expected.begin() + r * row_bytes, expected.begin() + (r + 1) * row_bytes,
                           bytes.begin() + r * stride * kernels_->fp8_element_bytes()))
        << "row " << r;
  }
}

TEST_F(Fp8RowsTest, LayerNormEndsInThem) {
  for (const int dim : {256, 288, 1152, 2048, 2560}) {
    constexpr int kRows = 9;
    const TestTensor x = random_tensor(static_cast<std::size_t>(kRows * dim), 1.0f, 8.0f);
    const TestTensor gamma = random_tensor(dim, 0.5f, 1.0f), beta = random_tensor(dim, 0.5f);
    NormParams p{.x_stride = dim, .y_stride = dim, .num_rows = kRows, .dim = dim};
    std::vector<float> exact(x.host.size());
    p.x = x.ref(), p.weights = {.gamma = gamma.ref(), .beta = beta.ref()}, p.y = exact.data();
    reference::norm(p);

    Fp8Rows rows{.values = poisoned_bytes(exact.size() * kernels_->fp8_element_bytes()),
                 .scales = poisoned_bytes(kRows * sizeof(float)),
                 .host = exact,
                 .in_t = {}};
    p.x = x.dev(), p.weights = {.gamma = gamma.dev(), .beta = beta.dev()};
    p.y = rows.values.data();
    p.y_scales = rows.scales.as<float>();
    run(kernels_->norm(*stream_, p));
    const auto bytes = download<std::uint8_t>(rows.values);
    const Buffer as_they_are = poisoned(exact.size()), expected = poisoned(exact.size());
    p.exact_y = as_they_are.data();
    run(kernels_->norm(*stream_, p));
    EXPECT_EQ(download<std::uint8_t>(rows.values), bytes) << "the same with exact rows beside them";
    p.y = expected.data(), p.y_scales = nullptr, p.exact_y = nullptr;
    run(kernels_->norm(*stream_, p));
    EXPECT_TRUE(bits_equal(floats(as_they_are), floats(expected)));
    const std::vector<float> actual = numbers(rows, dim);
    EXPECT_EQ(rounded(actual, dim), actual) << "numbers of 8 bits";
    for (int r = 0; r < kRows; ++r) {
      const auto row = rows_of(exact, dim, r, r + 1);
      float largest = 0;
      for (const float value : row) largest = std::max(largest, std::fabs(value));
      const float smallest_step = std::ldexp(1.0f, fp8_activation_exponent(largest) - 9);
      for (int i = 0; i < dim; ++i) {
        const float error = std::fabs(actual[static_cast<std::size_t>(r * dim + i)] - row[i]);
        // Half a step of three bits of mantissa, and what the norm itself may be off.
        ASSERT_LE(error, std::max(std::fabs(row[i]) / 16, smallest_step / 2) + 1e-4f)
            << "row " << r << ", column " << i << " of " << dim;
      }
    }
  }
}

// Two products behind one another, and one behind what makes its rows: on a GPU they count tiles, each in memory of its own where a
// graph is captured.
TEST_F(Fp8RowsTest, ProductsOfAGraphAreThoseOfTheStream) {
  constexpr int kRows = 760;
  const int in = test_device_kind() == DeviceKind::kCuda ? 2048 : 64, out = 3 * in;
  const TestTensor x = tensor(uneven_rows(kRows, in));
  const float stddev = 1.0f / std::sqrt(static_cast<float>(in));
  const Fp8Rows weights = fp8_rows(random_tensor(static_cast<std::size_t>(out) * in, stddev), in);
  Fp8Rows rows{.values = poisoned_bytes(x.host.size() * kernels_->fp8_element_bytes()),
               .scales = poisoned_bytes(kRows * sizeof(float)),
               .host = {},
               .in_t = {}};
  constexpr int kProducts = 3;
  std::vector<Buffer> results;
  for (int i = 0; i < kProducts; ++i) {
    results.push_back(poisoned(static_cast<std::size_t>(kRows) * out));
  }
  const auto enqueue = [&]() -> Status {
    for (int i = 0; i < kProducts; ++i) {
      if (i != 1) {
        GAPLESS_RETURN_IF_ERROR(kernels_->rows_to_fp8(*stream_, {.x = x.dev(),
                                                                 .x_stride = in,
                                                                 .y = rows.values.data(),
                                                                 .y_stride = in,
                                                                 .scales = rows.scales.as<float>(),
                                                                 .num_rows = kRows,
                                                                 .dim = in}));
      }
      GAPLESS_RETURN_IF_ERROR(
          kernels_->linear(*stream_, product(rows, kRows, weights, in, out, results[i])));
    }
    return ok_status();
  };
  std::vector<const Buffer*> all;
  for (const Buffer& result : results) all.push_back(&result);
  expect_same_in_a_graph(enqueue, all, 20);
}

struct Fp8Case {
  int num_rows, in, out;
  Activation activation = Activation::kNone;
  bool residual = false;
};

void PrintTo(const Fp8Case& c, std::ostream* os) {
  *os << c.num_rows << "x" << c.in << "->" << c.out
      << (c.activation == Activation::kGeluTanh ? " gelu" : "") << (c.residual ? " residual" : "");
}

class Fp8ProductTest : public Fp8RowsTest, public ::testing::WithParamInterface<Fp8Case> {};

TEST_P(Fp8ProductTest, AgreesWithReferenceAndRowsDoNotDependOnTheNumberOfRows) {
  const Fp8Case c = GetParam();
  const Fp8Rows x = fp8_rows(tensor(uneven_rows(c.num_rows, c.in)), c.in);
  const float stddev = 1.0f / std::sqrt(static_cast<float>(c.in));
  const Fp8Rows weights =
      fp8_rows(random_tensor(static_cast<std::size_t>(c.out) * c.in, stddev), c.in);
  const TestTensor bias = random_tensor(c.out, 0.5f);
  const TestTensor residual = random_tensor(static_cast<std::size_t>(c.num_rows) * c.out);

  auto run_rows = [&](int first, int count) {
    const Buffer y = poisoned(static_cast<std::size_t>(count) * c.out);
    LinearParams p = product(x, count, weights, c.in, c.out, y);
    p.x = static_cast<const char*>(p.x) +
          static_cast<std::size_t>(first) * c.in * kernels_->fp8_element_bytes();
    p.x_scales += first;
    p.weights.bias = bias.dev(), p.activation = c.activation;
    if (c.residual) {
      p.residual = static_cast<const char*>(residual.dev()) +
                   static_cast<std::size_t>(first) * c.out * dtype_bytes(dtype());
      p.residual_stride = c.out, p.residual_rows = count;
    }
    run(kernels_->linear(*stream_, p));
    return floats(y);
  };
  const std::vector<float> actual = run_rows(0, c.num_rows);

  constexpr int kChecked = 24;  // rows spread over all: the oracle is slow
  for (int k = 0; k < std::min(kChecked, c.num_rows); ++k) {
    const auto r = static_cast<std::size_t>(k) * c.num_rows / std::min(kChecked, c.num_rows);
    std::vector<float> expected(c.out);
    LinearParams p{.x = x.host.data() + r * c.in, .x_stride = c.in};
    p.weights = {.weight = weights.host.data(), .bias = bias.ref(), .in = c.in, .out = c.out};
    p.y = expected.data(), p.y_stride = c.out, p.num_rows = 1, p.activation = c.activation;
    if (c.residual) {
      p.residual = residual.ref() + r * c.out, p.residual_stride = c.out, p.residual_rows = 1;
    }
    reference::linear(p);
    ASSERT_TRUE(rows_close(rows_of(actual, c.out, r, r + 1), expected, c.out, tolerance()))
        << "row " << r;
  }

  for (const int count : {1, 2, 7, 16, 33, 64, 65, 100, 127, 128, 129, 257, 729, 770, 896, 1458}) {
    if (count > c.num_rows) break;
    const int first = (c.num_rows - count) / 2 / 4 * 4;  // scales lie on 16 bytes
    ASSERT_TRUE(bits_equal(run_rows(first, count), rows_of(actual, c.out, first, first + count)))
        << count << " rows";
  }
}

constexpr Activation kGelu = Activation::kGeluTanh;

INSTANTIATE_TEST_SUITE_P(
    Small, Fp8ProductTest,
    ::testing::Values(Fp8Case{1, 256, 768}, Fp8Case{3, 16, 8}, Fp8Case{17, 288, 864},
                      Fp8Case{5, 288, 288, kGelu, false}, Fp8Case{200, 288, 1152, kGelu, false},
                      Fp8Case{130, 1152, 288, Activation::kNone, true}, Fp8Case{130, 256, 520},
                      Fp8Case{770, 1024, 256, Activation::kNone, true}));
// Moondream 2, where a GPU is.
INSTANTIATE_TEST_SUITE_P(Moondream2, Fp8ProductTest,
                         ::testing::Values(Fp8Case{130, 1152, 3456},
                                           Fp8Case{130, 1152, 4352, kGelu, false},
                                           Fp8Case{130, 2048, 8192, kGelu, false}));

// As above, at sizes that take a CPU too long.
TEST_F(Fp8RowsTest, FullShapesDoNotDependOnTheNumberOfRows) {
  if (is_f32()) GTEST_SKIP() << "a GPU's shapes";
  for (const Fp8Case& c :
       {Fp8Case{3000, 1152, 3456}, Fp8Case{3000, 4352, 1152, Activation::kNone, true},
        Fp8Case{3000, 2048, 6144}, Fp8Case{3000, 2048, 8192, kGelu, false},
        Fp8Case{3000, 8192, 2048, Activation::kNone, true}}) {
    const Fp8Rows x = fp8_rows(tensor(uneven_rows(c.num_rows, c.in)), c.in);
    const Fp8Rows weights =
        fp8_rows(random_tensor(static_cast<std::size_t>(c.out) * c.in, 0.02f), c.in);
    const TestTensor bias = random_tensor(c.out, 0.5f);
    const TestTensor residual = random_tensor(static_cast<std::size_t>(c.num_rows) * c.out);
    auto run_rows = [&](int count) {
      const Buffer y = poisoned(static_cast<std::size_t>(count) * c.out);
      LinearParams p = product(x, count, weights, c.in, c.out, y);
      p.weights.bias = bias.dev(), p.activation = c.activation;
      if (c.residual) {
        p.residual = residual.dev(), p.residual_stride = c.out, p.residual_rows = count;
      }
      run(kernels_->linear(*stream_, p));
      return floats(y);
    };
    const std::vector<float> all = run_rows(c.num_rows);
    for (const int count : {1, 5, 16, 17, 64, 128, 192, 300, 513, 729, 770, 1000, 1458, 2048}) {
      ASSERT_TRUE(bits_equal(run_rows(count), rows_of(all, c.out, 0, count)))
          << ::testing::PrintToString(c) << ": " << count << " rows";
    }
  }
}

}  // namespace
}  // namespace gapless
