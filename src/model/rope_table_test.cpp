#include "model/rope_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>

#include "device/bump_layout.h"

namespace gapless {
namespace {

TEST(RopeTable, AnglesArePositionTimesFrequency) {
  constexpr int kRotaryDim = 32;
  const std::vector<float> table = make_rope_table(2048, kRotaryDim, 10000);
  ASSERT_EQ(table.size(), 2048u * kRotaryDim);
  for (const int position : {0, 1, 730, 2047}) {
    for (int j = 0; j < kRotaryDim / 2; ++j) {
      const double angle = position * std::pow(10000.0, -2.0 * j / kRotaryDim);
      const auto at = static_cast<std::size_t>(position * kRotaryDim + 2 * j);
      // Half a unit in the last place of a float32 angle of 2047.
      EXPECT_NEAR(table[at], std::cos(angle), 3e-4) << position << " " << j;
      EXPECT_NEAR(table[at + 1], std::sin(angle), 3e-4) << position << " " << j;
    }
  }
  // The first pair turns by exactly the position.
  EXPECT_FLOAT_EQ(table[1 * kRotaryDim], std::cos(1.0f));
  EXPECT_FLOAT_EQ(table[1 * kRotaryDim + 1], std::sin(1.0f));
}

// Frequencies and scales that transformers 5.23 has for these (modeling_rope_utils, heads of 128), of Llama 3.1,
// of Qwen3 stretched four times, of a YaRN with every setting, and linear.
TEST(RopeTable, ScaledFrequenciesAreThoseOfTransformers) {
  struct Case {
    RopeScaling scaling;
    double theta;
    double scale;
    std::vector<double> frequencies;  // of kPairs
  };
  constexpr int kPairs[] = {0, 24, 28, 30, 36, 42, 63};
  using Kind = RopeScaling::Kind;
  const Case cases[] = {{{.kind = Kind::kLlama3, .factor = 8, .original_context = 8192},
                         5e5,
                         1,
                         {1, 0.00729266508, 0.00321144611, 0.00137189368, 7.78465546e-05,
                          2.2748929e-05, 3.06892588e-07}},
                        {{.kind = Kind::kYarn, .factor = 4, .original_context = 32768},
                         1e6,
                         1.138629436111989,
                         {1, 0.00537532149, 0.00184827659, 0.00106436096, 0.000179841154,
                          2.88695483e-05, 3.10234441e-07}},
                        {{.kind = Kind::kYarn,
                          .factor = 40,
                          .original_context = 4096,
                          .beta_fast = 24,
                          .mscale = 0.707,
                          .mscale_all_dim = 1.2,
                          .truncate = false},
                         1e4,
                         0.8739404576185121,
                         {1, 0.030147722, 0.0138128074, 0.00918062311, 0.00238176528,
                          0.000376193231, 2.88695469e-06}},
                        {{.kind = Kind::kLinear, .factor = 3},
                         1e4,
                         1,
                         {0.333333343, 0.0105409259, 0.0059275981, 0.0044450718, 0.00187447108,
                          0.00079045794, 3.84927298e-05}}};
  for (const Case& one : cases) {
    const std::vector<float> table = make_rope_table(2, 128, one.theta, one.scaling);
    for (std::size_t i = 0; i < std::size(kPairs); ++i) {
      SCOPED_TRACE(fmt::format("kind {} pair {}", static_cast<int>(one.scaling.kind), kPairs[i]));
      const float* at = &table[static_cast<std::size_t>(128 + 2 * kPairs[i])];  // of position 1
      const double sine = std::sin(one.frequencies[i]) * one.scale;
      EXPECT_NEAR(at[0], std::cos(one.frequencies[i]) * one.scale, 1e-6);
      EXPECT_NEAR(at[1], sine, 2e-6 * std::abs(sine));
    }
  }
}

TEST(BumpLayout, RewoundArraysShareBytesAndThePeakCounts) {
  alignas(256) static std::byte memory[4096];
  BumpLayout layout(memory);
  EXPECT_EQ(layout.take(10), memory);
  const std::size_t mark = layout.mark();
  EXPECT_EQ(layout.take(1000), memory + 256);
  layout.rewind(mark);
  EXPECT_EQ(layout.take_array<float>(4), reinterpret_cast<float*>(memory + 256));
  EXPECT_EQ(layout.peak_bytes(), 256u + 1024u);

  BumpLayout sizes;
  sizes.take(10);
  sizes.take(1);
  EXPECT_EQ(sizes.peak_bytes(), 512u);
}

}  // namespace
}  // namespace gapless
