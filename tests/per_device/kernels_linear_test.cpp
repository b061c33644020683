#include <algorithm>
#include <cmath>
#include <string>

#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

struct LinearCase {
  int num_rows;
  int in;
  int out;
  bool bias = true;
  Activation activation = Activation::kNone;
  int residual_rows = 0;  // 0: none
  bool f32_out = false;
  bool decode = false;
};

void PrintTo(const LinearCase& c, std::ostream* os) {
  *os << c.num_rows << "x" << c.in << "->" << c.out << (c.bias ? " bias" : "")
      << (c.activation == Activation::kGeluTanh ? " gelu" : "")
      << (c.residual_rows > 0 ? " residual " + std::to_string(c.residual_rows) : "")
      << (c.f32_out ? " f32" : "") << (c.decode ? " decode" : "");
}

class LinearTest : public KernelsTest, public ::testing::WithParamInterface<LinearCase> {
 protected:
  // Strides are wider than the rows, so that a kernel that ignores them reads or writes NaN.
  static constexpr int kPad = 8;

  struct Inputs {
    TestTensor x, weight, bias, residual;
  };

  Inputs make_inputs(const LinearCase& c) {
    Inputs inputs;
    inputs.x = random_tensor(static_cast<std::size_t>(c.num_rows) * (c.in + kPad));
    const float stddev = 1.0f / std::sqrt(static_cast<float>(c.in));
    inputs.weight = random_tensor(static_cast<std::size_t>(c.out) * c.in, stddev);
    inputs.bias = random_tensor(c.out, 0.5f);
    inputs.residual =
        random_tensor(static_cast<std::size_t>(std::max(1, c.residual_rows)) * (c.out + kPad));
    return inputs;
  }

  LinearParams params(const LinearCase& c) {
    LinearParams p;
    p.x_stride = c.in + kPad;
    p.weights.in = c.in;
    p.weights.out = c.out;
    p.y_stride = c.out + kPad;
    p.num_rows = c.num_rows;
    p.activation = c.activation;
    p.residual_rows = c.residual_rows;
    p.residual_stride = c.residual_rows > 0 ? c.out + kPad : 0;
    p.decode = c.decode;
    return p;
  }

  // Rows [first, first + count) of x through the device; [count, out + kPad] with the poisoned pad.
  std::vector<float> run_device(const LinearCase& c, const Inputs& inputs, int first, int count) {
    const std::size_t element = dtype_bytes(dtype());
    LinearParams p = params(c);
    p.num_rows = count;
    p.x = static_cast<const char*>(inputs.x.dev()) + first * p.x_stride * element;
    p.weights.weight = inputs.weight.dev();
    p.weights.bias = c.bias ? inputs.bias.dev() : nullptr;
    p.y_dtype = c.f32_out ? DType::kF32 : dtype();
    // Row i of the batch has residual row i % residual_rows; a batch that starts elsewhere gets its
    // own copy, starting there.
    TestTensor shifted;
    if (c.residual_rows > 0) {
      std::vector<float> rows;
      for (int i = 0; i < c.residual_rows; ++i) {
        const int from = (first + i) % c.residual_rows;
        const auto row = rows_of(inputs.residual.host, p.residual_stride, from, from + 1);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      shifted = tensor(rows);
      p.residual = shifted.dev();
    }
    const std::size_t size = static_cast<std::size_t>(count) * p.y_stride;
    Buffer y = c.f32_out ? poisoned_bytes(size * sizeof(float)) : poisoned(size);
    p.y = y.data();
    run(kernels_->linear(*stream_, p));
    return c.f32_out ? download<float>(y) : floats(y);
  }

  std::vector<float> run_reference(const LinearCase& c, const Inputs& inputs) {
    LinearParams p = params(c);
    p.x = inputs.x.ref();
    p.weights.weight = inputs.weight.ref();
    p.weights.bias = c.bias ? inputs.bias.ref() : nullptr;
    if (c.residual_rows > 0) p.residual = inputs.residual.ref();
    std::vector<float> y(static_cast<std::size_t>(c.num_rows) * p.y_stride);
    p.y = y.data();
    reference::linear(p);
    return y;
  }
};

// Besides: row r alone, and row r among the last rows, has the bits that it has in the whole batch.
TEST_P(LinearTest, AgreesWithReferenceAndRowsDoNotDependOnTheBatch) {
  const LinearCase c = GetParam();
  const Inputs inputs = make_inputs(c);
  const std::vector<float> actual = run_device(c, inputs, 0, c.num_rows);
  const std::vector<float> expected = run_reference(c, inputs);
  const auto stride = static_cast<std::size_t>(c.out + kPad);
  for (std::size_t r = 0; r < static_cast<std::size_t>(c.num_rows); ++r) {
    const std::span<const float> row = rows_of(actual, stride, r, r + 1);
    ASSERT_TRUE(rows_close(row.first(c.out), rows_of(expected, stride, r, r + 1).first(c.out),
                           c.out, tolerance()))
        << "row " << r;
    ASSERT_TRUE(all_poison(row.subspan(c.out))) << "wrote past row " << r;
  }

  if (c.num_rows == 1) return;
  for (const int first : {0, c.num_rows / 3, c.num_rows / 2, c.num_rows - 1}) {
    const std::vector<float> alone = run_device(c, inputs, first, 1);
    ASSERT_TRUE(bits_equal(alone, rows_of(actual, stride, first, first + 1))) << "row " << first;
    const std::vector<float> tail = run_device(c, inputs, first, c.num_rows - first);
    ASSERT_TRUE(bits_equal(tail, rows_of(actual, stride, first, c.num_rows))) << "from " << first;
  }
}

// The published block writes its residual stream in place.
TEST_F(LinearTest, ResidualMayBeTheOutput) {
  // Enough rows for several tasks or blocks: an element that is written twice is wrong.
  const LinearCase c{.num_rows = 250, .in = 256, .out = 256, .residual_rows = 250};
  const Inputs inputs = make_inputs(c);
  LinearParams p = params(c);
  p.x = inputs.x.dev();
  p.weights.weight = inputs.weight.dev();
  p.weights.bias = inputs.bias.dev();
  p.y_dtype = dtype();
  p.y = inputs.residual.device.data();
  p.residual = p.y;
  const std::vector<float> separate = run_device(c, inputs, 0, c.num_rows);
  run(kernels_->linear(*stream_, p));
  const std::vector<float> in_place = floats(inputs.residual.device);
  for (std::size_t r = 0; r < 250; ++r) {
    const auto stride = static_cast<std::size_t>(c.out + kPad);
    EXPECT_TRUE(bits_equal(rows_of(in_place, stride, r, r + 1).first(c.out),
                           rows_of(separate, stride, r, r + 1).first(c.out)));
  }
}

constexpr Activation kGelu = Activation::kGeluTanh;

// Shapes of the shipped model, and odd ones.
INSTANTIATE_TEST_SUITE_P(
    Small, LinearTest,
    ::testing::Values(LinearCase{.num_rows = 1, .in = 256, .out = 768},
                      LinearCase{.num_rows = 2, .in = 256, .out = 1024, .activation = kGelu},
                      LinearCase{.num_rows = 3, .in = 1024, .out = 256, .residual_rows = 3},
                      LinearCase{.num_rows = 17, .in = 288, .out = 864},
                      LinearCase{.num_rows = 17, .in = 288, .out = 288, .residual_rows = 5},
                      LinearCase{.num_rows = 64, .in = 592, .out = 288, .residual_rows = 32},
                      LinearCase{.num_rows = 129, .in = 288, .out = 1152, .activation = kGelu},
                      LinearCase{.num_rows = 129, .in = 1152, .out = 288, .residual_rows = 129},
                      LinearCase{.num_rows = 5, .in = 256, .out = 4096, .f32_out = true},
                      LinearCase{.num_rows = 7, .in = 72, .out = 8, .bias = false},
                      LinearCase{.num_rows = 33, .in = 8, .out = 136},
                      LinearCase{.num_rows = 130, .in = 256, .out = 520, .bias = false}));

INSTANTIATE_TEST_SUITE_P(
    Decode, LinearTest,
    ::testing::Values(
        LinearCase{.num_rows = 1, .in = 256, .out = 1792, .decode = true},
        LinearCase{.num_rows = 3, .in = 256, .out = 768, .decode = true},
        LinearCase{.num_rows = 8, .in = 256, .out = 1024, .activation = kGelu, .decode = true},
        LinearCase{.num_rows = 17, .in = 1024, .out = 256, .residual_rows = 17, .decode = true},
        LinearCase{.num_rows = 64, .in = 256, .out = 4096, .f32_out = true, .decode = true}));

// Moondream 2: few, because the oracle is slow.
INSTANTIATE_TEST_SUITE_P(
    Moondream2, LinearTest,
    ::testing::Values(
        LinearCase{.num_rows = 3, .in = 2048, .out = 6144},
        LinearCase{.num_rows = 2, .in = 8192, .out = 2048, .residual_rows = 2, .decode = true},
        LinearCase{.num_rows = 1, .in = 2048, .out = 8192, .activation = kGelu, .decode = true},
        LinearCase{.num_rows = 5, .in = 1152, .out = 3456},
        LinearCase{.num_rows = 5, .in = 1152, .out = 4304, .activation = kGelu},
        LinearCase{.num_rows = 17, .in = 4304, .out = 1152, .residual_rows = 17},
        LinearCase{.num_rows = 1, .in = 2048, .out = 51200, .f32_out = true, .decode = true}));

}  // namespace
}  // namespace gapless
