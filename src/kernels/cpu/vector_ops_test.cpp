// Every instruction set that this machine has, against the oracle. (The per-device suite covers the
// ops in full, with the best set.)
#include "kernels/cpu/vector_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

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
  const int row_cuts[] = {0, 1, 8, 21, kRows}, column_cuts[] = {0, 5, 64, 130, 131, kOut};
  for (int r = 0; r + 1 < 5; ++r) {
    for (int c = 0; c + 1 < 6; ++c) {
      ops().linear_block(params,
                         {row_cuts[r], row_cuts[r + 1], column_cuts[c], column_cuts[c + 1]});
    }
  }
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

INSTANTIATE_TEST_SUITE_P(Sets, VectorOpsTest,
                         ::testing::ValuesIn(available_vector_ops().begin(),
                                             available_vector_ops().end()),
                         [](const auto& test) { return std::string(test.param->name); });

}  // namespace
}  // namespace gapless::cpu
