#include "load/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "base/limits.h"
#include "image/write_png.h"

namespace gapless {
namespace {

constexpr int kMaxDrawn = 64;

Image draw(PictureSize size, std::mt19937_64& random) {
  const auto upto = [&random](int bound) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(std::max(1, bound)));
  };
  Image image;
  image.width = size.width;
  image.height = size.height;
  image.rgb.resize(static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height) *
                   3);
  const auto pixel = [&image](int x, int y) {
    return image.rgb.data() + (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                               static_cast<std::size_t>(x)) *
                                  3;
  };
  const int tint = upto(256);
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      std::uint8_t* const rgb = pixel(x, y);
      rgb[0] = static_cast<std::uint8_t>(x * 255 / size.width);
      rgb[1] = static_cast<std::uint8_t>(y * 255 / size.height);
      rgb[2] = static_cast<std::uint8_t>(tint);
    }
  }
  for (int i = 0; i < 8; ++i) {
    const int left = upto(size.width);
    const int top = upto(size.height);
    const int right = std::min(size.width, left + 1 + upto(size.width / 3));
    const int bottom = std::min(size.height, top + 1 + upto(size.height / 3));
    const std::uint8_t colour[3] = {static_cast<std::uint8_t>(upto(256)),
                                    static_cast<std::uint8_t>(upto(256)),
                                    static_cast<std::uint8_t>(upto(256))};
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) std::copy_n(colour, 3, pixel(x, y));
    }
  }
  return image;
}

}  // namespace

StatusOr<PictureSize> parse_picture_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  PictureSize size;
  const auto width = std::from_chars(text.data(), end, size.width);
  if (width.ec == std::errc() && width.ptr != end && *width.ptr == 'x') {
    const auto height = std::from_chars(width.ptr + 1, end, size.height);
    const bool whole = height.ec == std::errc() && height.ptr == end;
    if (whole && size.width > 0 && size.height > 0 && size.width <= kMaxImageSide &&
        size.height <= kMaxImageSide && std::int64_t{size.width} * size.height <= kMaxImagePixels) {
      return size;
    }
  }
  return invalid_argument("'{}': a size such as 800x600 is needed", text);
}

StatusOr<std::vector<std::string>> make_pictures(int count, const std::vector<PictureSize>& sizes,
                                                 std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> pictures;
  for (int i = 0; i < count; ++i) {
    if (i >= kMaxDrawn) {
      // What follows a PNG's end is not part of the picture, but of the bytes.
      std::string again = pictures[static_cast<std::size_t>(i % kMaxDrawn)];
      pictures.push_back(again + fmt::format("copy {}", i));
      continue;
    }
    const PictureSize size = sizes[static_cast<std::size_t>(i) % sizes.size()];
    GAPLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> png, encode_png(draw(size, random)));
    pictures.emplace_back(reinterpret_cast<const char*>(png.data()), png.size());
  }
  return pictures;
}

}  // namespace gapless
