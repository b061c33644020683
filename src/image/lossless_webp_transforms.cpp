#include "image/lossless_webp_transforms.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace gapless::internal {
namespace {

using Argb = std::uint32_t;
constexpr Argb kBlack = 0xff000000;

// Of each of the four channels.
Argb sum(Argb a, Argb b) {
  const Argb alpha_green = (a & 0xff00ff00) + (b & 0xff00ff00);
  const Argb red_blue = (a & 0x00ff00ff) + (b & 0x00ff00ff);
  return (alpha_green & 0xff00ff00) | (red_blue & 0x00ff00ff);
}
Argb average(Argb a, Argb b) {
  return (((a ^ b) & 0xfefefefe) >> 1) + (a & b);
}
int channel(Argb argb, int shift) {
  return static_cast<int>(argb >> shift & 0xff);
}

// The nearer one of left and above to left + above - corner.
Argb select(Argb left, Argb above, Argb corner) {
  int from_left = 0, from_above = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    from_left += std::abs(channel(above, shift) - channel(corner, shift));
    from_above += std::abs(channel(left, shift) - channel(corner, shift));
  }
  return from_left < from_above ? left : above;
}
Argb sum_less_corner(Argb left, Argb above, Argb corner) {
  Argb result = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const int value = channel(left, shift) + channel(above, shift) - channel(corner, shift);
    result |= static_cast<Argb>(std::clamp(value, 0, 255)) << shift;
  }
  return result;
}
Argb average_and_half(Argb left, Argb above, Argb corner) {
  const Argb middle = average(left, above);
  Argb result = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const int value = channel(middle, shift);
    const int more = value + (value - channel(corner, shift)) / 2;
    result |= static_cast<Argb>(std::clamp(more, 0, 255)) << shift;
  }
  return result;
}

template <int Mode>
Argb predicted(Argb left, const Argb* above) {
  const Argb top = above[0], corner = above[-1], right = above[1];
  switch (Mode) {
    case 1:
      return left;
    case 2:
      return top;
    case 3:
      return right;
    case 4:
      return corner;
    case 5:
      return average(average(left, right), top);
    case 6:
      return average(left, corner);
    case 7:
      return average(left, top);
    case 8:
      return average(corner, top);
    case 9:
      return average(top, right);
    case 10:
      return average(average(left, corner), average(top, right));
    case 11:
      return select(left, top, corner);
    case 12:
      return sum_less_corner(left, top, corner);
    case 13:
      return average_and_half(left, top, corner);
    default:
      return kBlack;
  }
}

// Pixels [first, end) of a row, first > 0.
using Predict = void (*)(Argb* row, const Argb* above, int first, int end);
template <int Mode>
void predict_run(Argb* row, const Argb* above, int first, int end) {
  for (int x = first; x < end; ++x) row[x] = sum(row[x], predicted<Mode>(row[x - 1], above + x));
}
constexpr Predict kPredict[16] = {
    predict_run<0>,  predict_run<1>,  predict_run<2>,  predict_run<3>,
    predict_run<4>,  predict_run<5>,  predict_run<6>,  predict_run<7>,
    predict_run<8>,  predict_run<9>,  predict_run<10>, predict_run<11>,
    predict_run<12>, predict_run<13>, predict_run<14>, predict_run<15>};

int squares_of(int width, int bits) {
  return (width + (1 << bits) - 1) >> bits;
}

Argb with_colours(Argb argb, Argb factors) {
  const auto as_signed = [](Argb value) {
    return static_cast<int>(static_cast<std::int8_t>(value & 0xff));
  };
  const auto times = [](int factor, int value) { return static_cast<Argb>((factor * value) >> 5); };
  const int green = as_signed(argb >> 8);
  const Argb red = ((argb >> 16) + times(as_signed(factors), green)) & 0xff;
  const Argb blue = (argb + times(as_signed(factors >> 8), green) +
                     times(as_signed(factors >> 16), as_signed(red))) &
                    0xff;
  return (argb & 0xff00ff00) | red << 16 | blue;
}

}  // namespace

void WebpTransform::finish_palette() {
  const std::size_t num_colours = data.size();
  square_bits = num_colours <= 2 ? 3 : num_colours <= 4 ? 2 : num_colours <= 16 ? 1 : 0;
  for (std::size_t i = 1; i < num_colours; ++i) data[i] = sum(data[i], data[i - 1]);
  // What else an index can be is transparent.
  data.resize(std::size_t{1} << (8 >> square_bits));
}

void WebpTransform::begin() {
  if (kind == Kind::kPredict) above.assign(static_cast<std::size_t>(width) + 1, 0);
}

void WebpTransform::predict(int y, std::uint32_t* row) {
  if (y == 0) {
    row[0] = sum(row[0], kBlack);
    predict_run<1>(row, above.data(), 1, width);
  } else {
    row[0] = sum(row[0], above[0]);
    above[static_cast<std::size_t>(width)] = row[0];
    const Argb* const modes =
        data.data() + static_cast<std::size_t>(y >> square_bits) *
                          static_cast<std::size_t>(squares_of(width, square_bits));
    for (int x = 1; x < width;) {
      const int square = x >> square_bits;
      const int end = std::min(width, (square + 1) << square_bits);
      kPredict[modes[square] >> 8 & 0xf](row, above.data(), x, end);
      x = end;
    }
  }
  std::copy_n(row, width, above.begin());
}

void WebpTransform::invert_row(int y, std::vector<std::uint32_t>& row,
                               std::vector<std::uint32_t>& other) {
  const auto num_pixels = static_cast<std::size_t>(width);
  switch (kind) {
    case Kind::kPredict:
      return predict(y, row.data());
    case Kind::kColour: {
      const Argb* const factors =
          data.data() + static_cast<std::size_t>(y >> square_bits) *
                            static_cast<std::size_t>(squares_of(width, square_bits));
      for (std::size_t x = 0; x < num_pixels; ++x) {
        row[x] = with_colours(row[x], factors[x >> square_bits]);
      }
      return;
    }
    case Kind::kSubtractGreen:
      for (std::size_t x = 0; x < num_pixels; ++x) {
        const Argb green = row[x] >> 8 & 0xff;
        row[x] = sum(row[x], green << 16 | green);
      }
      return;
    case Kind::kPalette: {
      const int index_bits = 8 >> square_bits;
      const Argb index_mask = (1u << index_bits) - 1;
      const std::size_t in_square = (std::size_t{1} << square_bits) - 1;
      for (std::size_t x = 0; x < num_pixels; ++x) {
        const Argb indices = row[x >> square_bits] >> 8 & 0xff;
        other[x] = data[indices >> (static_cast<int>(x & in_square) * index_bits) & index_mask];
      }
      std::swap(row, other);
      return;
    }
  }
}

}  // namespace gapless::internal
