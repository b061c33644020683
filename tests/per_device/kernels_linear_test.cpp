#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/dense_ops.h"
#include "kernels/restored_linear.h"
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

  const void* prepared_ = nullptr;  // what run_device uses instead of the plain weights
  const void* int8_ = nullptr;      // likewise
  std::optional<StepLogits> needed_;

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
    p.weights.weight = prepared_ == nullptr ? inputs.weight.dev() : nullptr;
    p.weights.prepared = prepared_;
    p.weights.int8 = int8_;
    const Buffer needed = upload(std::vector<StepLogits>{needed_.value_or(StepLogits())});
    if (needed_) p.needed = needed.as<StepLogits>();
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

// Whatever way measuring finds the fastest, for the row counts measured and for those between.
TEST_F(LinearTest, TuningChangesNoBits) {
  for (const LinearCase& c :
       {LinearCase{.num_rows = 300, .in = 288, .out = 864},
        LinearCase{.num_rows = 300, .in = 288, .out = 1152, .activation = Activation::kGeluTanh},
        LinearCase{.num_rows = 300, .in = 1152, .out = 288, .bias = false, .residual_rows = 300}}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs inputs = make_inputs(c);
    const std::vector<float> before = run_device(c, inputs, 0, c.num_rows);
    LinearParams p = params(c);
    p.weights.weight = inputs.weight.dev();
    p.weights.bias = c.bias ? inputs.bias.dev() : nullptr;
    p.y_dtype = dtype();
    if (c.residual_rows > 0) p.residual = inputs.residual.dev();
    const std::vector<int> row_counts = {7, 128, 250};
    run(kernels_->tune_linear(*stream_, p, row_counts));
    const auto stride = static_cast<std::size_t>(c.out + kPad);
    for (const int count : {1, 7, 8, 128, 250, 300}) {
      EXPECT_TRUE(bits_equal(run_device(c, inputs, 0, count), rows_of(before, stride, 0, count)))
          << count << " rows";
    }
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

// Prepared weights are another layout of the same product: same bits, whatever the shape.
TEST_F(LinearTest, PreparedWeightsGiveTheSameBits) {
  for (const LinearCase& c :
       {LinearCase{.num_rows = 1, .in = 256, .out = 1792, .decode = true},
        LinearCase{.num_rows = 40, .in = 72, .out = 24, .bias = false, .decode = true},
        LinearCase{.num_rows = 64, .in = 1024, .out = 256, .residual_rows = 64, .decode = true},
        LinearCase{.num_rows = 3, .in = 2048, .out = 520, .f32_out = true, .decode = true}}) {
    const std::size_t bytes = kernels_->prepared_linear_bytes(c.in, c.out, PreparedFormat::kNative);
    if (bytes == 0) GTEST_SKIP() << "this backend prepares nothing";
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs inputs = make_inputs(c);
    const Buffer prepared = poisoned_bytes(bytes);
    const LinearWeights plain{.weight = inputs.weight.dev(), .in = c.in, .out = c.out};
    run(kernels_->prepare_linear(
        *stream_,
        {.weights = plain, .prepared = prepared.data(), .total_in = c.in, .total_out = c.out}));
    const std::vector<float> expected = run_device(c, inputs, 0, c.num_rows);
    prepared_ = prepared.data();
    EXPECT_TRUE(bits_equal(run_device(c, inputs, 0, c.num_rows), expected));
    prepared_ = nullptr;
  }
}

// Two matrices prepared as one, below each other and beside each other; and an activation on the
// second.
// Their bits, and what lies far from them is not touched: nobody read its weights.
TEST_F(LinearTest, NeededColumnsHaveTheBitsThatTheyHaveAmongAll) {
  for (const LinearCase& c :
       {LinearCase{.num_rows = 1, .in = 256, .out = 5000, .f32_out = true, .decode = true},
        LinearCase{.num_rows = 12, .in = 1024, .out = 1001, .f32_out = true, .decode = true},
        LinearCase{.num_rows = 64, .in = 72, .out = 520, .f32_out = true, .decode = true}}) {
    const Inputs inputs = make_inputs(c);
    const LinearWeights plain{.weight = inputs.weight.dev(), .in = c.in, .out = c.out};
    const std::size_t prepared_bytes =
        kernels_->prepared_linear_bytes(c.in, c.out, PreparedFormat::kNative);
    const std::size_t int8_bytes = kernels_->int8_bytes(c.in, c.out);
    const Buffer prepared = poisoned_bytes(prepared_bytes), int8 = poisoned_bytes(int8_bytes);
    std::vector<std::pair<const void*, const void*>> forms = {{nullptr, nullptr}};
    if (prepared_bytes > 0) {
      run(kernels_->prepare_linear(
          *stream_,
          {.weights = plain, .prepared = prepared.data(), .total_in = c.in, .total_out = c.out}));
      forms.emplace_back(prepared.data(), nullptr);
    }
    if (int8_bytes > 0) {
      run(kernels_->pack_int8(*stream_, {.weights = plain, .packed = int8.data()}));
      forms.emplace_back(nullptr, int8.data());
    }
    for (const auto& [prepared_weights, int8_weights] : forms) {
      prepared_ = prepared_weights, int8_ = int8_weights;
      SCOPED_TRACE(::testing::PrintToString(c) + (prepared_ != nullptr ? ", prepared" : "") +
                   (int8_ != nullptr ? ", 8 bits" : ""));
      needed_.reset();
      const std::vector<float> whole = run_device(c, inputs, 0, c.num_rows);
      const auto stride = static_cast<std::size_t>(c.out + kPad);
      for (const std::vector<std::int32_t>& tokens :
           {std::vector<std::int32_t>{}, {0, 5}, {c.out - 1}, {c.out - 1, 3, 250, 31, 32}}) {
        needed_ = StepLogits();
        for (const std::int32_t token : tokens) needed_->add(token);
        const std::vector<float> some = run_device(c, inputs, 0, c.num_rows);
        for (std::size_t r = 0; r < static_cast<std::size_t>(c.num_rows); ++r) {
          const auto row = rows_of(some, stride, r, r + 1);
          for (const std::int32_t token : tokens) {
            ASSERT_TRUE(bits_equal(row.subspan(token, 1),
                                   rows_of(whole, stride, r, r + 1).subspan(token, 1)))
                << "row " << r << ", column " << token;
          }
          if (tokens.empty()) {
            ASSERT_TRUE(all_poison(row)) << "row " << r;
          }
          if (tokens.size() == 2) {
            ASSERT_TRUE(all_poison(row.subspan(32))) << "row " << r;
          }
          ASSERT_TRUE(all_poison(row.subspan(c.out))) << "row " << r;
        }
      }
      needed_ = StepLogits{.all = 1};
      ASSERT_TRUE(bits_equal(run_device(c, inputs, 0, c.num_rows), whole));
    }
  }
}

TEST_F(LinearTest, PreparedPartsMakeOneProduct) {
  if (kernels_->prepared_linear_bytes(256, 256, PreparedFormat::kNative) == 0) {
    GTEST_SKIP() << "this backend prepares nothing";
  }
  constexpr int kRows = 5, kIn = 256, kOut = 96, kMoreIn = 384;
  const TestTensor x = random_tensor(kRows * (kIn + kMoreIn));
  const TestTensor first = random_tensor(kOut * kIn, 0.06f),
                   below = random_tensor(kOut * kIn, 0.06f);
  const TestTensor beside = random_tensor(kOut * kMoreIn, 0.05f);
  auto product = [&](const std::vector<float>& weight, int in, int out, Activation activation) {
    std::vector<float> y(static_cast<std::size_t>(kRows) * out);
    reference::linear({.x = x.ref(),
                       .x_stride = kIn + kMoreIn,
                       .weights = {.weight = weight.data(), .in = in, .out = out},
                       .y = y.data(),
                       .y_stride = out,
                       .y_dtype = DType::kF32,
                       .num_rows = kRows,
                       .activation = activation});
    return y;
  };
  auto run_prepared = [&](const Buffer& prepared, int in, int out, int gelu_begin) {
    const Buffer y = poisoned(static_cast<std::size_t>(kRows) * out);
    LinearParams p{.x = x.dev(), .x_stride = kIn + kMoreIn, .y = y.data(), .y_stride = out};
    p.weights = {.in = in, .out = out, .prepared = prepared.data()};
    p.num_rows = kRows, p.activation = kGelu, p.activation_begin = gelu_begin, p.decode = true;
    run(kernels_->linear(*stream_, p));
    return floats(y);
  };
  auto prepare = [&](const TestTensor& part, int in, const Buffer& to, int total_in, int total_out,
                     int first_out, int first_in) {
    run(kernels_->prepare_linear(*stream_,
                                 {.weights = {.weight = part.dev(), .in = in, .out = kOut},
                                  .prepared = to.data(),
                                  .total_in = total_in,
                                  .total_out = total_out,
                                  .first_out = first_out,
                                  .first_in = first_in}));
  };

  const Buffer tall =
      poisoned_bytes(kernels_->prepared_linear_bytes(kIn, 2 * kOut, PreparedFormat::kNative));
  prepare(first, kIn, tall, kIn, 2 * kOut, 0, 0);
  prepare(below, kIn, tall, kIn, 2 * kOut, kOut, 0);
  const std::vector<float> both = run_prepared(tall, kIn, 2 * kOut, kOut);
  const std::vector<float> upper = product(first.host, kIn, kOut, Activation::kNone);
  const std::vector<float> lower = product(below.host, kIn, kOut, kGelu);
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto row = rows_of(both, 2 * kOut, r, r + 1);
    EXPECT_TRUE(rows_close(row.first(kOut), rows_of(upper, kOut, r, r + 1), kOut, tolerance()));
    EXPECT_TRUE(rows_close(row.last(kOut), rows_of(lower, kOut, r, r + 1), kOut, tolerance()));
  }

  const Buffer broad =
      poisoned_bytes(kernels_->prepared_linear_bytes(kIn + kMoreIn, kOut, PreparedFormat::kNative));
  prepare(first, kIn, broad, kIn + kMoreIn, kOut, 0, 0);
  prepare(beside, kMoreIn, broad, kIn + kMoreIn, kOut, 0, kIn);
  std::vector<float> joined;
  for (std::size_t r = 0; r < kOut; ++r) {
    const auto left = rows_of(first.host, kIn, r, r + 1);
    const auto right = rows_of(beside.host, kMoreIn, r, r + 1);
    joined.insert(joined.end(), left.begin(), left.end());
    joined.insert(joined.end(), right.begin(), right.end());
  }
  EXPECT_TRUE(rows_close(run_prepared(broad, kIn + kMoreIn, kOut, 0),
                         product(joined, kIn + kMoreIn, kOut, kGelu), kOut, tolerance()));
}

// Rows that were prepared come back with the same bits, from a part of the whole too; in 8 bits those that
// round_to_fp8 left.
TEST_F(LinearTest, RestoredRowsAreThoseThatWerePrepared) {
  constexpr int kIn = 400, kMoreIn = 256, kFirst = 512;  // edges of tiles
  for (const auto& [format, halves_alternate] : {std::pair(PreparedFormat::kNative, false),
                                                 {PreparedFormat::kNative, true},
                                                 {PreparedFormat::kFp8, false},
                                                 {PreparedFormat::kFp8, true}}) {
    const int out = halves_alternate ? 80 : 72;
    const std::size_t bytes = kernels_->prepared_linear_bytes(kFirst + kIn, 96 + out, format);
    if (bytes == 0) GTEST_SKIP() << "this backend prepares nothing";
    const TestTensor weight = random_tensor(static_cast<std::size_t>(out) * kIn, 0.06f);
    const TestTensor other = random_tensor(96 * kMoreIn, 0.06f);
    if (format == PreparedFormat::kFp8) {
      run(kernels_->round_to_fp8(
          *stream_, {.weight = weight.device.data(), .num_rows = out, .row_size = kIn}));
    }
    const std::vector<float> expected = floats(weight.device);
    const Buffer prepared = poisoned_bytes(bytes);
    PrepareLinearParams to{.weights = {.weight = weight.dev(), .in = kIn, .out = out},
                           .prepared = prepared.data(),
                           .format = format,
                           .total_in = kFirst + kIn,
                           .total_out = 96 + out,
                           .first_out = 96,
                           .first_in = kFirst,
                           .halves_alternate = halves_alternate};
    run(kernels_->prepare_linear(*stream_, to));
    to.weights = {.weight = other.dev(), .in = kMoreIn, .out = 96};
    to.first_out = to.first_in = 0;
    to.halves_alternate = false;
    run(kernels_->prepare_linear(*stream_, to));
    const Buffer restored = poisoned(static_cast<std::size_t>(out) * kIn);
    run(kernels_->restore_linear(*stream_, {.prepared = prepared.data(),
                                            .format = format,
                                            .total_in = kFirst + kIn,
                                            .total_out = 96 + out,
                                            .first_out = 96,
                                            .first_in = kFirst,
                                            .halves_alternate = halves_alternate,
                                            .weight = restored.data(),
                                            .in = kIn,
                                            .out = out}));
    EXPECT_TRUE(bits_equal(floats(restored), expected));
  }
}

// A product that restores its rows first, all at once or some at a time, has the bits of that with rows that are there.
TEST_F(LinearTest, ProductsOfRestoredRowsAreThoseOfRowsThatAreThere) {
  constexpr int kIn = 256, kOut = 5008, kNumRows = 3;
  const TestTensor x = random_tensor(kNumRows * kIn), bias = random_tensor(kOut, 0.5f);
  for (const PreparedFormat format : {PreparedFormat::kNative, PreparedFormat::kFp8}) {
    const std::size_t bytes = kernels_->prepared_linear_bytes(kIn, kOut, format);
    if (bytes == 0) GTEST_SKIP() << "this backend prepares nothing";
    const TestTensor weight = random_tensor(std::size_t{kOut} * kIn, 0.06f);
    if (format == PreparedFormat::kFp8) {
      run(kernels_->round_to_fp8(
          *stream_, {.weight = weight.device.data(), .num_rows = kOut, .row_size = kIn}));
    }
    const LinearWeights there{.weight = weight.dev(), .bias = bias.dev(), .in = kIn, .out = kOut};
    const Buffer prepared = poisoned_bytes(bytes);
    run(kernels_->prepare_linear(*stream_, {.weights = there,
                                            .prepared = prepared.data(),
                                            .format = format,
                                            .total_in = kIn,
                                            .total_out = kOut}));
    const auto product = [&](const LinearWeights& weights, bool decode) {
      Buffer y = poisoned(std::size_t{kNumRows} * kOut);
      LinearParams params = dense_linear(*kernels_, x.dev(), weights, y.data(), kNumRows);
      params.decode = decode;
      run(restored_linear(*kernels_, *stream_, params));
      return floats(y);
    };
    for (const auto& [rows_at_once, decode] :
         {std::pair(kOut, false), std::pair(kOut, true), std::pair(2560, true)}) {
      SCOPED_TRACE(rows_at_once);
      const Buffer shared = poisoned(static_cast<std::size_t>(rows_at_once) * kIn);
      LinearWeights restored = there;
      restored.weight = shared.data();
      restored.restore = {.prepared = prepared.data(),
                          .format = format,
                          .total_in = kIn,
                          .total_out = kOut,
                          .weight = shared.data(),
                          .in = kIn,
                          .out = rows_at_once};
      EXPECT_TRUE(bits_equal(product(restored, decode), product(there, decode)));
    }
  }
}

// The bits of a row are the same for every number of rows that a launch may have, however the
// backend tiles them: prefills and crops of different requests share launches.
TEST_F(LinearTest, RowsDoNotDependOnTheNumberOfRows) {
  struct Shape {
    int in, out;
    Activation activation;
    bool residual;
  };
  std::vector<Shape> shapes = {{256, 768, Activation::kNone, false}, {72, 136, kGelu, false}};
  std::vector<int> counts = {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200};
  if (test_device_kind() == DeviceKind::kCuda) {  // Moondream 2's own shapes
    shapes.insert(shapes.end(), {{2048, 6144, Activation::kNone, false},
                                 {2048, 8192, kGelu, false},
                                 {8192, 2048, Activation::kNone, true},
                                 {1152, 3456, Activation::kNone, false},
                                 {1152, 4352, kGelu, false},
                                 {4352, 1152, Activation::kNone, true},
                                 {592, 1152, Activation::kNone, true},
                                 {2304, 8192, kGelu, false}});
    counts.clear();
    for (int i = 1; i <= 64; ++i) counts.push_back(i);
    counts.insert(counts.end(), {127, 729, 730, 760, 1458, 4000});
  }
  const int max_rows = counts.back();
  for (const Shape& shape : shapes) {
    const LinearCase c{.num_rows = max_rows,
                       .in = shape.in,
                       .out = shape.out,
                       .activation = shape.activation,
                       .residual_rows = shape.residual ? max_rows : 0};
    SCOPED_TRACE(::testing::PrintToString(c));
    const Inputs inputs = make_inputs(c);
    const std::vector<float> all = run_device(c, inputs, 0, max_rows);
    const auto stride = static_cast<std::size_t>(c.out + kPad);
    for (const int count : counts) {
      const int first = (max_rows - count) / 2;
      ASSERT_TRUE(bits_equal(run_device(c, inputs, first, count),
                             rows_of(all, stride, first, first + count)))
          << count << " rows";
    }
  }
}

// On a GPU some of these count tiles, each in memory of its own where a graph is captured.
TEST_F(LinearTest, ProductsOfAGraphAreThoseOfTheStream) {
  const bool is_cuda = test_device_kind() == DeviceKind::kCuda;
  const int rows = is_cuda ? 4000 : 50;
  std::vector<LinearCase> cases = {
      {.num_rows = rows, .in = 288, .out = 864},
      {.num_rows = rows, .in = 1152, .out = 288, .residual_rows = rows}};
  if (is_cuda) {
    cases.push_back({.num_rows = rows, .in = 1152, .out = 3456});
    cases.push_back({.num_rows = rows, .in = 1152, .out = 4352, .activation = kGelu});
  }
  struct Product {
    Inputs inputs;
    Buffer y;
    LinearParams params;
  };
  std::vector<Product> products;
  for (const LinearCase& c : cases) {
    Product one{.inputs = make_inputs(c),
                .y = poisoned(static_cast<std::size_t>(rows) * (c.out + kPad)),
                .params = params(c)};
    one.params.x = one.inputs.x.dev(), one.params.y = one.y.data(), one.params.y_dtype = dtype();
    one.params.weights.weight = one.inputs.weight.dev();
    one.params.weights.bias = one.inputs.bias.dev();
    if (c.residual_rows > 0) one.params.residual = one.inputs.residual.dev();
    products.push_back(std::move(one));
  }
  const auto enqueue = [&]() -> Status {
    for (int again = 0; again < 2; ++again) {
      for (const Product& one : products) {
        GAPLESS_RETURN_IF_ERROR(kernels_->linear(*stream_, one.params));
      }
    }
    return ok_status();
  };
  std::vector<const Buffer*> results;
  for (const Product& one : products) results.push_back(&one.y);
  expect_same_in_a_graph(enqueue, results, 5);
}

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

// A long product and a short one, of the same rows or others.
TEST_F(KernelsTest, BothProductsOfAPairAreMade) {
  struct Matrix {
    TestTensor weight, bias;
    int in, out;
  };
  const auto matrix = [&](int in, int out) {
    return Matrix{random_tensor(static_cast<std::size_t>(in) * out, 1 / std::sqrt(1.0f * in)),
                  random_tensor(out), in, out};
  };
  for (const int num_rows : {1, 5, 17, 64}) {
    const Matrix matrices[] = {matrix(256, 3000), matrix(128, 40)};
    const TestTensor xs[] = {random_tensor(static_cast<std::size_t>(num_rows) * 256),
                             random_tensor(static_cast<std::size_t>(num_rows) * 128)};
    Buffer ys[2];
    LinearParams params[2];
    std::vector<float> expected[2];
    for (int i = 0; i < 2; ++i) {
      const Matrix& m = matrices[i];
      ys[i] = poisoned(static_cast<std::size_t>(num_rows) * m.out);
      params[i] = dense_linear(*kernels_, xs[i].dev(), {m.weight.dev(), m.bias.dev(), m.in, m.out},
                               ys[i].data(), num_rows);
      params[i].decode = true;
      expected[i].resize(static_cast<std::size_t>(num_rows) * m.out);
      reference::linear({.x = xs[i].ref(),
                         .x_stride = m.in,
                         .weights = {m.weight.ref(), m.bias.ref(), m.in, m.out},
                         .y = expected[i].data(),
                         .y_stride = m.out,
                         .y_dtype = DType::kF32,
                         .num_rows = num_rows});
    }
    run(kernels_->linear_pair(*stream_, params[0], params[1]));
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(rows_close(floats(ys[i]), expected[i], matrices[i].out, tolerance()))
          << "product " << i << ", " << num_rows << " rows";
    }
  }
}

}  // namespace
}  // namespace gapless
