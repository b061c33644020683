// What the encoder of a lossless WebP did to its pixels, undone row by row.
#pragma once

#include <cstdint>
#include <vector>

namespace gapless::internal {

struct WebpTransform {
  enum class Kind { kPredict, kColour, kSubtractGreen, kPalette };

  Kind kind = Kind::kPredict;
  int width = 0;        // of its result
  int square_bits = 0;  // kPalette: 1 << square_bits pixels lie in one
  // One value for each square; kPalette: the colours.
  std::vector<std::uint32_t> data;
  // kPredict: the row above, and behind it the first pixel of this one.
  std::vector<std::uint32_t> above;

  // kPalette, when data has the colours' differences.
  void finish_palette();
  // Before the first row.
  void begin();
  // Rows from the top, each once. `row` has one more pixel than the picture is wide, `other` is as long and lent.
  void invert_row(int y, std::vector<std::uint32_t>& row, std::vector<std::uint32_t>& other);

 private:
  void predict(int y, std::uint32_t* row);
};

}  // namespace gapless::internal
