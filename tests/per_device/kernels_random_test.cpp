#include <vector>

#include "base/random_weights.h"
#include "tests/per_device/kernels_fixture.h"

namespace gapless {
namespace {

using FillRandomTest = KernelsTest;

// The same bits on every device: what a kernel fills is what the host writes to disk.
TEST_F(FillRandomTest, IsTheHostsValueOfEveryElementRoundedToT) {
  struct Case {
    std::int64_t rows, size, stride;
    float mean, stddev;
    std::int64_t first_row = 0;
  };
  for (const Case& c : {Case{7, 588, 592, 0, 0.02f}, Case{1, 5, 5, 0, 1}, Case{33, 63, 64, 1, 0},
                        Case{1000, 257, 264, 0, 0.5f}, Case{9, 63, 64, 0, 0.5f, 5}}) {
    const RandomTensorSpec spec{.seed = 0x123456789abcdefull,
                                .tensor_hash = hash_tensor_name("model.text.wte"),
                                .mean = c.mean,
                                .stddev = c.stddev};
    const Buffer out = poisoned(static_cast<std::size_t>((c.rows + 1) * c.stride));
    run(kernels_->fill_random(*stream_, {.out = out.data(),
                                         .first_row = c.first_row,
                                         .num_rows = c.rows,
                                         .row_size = c.size,
                                         .row_stride = c.stride,
                                         .seed = spec.seed,
                                         .tensor_hash = spec.tensor_hash,
                                         .mean = c.mean,
                                         .stddev = c.stddev}));
    const std::vector<float> actual = floats(out);
    std::vector<float> expected;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      for (std::int64_t i = 0; i < c.stride; ++i) {
        const float value =
            random_value(spec, static_cast<std::uint64_t>((c.first_row + r) * c.size + i));
        expected.push_back(i < c.size ? round_to(dtype(), value) : 0.0f);
      }
    }
    EXPECT_TRUE(bits_equal(rows_of(actual, c.stride, 0, c.rows), expected));
    EXPECT_TRUE(all_poison(rows_of(actual, c.stride, c.rows, c.rows + 1)));
  }
}

}  // namespace
}  // namespace gapless
