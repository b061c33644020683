#include "testing/tensor_compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace gapless {
namespace {

// Below this a row counts as zero: differences are then compared with 1e-30 itself.
constexpr double kTinyNorm = 1e-30;

}  // namespace

::testing::AssertionResult rows_close(std::span<const float> actual,
                                      std::span<const float> expected, int row_size,
                                      double tolerance, double least_norm) {
  const auto size = static_cast<std::size_t>(row_size);
  if (actual.size() != expected.size() || size == 0 || expected.size() % size != 0) {
    return ::testing::AssertionFailure() << "sizes do not fit: " << actual.size() << " actual, "
                                         << expected.size() << " expected, rows of " << row_size;
  }
  for (std::size_t begin = 0; begin < expected.size(); begin += size) {
    double error_square = 0, norm_square = 0, worst_error = -1;
    std::size_t worst = begin;
    for (std::size_t i = begin; i < begin + size; ++i) {
      const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
      error_square += error * error;
      norm_square += static_cast<double>(expected[i]) * expected[i];
      if (!(error <= worst_error)) worst_error = error, worst = i;
    }
    const double norm = std::max(std::sqrt(norm_square), least_norm) + kTinyNorm;
    const double rms = norm / std::sqrt(row_size);
    const double relative = std::sqrt(error_square) / norm;
    if (!(relative <= tolerance) || !(worst_error <= 10 * tolerance * rms)) {
      return ::testing::AssertionFailure()
             << "row " << begin / size << " is off by " << relative << " of its norm (tolerance "
             << tolerance << "); worst at column " << worst - begin << ": " << actual[worst]
             << ", expected " << expected[worst];
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult bits_equal(std::span<const float> actual,
                                      std::span<const float> expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(actual[i]) != std::bit_cast<std::uint32_t>(expected[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " differs: " << actual[i] << ", expected " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gapless
