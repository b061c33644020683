// Every instruction set that this machine has, against the oracle. (The per-device suite covers the
// ops in full, with the best set.)
#include "kernels/cpu/vector_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/compute.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

// The product in blocks that cut it anywhere. Of more than 21 rows, more than 131 columns.
void multiply_in_blocks(const VectorOps& ops, const LinearParams& params) {
  const int row_cuts[] = {0, 1, 8, 21, params.num_rows};
  const int column_cuts[] = {0, 5, 64, 130, 131, params.weights.out};
  for (int r = 0; r + 1 < 5; ++r) {
    for (int c = 0; c + 1 < 6; ++c) {
      ops.linear_block(params, {row_cuts[r], row_cuts[r + 1], column_cuts[c], column_cuts[c + 1]});
    }
  }
}

class VectorOpsTest : public ::testing::TestWithParam<const VectorOps*> {
 protected:
  const VectorOps& ops() const { return *GetParam(); }

  std::vector<float> random(std::size_t size, float stddev = 1) {
    std::normal_distribution<float> normal(0, stddev);
    std::vector<float> values(size);
    for (float& value : values) value = normal(generator_);
    return values;
  }

  static void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                           float tolerance) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
    }
  }

  std::mt19937 generator_{7};
};

// Done rows and padding share the trash page's slots, and their tokens are tasks of several threads: a slot that two of them
// wrote would be a data race.
TEST_P(VectorOpsTest, TokensOfTrashSlotsAreNotStored) {
  constexpr int kHeadDim = 32, kNumTokens = 4 * kPageTokens;
  constexpr char kUntouched = 77;
  RopeAndCacheParams p;
  p.heads = {.num_heads = 1, .num_kv_heads = 1, .head_dim = kHeadDim};
  p.rotary_dim = kHeadDim / 2;
  p.num_tokens = kNumTokens;
  p.qkv_stride = p.heads.qkv_width();
  const std::size_t element_bytes = dtype_bytes(ops().dtype);
  const auto page_bytes = static_cast<std::size_t>(p.heads.kv_layout().page_size()) * element_bytes;
  std::vector<char> qkv(static_cast<std::size_t>(kNumTokens * p.qkv_stride) * element_bytes);
  std::vector<char> cache(2 * page_bytes, kUntouched);
  const std::vector<float> table(static_cast<std::size_t>(p.rotary_dim), 0.5f);
  const std::vector<std::int32_t> positions(kNumTokens);
  std::vector<std::int32_t> slots;
  for (int t = 0; t < kNumTokens; ++t) slots.push_back(t % kPageTokens);
  slots.back() = kPageTokens + 3;
  p.qkv = qkv.data(), p.positions = positions.data(), p.cache_slots = slots.data();
  p.rope_table = table.data(), p.kv = {cache.data()};
  rope_and_cache(ops(), p);
  const auto num_written = [&](std::span<const char> bytes) {
    return bytes.size() - static_cast<std::size_t>(std::ranges::count(bytes, kUntouched));
  };
  EXPECT_EQ(num_written(std::span(cache).first(page_bytes)), 0U);
  EXPECT_EQ(num_written(std::span(cache).subspan(page_bytes)), 2 * kHeadDim * element_bytes);
}

TEST_P(VectorOpsTest, ExpIsWithinAFewUnitsInTheLastPlace) {
  std::vector<float> x;
  for (double v = -86.4; v < 87.9; v += 0.00371) x.push_back(static_cast<float>(v));
  for (double v = 1e-7; v < 1; v *= 1.01) {
    x.insert(x.end(), {static_cast<float>(v), static_cast<float>(-v)});
  }
  std::vector<float> y = x;
  ops().exp(y.data(), static_cast<std::int64_t>(y.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(y[i] - exact) / exact);
  }
  EXPECT_LT(worst, 2e-7);
}

TEST_P(VectorOpsTest, ExpOutsideItsRange) {
  std::vector<float> x = {0, -0.0f, -86.6f, -1000, -INFINITY, -1e38f};
  ops().exp(x.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(x, (std::vector<float>{1, 1, 0, 0, 0, 0}));
  x = {89, 1000, INFINITY};
  ops().exp(x.data(), 3);
  for (const float value : x) EXPECT_NEAR(value, std::exp(88.0f), 1e-6f * std::exp(88.0f));
}

TEST_P(VectorOpsTest, GeluIsTheTanhFormula) {
  std::vector<float> x;
  for (double v = -12; v < 12; v += 0.00137) x.push_back(static_cast<float>(v));
  x.insert(x.end(), {-1e4f, -1e19f, 1e4f, 1e19f, 0, 1e-20f, -1e-20f});
  std::vector<float> y = x;
  ops().gelu_tanh(y.data(), static_cast<std::int64_t>(y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = reference::gelu_tanh(x[i]);
    ASSERT_LE(std::abs(y[i] - exact), 1e-6 * std::abs(exact) + 1e-9) << "gelu(" << x[i] << ")";
  }
}

TEST_P(VectorOpsTest, GeluIsTheErfFormula) {
  std::vector<float> x;
  for (double v = -12; v < 12; v += 0.00137) x.push_back(static_cast<float>(v));
  x.insert(x.end(), {-1e4f, -1e19f, -1e38f, 1e4f, 1e19f, 1e38f, 0, 1e-20f, -1e-20f});
  std::vector<float> y = x;
  ops().gelu_erf(y.data(), static_cast<std::int64_t>(y.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = reference::gelu_erf(x[i]);
    ASSERT_LE(std::abs(y[i] - exact), 2e-7 * std::abs(exact) + 3e-7) << "gelu(" << x[i] << ")";
  }
}

TEST_P(VectorOpsTest, LinearOfOddShapes) {
  for (const int in : {1, 3, 15, 16, 17, 72}) {
    for (const int num_rows : {1, 2, 5, 6, 7, 13}) {
      for (const int out : {1, 3, 4, 63, 64, 66, 131}) {
        const auto x = random(static_cast<std::size_t>(num_rows) * in);
        const auto weight = random(static_cast<std::size_t>(out) * in);
        const auto bias = random(out), residual = random(static_cast<std::size_t>(num_rows) * out);
        LinearParams params{.x = x.data(),
                            .x_stride = in,
                            .weights = {weight.data(), bias.data(), in, out},
                            .y_stride = out,
                            .y_dtype = DType::kF32,
                            .num_rows = num_rows,
                            .activation = out % 2 == 0 ? Activation::kGeluTanh : Activation::kNone,
                            .residual = residual.data(),
                            .residual_stride = out,
                            .residual_rows = num_rows};
        std::vector<float> actual(static_cast<std::size_t>(num_rows) * out), expected = actual;
        params.y = actual.data();
        linear(ops(), params);
        params.y = expected.data();
        reference::linear(params);
        SCOPED_TRACE(std::to_string(num_rows) + "x" + std::to_string(in) + "x" +
                     std::to_string(out));
        expect_close(actual, expected, 2e-5f);
      }
    }
  }
}

// The whole product in one block, and in blocks that cut it anywhere, has the same bits: that is
// what lets any number of threads share it.
TEST_P(VectorOpsTest, LinearDoesNotDependOnItsBlocks) {
  constexpr int kRows = 23, kIn = 100, kOut = 150;
  const auto x = random(kRows * kIn), weight = random(kOut * kIn);
  std::vector<float> whole(kRows * kOut), cut(kRows * kOut, NAN);
  LinearParams params{.x = x.data(),
                      .x_stride = kIn,
                      .weights = {weight.data(), nullptr, kIn, kOut},
                      .y = whole.data(),
                      .y_stride = kOut,
                      .num_rows = kRows};
  ops().linear_block(params, {0, kRows, 0, kOut});
  params.y = cut.data();
  multiply_in_blocks(ops(), params);
  EXPECT_EQ(std::memcmp(whole.data(), cut.data(), sizeof(float) * whole.size()), 0);
}

TEST_P(VectorOpsTest, NormsOfOddSizes) {
  for (const int dim : {1, 3, 16, 31, 288}) {
    const auto x = random(5 * static_cast<std::size_t>(dim)), gamma = random(dim);
    const auto beta = random(dim);
    for (const NormWeights& weights :
         {NormWeights{.gamma = gamma.data(), .beta = beta.data()},
          NormWeights{.kind = NormKind::kRms, .gamma = gamma.data(), .eps = 1e-6f}}) {
      std::vector<float> actual(x.size()), expected(x.size());
      NormParams params{.x = x.data(),
                        .x_stride = dim,
                        .weights = weights,
                        .y = actual.data(),
                        .y_stride = dim,
                        .num_rows = 5,
                        .dim = dim};
      norm(ops(), params);
      params.y = expected.data();
      reference::norm(params);
      expect_close(actual, expected, 1e-5f);
    }
  }
}

TEST_P(VectorOpsTest, GatesOfOddSizes) {
  for (const int dim : {1, 3, 16, 31, 288}) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf}) {
      auto x = random(5 * static_cast<std::size_t>(2 * dim));
      x[0] = 90, x[static_cast<std::size_t>(dim) - 1] = -90;  // where e^x is at its limits
      std::vector<float> actual(5 * static_cast<std::size_t>(dim)), expected(actual.size());
      GateParams params{.x = x.data(),
                        .x_stride = 2 * dim,
                        .y = actual.data(),
                        .y_stride = dim,
                        .num_rows = 5,
                        .dim = dim,
                        .activation = activation,
                        .up_offset = dim == 31 ? 1.0f : 0.0f};
      gate(ops(), params);
      params.y = expected.data();
      reference::gate(params);
      expect_close(actual, expected, 3e-5f);  // an ulp of 90 times 2
      // In place: y in the gate's columns of x.
      params.x = x.data(), params.y = x.data(), params.y_stride = 2 * dim;
      gate(ops(), params);
      for (int r = 0; r < 5; ++r) {
        for (int i = 0; i < dim; ++i) EXPECT_EQ(x[r * 2 * dim + i], actual[r * dim + i]);
      }
    }
  }
}

TEST_P(VectorOpsTest, VisionAttentionOfOddSizes) {
  for (const int head_dim : {1, 8, 33, 64, 72, 256}) {
    for (const int seq_len : {1, 7, 63, 64, 65, 130}) {
      constexpr int kHeads = 2;
      const auto qkv = random(static_cast<std::size_t>(seq_len) * 3 * kHeads * head_dim);
      std::vector<float> actual(static_cast<std::size_t>(seq_len) * kHeads * head_dim);
      std::vector<float> expected(actual.size());
      VisionAttentionParams params{.qkv = qkv.data(),
                                   .out = actual.data(),
                                   .num_crops = 1,
                                   .seq_len = seq_len,
                                   .num_heads = kHeads,
                                   .head_dim = head_dim};
      vision_attention(ops(), params);
      params.out = expected.data();
      reference::vision_attention(params);
      SCOPED_TRACE(std::to_string(seq_len) + " of " + std::to_string(head_dim));
      expect_close(actual, expected, 2e-5f);
    }
  }
}

std::vector<const VectorOps*> sets_of(DType dtype) {
  std::vector<const VectorOps*> sets;
  for (const VectorOps* ops : available_vector_ops()) {
    if (ops->dtype == dtype) sets.push_back(ops);
  }
  return sets;
}

std::string name_of_set(const ::testing::TestParamInfo<const VectorOps*>& test) {
  return test.param->name;
}

INSTANTIATE_TEST_SUITE_P(Sets, VectorOpsTest, ::testing::ValuesIn(sets_of(DType::kF32)),
                         name_of_set);

class Bf16VectorOpsTest : public VectorOpsTest {
 protected:
  // Rounds `values` too, so that the oracle sees what the op sees.
  static std::vector<Bf16> to_bf16(std::vector<float>& values) {
    std::vector<Bf16> halves;
    for (float& value : values) {
      halves.push_back(rounded<Bf16>(value));
      value = to_float(halves.back());
    }
    return halves;
  }

  // |actual - expected| over |expected|, both as wholes.
  static double error(const std::vector<float>& actual, const std::vector<float>& expected) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double{actual[i]} - expected[i], 2);
      size += std::pow(double{expected[i]}, 2);
    }
    return std::sqrt(difference / size);
  }

  // x W^T in float32, by the op.
  std::vector<float> multiply(const std::vector<Bf16>& x, const std::vector<Bf16>& weight,
                              int num_rows, int in, int out, bool decode) {
    std::vector<float> y(static_cast<std::size_t>(num_rows) * out, NAN);
    linear(ops(), {.x = x.data(),
                   .x_stride = in,
                   .weights = {weight.data(), nullptr, in, out},
                   .y = y.data(),
                   .y_stride = out,
                   .y_dtype = DType::kF32,
                   .num_rows = num_rows,
                   .decode = decode});
    return y;
  }
};

// bfloat16 keeps eight bits; sets of it may have quicker functions than float32's, of sixteen.
TEST_P(Bf16VectorOpsTest, ExpAndGelusAreRightToMoreThanBfloat16Shows) {
  std::vector<float> x;
  for (double v = -80; v < 79.9; v += 0.00371) x.push_back(static_cast<float>(v));
  for (double v = 1e-7; v < 1; v *= 1.01) {
    x.insert(x.end(), {static_cast<float>(v), static_cast<float>(-v)});
  }
  std::vector<float> exps = x, tanhs = x, erfs = x;
  const auto count = static_cast<std::int64_t>(x.size());
  ops().exp(exps.data(), count);
  ops().gelu_tanh(tanhs.data(), count);
  ops().gelu_erf(erfs.data(), count);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    ASSERT_LE(std::abs(exps[i] - exact), 1e-5 * exact) << "e^" << x[i];
    const double tanh = reference::gelu_tanh(x[i]);
    ASSERT_LE(std::abs(tanhs[i] - tanh), 1e-5 * std::abs(tanh) + 1e-9) << "gelu(" << x[i] << ")";
    const double erf = reference::gelu_erf(x[i]);
    ASSERT_LE(std::abs(erfs[i] - erf), 1e-5 * std::abs(erf) + 1e-6) << "gelu(" << x[i] << ")";
  }
}

TEST_P(Bf16VectorOpsTest, ExpAndGelusAtTheirLimits) {
  std::vector<float> x = {-88, -1000, -INFINITY, -1e38f};
  ops().exp(x.data(), 4);
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0, 0}));
  x = {80, 89, 1000, INFINITY};
  ops().exp(x.data(), 4);
  for (const float value : x) EXPECT_TRUE(value > 5e34f && std::isfinite(value)) << value;
  for (const auto gelu : {ops().gelu_tanh, ops().gelu_erf}) {
    x = {-1e4f, -1e19f, 1e4f, 1e19f, 0, 1e-20f, NAN};
    gelu(x.data(), 7);
    EXPECT_NEAR(x[0], 0, 1e-9f);
    EXPECT_NEAR(x[1], 0, 1e-9f);
    EXPECT_EQ(x[2], 1e4f);
    EXPECT_EQ(x[3], 1e19f);
    EXPECT_EQ(x[4], 0);
    EXPECT_NEAR(x[5], 0, 1e-19f);
    EXPECT_TRUE(std::isnan(x[6]));
  }
}

// Lengths that end within a step, a vector and a pair; one long enough for several steps, one for several chunks.
TEST_P(Bf16VectorOpsTest, LinearOfOddShapes) {
  for (const int in : {1, 3, 31, 32, 33, 72, 257, 592, 1152, 2500}) {
    for (const int num_rows : {1, 5, 12, 13, 40}) {
      for (const int out : {1, 4, 31, 33, 200}) {
        auto x = random(static_cast<std::size_t>(num_rows) * in);
        auto weight = random(static_cast<std::size_t>(out) * in);
        const std::vector<Bf16> x_bf16 = to_bf16(x), weight_bf16 = to_bf16(weight);
        std::vector<float> expected(static_cast<std::size_t>(num_rows) * out);
        reference::linear({.x = x.data(),
                           .x_stride = in,
                           .weights = {weight.data(), nullptr, in, out},
                           .y = expected.data(),
                           .y_stride = out,
                           .y_dtype = DType::kF32,
                           .num_rows = num_rows});
        // Products of numbers of size 1: an output that cancels has the error of one that does not.
        const double size = std::sqrt(static_cast<double>(in));
        for (const bool decode : {false, true}) {
          const auto actual = multiply(x_bf16, weight_bf16, num_rows, in, out, decode);
          double worst = 0;
          for (std::size_t i = 0; i < actual.size(); ++i) {
            worst = std::max(worst, std::abs(double{actual[i]} - expected[i]) / size);
          }
          EXPECT_LT(worst, 3e-3) << num_rows << "x" << in << "x" << out
                                 << (decode ? " decode" : "");
        }
      }
    }
  }
}

// One number of a row a thousand times as large as the others, or rows that are tiny: what the small ones
// give is still there.
TEST_P(Bf16VectorOpsTest, LinearOfUnevenRows) {
  constexpr int kRows = 3, kIn = 600, kOut = 40;
  auto x = random(kRows * kIn), weight = random(kOut * kIn);
  x[10] = 1000;
  for (int i = 0; i < kIn; ++i) x[kIn + i] *= 1e-20f;
  const std::vector<Bf16> x_bf16 = to_bf16(x), weight_bf16 = to_bf16(weight);
  std::vector<float> expected(kRows * kOut);
  reference::linear({.x = x.data(),
                     .x_stride = kIn,
                     .weights = {weight.data(), nullptr, kIn, kOut},
                     .y = expected.data(),
                     .y_stride = kOut,
                     .y_dtype = DType::kF32,
                     .num_rows = kRows});
  const std::vector<float> actual = multiply(x_bf16, weight_bf16, kRows, kIn, kOut, false);
  for (int r = 0; r < kRows; ++r) {
    const auto row = [&](const std::vector<float>& of) {
      return std::vector<float>(of.begin() + r * kOut, of.begin() + (r + 1) * kOut);
    };
    EXPECT_LT(error(row(actual), row(expected)), 5e-3) << r;
  }
}

// What is not finite shows in its row, and in no other.
TEST_P(Bf16VectorOpsTest, LinearOfWhatIsNotFinite) {
  constexpr int kRows = 3, kIn = 300, kOut = 33;
  auto x = random(kRows * kIn), weight = random(kOut * kIn);
  std::vector<Bf16> x_bf16 = to_bf16(x);
  const std::vector<Bf16> weight_bf16 = to_bf16(weight);
  x_bf16[kIn + 270] = rounded<Bf16>(NAN);
  x_bf16[2 * kIn + 5] = rounded<Bf16>(INFINITY);
  const std::vector<float> y = multiply(x_bf16, weight_bf16, kRows, kIn, kOut, false);
  for (int j = 0; j < kOut; ++j) {
    EXPECT_TRUE(std::isfinite(y[static_cast<std::size_t>(j)]));
    EXPECT_FALSE(std::isfinite(y[static_cast<std::size_t>(kOut + j)]));
    EXPECT_FALSE(std::isfinite(y[static_cast<std::size_t>(2 * kOut + j)]));
  }
}

// The same bits for a row in any batch and with any cut of the product.
TEST_P(Bf16VectorOpsTest, LinearDoesNotDependOnItsBlocks) {
  constexpr int kRows = 29, kOut = 210;
  for (const bool decode : {false, true})
    for (const int kIn : {300, 1300}) {
      auto x = random(kRows * kIn), weight = random(kOut * kIn);
      const std::vector<Bf16> x_bf16 = to_bf16(x), weight_bf16 = to_bf16(weight);
      std::vector<float> whole(kRows * kOut), cut(kRows * kOut, NAN);
      LinearParams params{.x = x_bf16.data(),
                          .x_stride = kIn,
                          .weights = {weight_bf16.data(), nullptr, kIn, kOut},
                          .y = whole.data(),
                          .y_stride = kOut,
                          .y_dtype = DType::kF32,
                          .num_rows = kRows,
                          .decode = decode};
      ops().linear_block(params, {0, kRows, 0, kOut});
      params.y = cut.data();
      multiply_in_blocks(ops(), params);
      EXPECT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)), 0) << decode;
    }
}

// Products of many rows are packed for all threads where a set has tiles for that. A row has the bits there that it has in a small
// product, which one thread packs.
TEST_P(Bf16VectorOpsTest, ManyRowsHaveTheBitsOfFew) {
  const auto random_bf16 = [&](std::size_t size) {
    std::vector<float> values = random(size);
    return to_bf16(values);
  };
  for (const int rows : {96, 133}) {
    for (const int in : {1, 97, 1300}) {
      for (const int out : {5, 64, 329}) {
        const std::vector<Bf16> x = random_bf16(static_cast<std::size_t>(rows) * in);
        const std::vector<Bf16> weight = random_bf16(static_cast<std::size_t>(out) * in);
        const std::vector<Bf16> bias = random_bf16(out);
        const std::vector<Bf16> residual = random_bf16(static_cast<std::size_t>(rows) * out);
        std::vector<Bf16> many = residual, few(residual.size());
        LinearParams params{.x = x.data(),
                            .x_stride = in,
                            .weights = {weight.data(), bias.data(), in, out},
                            .y = many.data(),
                            .y_stride = out,
                            .num_rows = rows,
                            .activation = Activation::kGeluTanh,
                            .residual = many.data(),
                            .residual_stride = out,
                            .residual_rows = rows};
        linear(ops(), params);
        params.y = few.data();
        params.residual = residual.data();
        for (std::int64_t row = 0; row < rows; row += 20) {
          ops().linear_block(params, {row, std::min<std::int64_t>(row + 20, rows), 0, out});
        }
        EXPECT_EQ(std::memcmp(many.data(), few.data(), many.size() * sizeof(Bf16)), 0)
            << rows << "x" << in << "x" << out;
      }
    }
  }
}

TEST_P(Bf16VectorOpsTest, VisionAttentionOfOddSizes) {
  for (const int head_dim : {1, 8, 33, 64, 72, 256}) {
    for (const int seq_len : {1, 7, 63, 64, 65, 130, 400, 1100}) {
      if (seq_len > 1024 && head_dim != 72) continue;  // several spans of AMX: one size will do
      constexpr int kHeads = 2;
      auto qkv = random(static_cast<std::size_t>(seq_len) * 3 * kHeads * head_dim);
      qkv[0] = 40;  // what is small beside it still counts
      const std::vector<Bf16> qkv_bf16 = to_bf16(qkv);
      std::vector<Bf16> actual(static_cast<std::size_t>(seq_len) * kHeads * head_dim);
      std::vector<float> expected(actual.size());
      VisionAttentionParams params{.qkv = qkv_bf16.data(),
                                   .out = actual.data(),
                                   .num_crops = 1,
                                   .seq_len = seq_len,
                                   .num_heads = kHeads,
                                   .head_dim = head_dim};
      vision_attention(ops(), params);
      params.qkv = qkv.data(), params.out = expected.data();
      reference::vision_attention(params);
      std::vector<float> widened;
      for (const Bf16 value : actual) widened.push_back(to_float(value));
      EXPECT_LT(error(widened, expected), 4e-3) << seq_len << " of " << head_dim;
    }
  }
}

// Bits of a query: in any tile, and whatever lies behind what it sees. The last keys of one are at the end of a block, or of AMX's
// first or second span.
TEST_P(Bf16VectorOpsTest, AttentionDependsOnWhatAQuerySeesAlone) {
  constexpr int kQueries = 40, kDim = 72;
  for (const int num_keys : {150, 1044, 2068}) {
    SCOPED_TRACE(num_keys);
    auto q = random(kQueries * kDim), k = random(num_keys * kDim), v = random(num_keys * kDim);
    const std::vector<Bf16> q_bf16 = to_bf16(q);
    std::vector<Bf16> k_bf16 = to_bf16(k), v_bf16 = to_bf16(v);
    int visible[kQueries];
    for (int i = 0; i < kQueries; ++i) visible[i] = num_keys - kQueries + 1 + i;
    std::vector<Bf16> whole(q_bf16.size()), other(q_bf16.size());
    const auto attend = [&](std::vector<Bf16>& out, int first, int count) {
      ops().attend({.q = q_bf16.data() + first * kDim,
                    .q_stride = kDim,
                    .out = out.data() + first * kDim,
                    .out_stride = kDim,
                    .num_visible = visible + first,
                    .num_queries = count,
                    .head_dim = kDim,
                    .k = k_bf16.data(),
                    .v = v_bf16.data(),
                    .key_stride = kDim,
                    .page_stride = kPageTokens * kDim});
    };
    const auto expect_same = [&](int num_queries) {
      EXPECT_EQ(std::memcmp(whole.data(), other.data(), sizeof(Bf16) * num_queries * kDim), 0);
    };
    attend(whole, 0, kQueries);
    for (int first = 0; first < kQueries; first += 7) {
      attend(other, first, std::min(7, kQueries - first));
    }
    expect_same(kQueries);
    // Keys and values that the first 20 do not see.
    for (int at = visible[19] * kDim; at < num_keys * kDim; ++at) {
      k_bf16[static_cast<std::size_t>(at)] = v_bf16[static_cast<std::size_t>(at)] =
          rounded<Bf16>(1e4f);
    }
    attend(other, 0, kQueries);
    expect_same(20);
    EXPECT_NE(std::memcmp(whole.data(), other.data(), sizeof(Bf16) * whole.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, Bf16VectorOpsTest, ::testing::ValuesIn(sets_of(DType::kBF16)),
                         name_of_set);

TEST(CpuCompute, AutoIsBfloat16WhereTheProcessorHasAvx512) {
  Processor processor{.is_x86 = true, .has_avx2 = true};
  EXPECT_EQ(choose_cpu_compute(Compute::kAuto, processor)->dtype, DType::kF32);
  EXPECT_EQ(choose_cpu_compute(Compute::kBFloat16, processor)->dtype, DType::kBF16);
  processor.has_avx512 = true;
  EXPECT_EQ(choose_cpu_compute(Compute::kAuto, processor)->dtype, DType::kBF16);
  EXPECT_EQ(choose_cpu_compute(Compute::kFloat32, processor)->dtype, DType::kF32);
  EXPECT_EQ(choose_cpu_compute(Compute::kPortable, processor)->dtype, DType::kF32);
  EXPECT_EQ(choose_cpu_compute(Compute::kAuto, {})->dtype, DType::kF32) << "not x86-64";
}

TEST(CpuCompute, AProcessorWithoutAvx2IsRefusedUnlessItsInstructionsWereChosen) {
  Processor processor{.is_x86 = true};
  const auto refused = choose_cpu_compute(Compute::kAuto, processor);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("AVX2"), std::string::npos);
  EXPECT_NE(refused.status().message().find("--device cuda"), std::string::npos);
  processor.is_overridden = true;
  EXPECT_TRUE(choose_cpu_compute(Compute::kAuto, processor).ok());
}

}  // namespace
}  // namespace gapless::cpu
