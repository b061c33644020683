// Products in 8-bit whole numbers: every instruction set that this machine has, against the oracle and each other.
#include "kernels/cpu/int8_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

std::vector<float> random_numbers(std::size_t size) {
  static std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<const VectorOps*> sets_for(DType dtype) {
  std::vector<const VectorOps*> sets;
  for (const VectorOps* ops : available_vector_ops()) {
    if (ops->dtype == dtype) sets.push_back(ops);
  }
  return sets;
}

// x W^T by W's packed form, both of type T, in float32.
template <typename T>
std::vector<float> int8_product(const VectorOps& ops, const std::vector<T>& x,
                                const std::vector<T>& weight, int in, int out,
                                bool decode = false) {
  LinearWeights weights{weight.data(), nullptr, in, out};
  std::vector<std::uint8_t> packed(Int8Layout{in, out}.bytes(), 0xab);
  pack_int8(kDTypeOf<T>, {.weights = weights, .packed = packed.data()});
  weights.int8 = packed.data();
  weights.weight = nullptr;  // not read
  const auto num_rows = static_cast<int>(x.size()) / in;
  std::vector<float> y(static_cast<std::size_t>(num_rows) * out, NAN);
  linear(ops, {.x = x.data(),
               .x_stride = in,
               .weights = weights,
               .y = y.data(),
               .y_stride = out,
               .y_dtype = DType::kF32,
               .num_rows = num_rows,
               .decode = decode});
  return y;
}

template <typename T>
std::vector<T> rounded_to(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float value : values) out.push_back(rounded<T>(value));
  return out;
}

template <typename T>
void expect_int8_products_of_odd_shapes() {
  for (const int in : {1, 3, 4, 65, 288, 1152}) {
    for (const int num_rows : {1, 5, 12, 40}) {
      for (const int out : {1, 31, 32, 33, 200}) {
        SCOPED_TRACE(std::to_string(num_rows) + "x" + std::to_string(in) + "x" +
                     std::to_string(out));
        const auto x = random_numbers(static_cast<std::size_t>(num_rows) * in);
        const auto weight = random_numbers(static_cast<std::size_t>(out) * in);
        const std::vector<T> x_t = rounded_to<T>(x), weight_t = rounded_to<T>(weight);
        std::vector<float> expected(static_cast<std::size_t>(num_rows) * out);
        reference::linear({.x = x.data(),
                           .x_stride = in,
                           .weights = {weight.data(), nullptr, in, out},
                           .y = expected.data(),
                           .y_stride = out,
                           .y_dtype = DType::kF32,
                           .num_rows = num_rows});
        std::vector<float> first;
        for (const VectorOps* ops : sets_for(kDTypeOf<T>)) {
          const std::vector<float> y = int8_product(*ops, x_t, weight_t, in, out);
          // A number is off by up to 1/254 of its row's largest: a sum of products by that times sqrt(in), rarely more.
          double worst = 0;
          for (std::size_t i = 0; i < y.size(); ++i) {
            worst = std::max(worst, std::abs(double{y[i]} - expected[i]));
          }
          EXPECT_LT(worst, 0.03 + 0.08 * std::sqrt(in)) << ops->name;
          // Every instruction set, decode steps too.
          if (first.empty()) first = y;
          EXPECT_EQ(std::memcmp(first.data(), y.data(), sizeof(float) * y.size()), 0) << ops->name;
          const std::vector<float> decoded = int8_product(*ops, x_t, weight_t, in, out, true);
          EXPECT_EQ(std::memcmp(first.data(), decoded.data(), sizeof(float) * y.size()), 0);
        }
      }
    }
  }
}

TEST(Int8Products, OfOddShapesAreTheSameBitsInEveryInstructionSet) {
  expect_int8_products_of_odd_shapes<float>();
  expect_int8_products_of_odd_shapes<Bf16>();
}

TEST(Int8Products, ARowDoesNotDependOnItsBatch) {
  constexpr int kRows = 1700, kIn = 70, kOut = 100;  // more rows than become bytes at once
  const auto x = rounded_to<Bf16>(random_numbers(kRows * kIn)),
             weight = rounded_to<Bf16>(random_numbers(kOut * kIn));
  for (const VectorOps* ops : sets_for(DType::kBF16)) {
    const std::vector<float> whole = int8_product(*ops, x, weight, kIn, kOut);
    for (const int first : {0, 11, 1530, 1699}) {
      const int count = std::min(20, kRows - first);
      const std::vector<Bf16> rows(x.begin() + first * kIn, x.begin() + (first + count) * kIn);
      const std::vector<float> alone = int8_product(*ops, rows, weight, kIn, kOut);
      EXPECT_EQ(
          std::memcmp(alone.data(), whole.data() + first * kOut, sizeof(float) * alone.size()), 0)
          << ops->name << " from row " << first;
    }
  }
}

TEST(Int8Products, WhatIsNotFiniteShowsInItsRowAndInNoOther) {
  constexpr int kIn = 100, kOut = 40;
  auto x = rounded_to<Bf16>(random_numbers(4 * kIn));
  const auto weight = rounded_to<Bf16>(random_numbers(kOut * kIn));
  x[kIn + 70] = rounded<Bf16>(NAN);
  x[2 * kIn + 99] = rounded<Bf16>(-INFINITY);
  std::fill(x.begin() + 3 * kIn, x.end(), Bf16{});
  for (const VectorOps* ops : sets_for(DType::kBF16)) {
    const std::vector<float> y = int8_product(*ops, x, weight, kIn, kOut);
    for (std::size_t j = 0; j < kOut; ++j) {
      EXPECT_TRUE(std::isfinite(y[j])) << ops->name;
      EXPECT_FALSE(std::isfinite(y[kOut + j])) << ops->name;
      EXPECT_FALSE(std::isfinite(y[2 * kOut + j])) << ops->name;
      EXPECT_EQ(y[3 * kOut + j], 0) << ops->name;
    }
  }
}

}  // namespace
}  // namespace gapless::cpu
