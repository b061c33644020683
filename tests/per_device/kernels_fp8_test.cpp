#include <cmath>
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

}  // namespace
}  // namespace gapless
