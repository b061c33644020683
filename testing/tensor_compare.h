// Comparing what a kernel wrote with what it should have written.
#pragma once

#include <gtest/gtest.h>

#include <span>

namespace gapless {

// Both are [num_rows, row_size]. Per row, with e the error: |e| <= tolerance * |expected|
// (Euclidean norms), and no single element is off by more than 10 * tolerance * rms(expected). NaN
// in `actual` fails, and so does a size that does not fit. Says which row and element is worst.
// A row whose norm is smaller than least_norm is measured as if it had that one.
::testing::AssertionResult rows_close(std::span<const float> actual,
                                      std::span<const float> expected, int row_size,
                                      double tolerance, double least_norm = 0);

// The same bits, elementwise (so that -0 differs from 0, and NaN equals itself).
::testing::AssertionResult bits_equal(std::span<const float> actual,
                                      std::span<const float> expected);

}  // namespace gapless
