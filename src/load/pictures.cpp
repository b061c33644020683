#include "load/pictures.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "base/limits.h"
#include "base/thread_pool.h"
#include "image/write_jpeg.h"
#include "image/write_png.h"

namespace gapless {
namespace {

constexpr int kJpegQuality = 85;
// Of a photograph, either way, on each channel.
constexpr int kGrain = 8;

void add_grain(Image& image, std::mt19937_64& random) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < image.rgb.size(); ++i, bits >>= 8) {
    if (i % 8 == 0) bits = random();
    const int grain = static_cast<int>(bits % (2 * kGrain + 1)) - kGrain;
    image.rgb[i] = static_cast<std::uint8_t>(std::clamp(image.rgb[i] + grain, 0, 255));
  }
}

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

StatusOr<std::string> make_picture(PictureSize size, std::uint64_t seed, int number,
                                   PictureFormat format) {
  std::seed_seq seeds{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      static_cast<std::uint32_t>(number)};
  std::mt19937_64 random(seeds);
  Image image = draw(size, random);
  // Two pictures whose rectangles happen to be the same differ here.
  const std::size_t num_pixels = image.rgb.size() / 3;
  std::uint8_t* const own = image.rgb.data() + static_cast<std::size_t>(number) % num_pixels * 3;
  for (int channel = 0; channel < 3; ++channel) own[channel] ^= 0x80;
  std::vector<std::byte> bytes;
  if (format == PictureFormat::kJpeg) {
    add_grain(image, random);
    GAPLESS_ASSIGN_OR_RETURN(bytes, encode_jpeg(image, kJpegQuality));
  } else {
    GAPLESS_ASSIGN_OR_RETURN(bytes, encode_png(image));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
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

StatusOr<PictureFormat> parse_picture_format(std::string_view text) {
  if (text == "jpeg") return PictureFormat::kJpeg;
  if (text == "png") return PictureFormat::kPng;
  return invalid_argument("'{}': jpeg or png is needed", text);
}

StatusOr<std::vector<std::string>> make_pictures(int count, const std::vector<PictureSize>& sizes,
                                                 std::uint64_t seed, PictureFormat format) {
  std::vector<StatusOr<std::string>> made(static_cast<std::size_t>(count), std::string());
  ThreadPool::shared().parallel_for(count, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    made[at] = make_picture(sizes[at % sizes.size()], seed, static_cast<int>(i), format);
  });
  std::vector<std::string> pictures;
  for (StatusOr<std::string>& picture : made) {
    GAPLESS_RETURN_IF_ERROR(picture.status());
    pictures.push_back(std::move(*picture));
  }
  return pictures;
}

}  // namespace gapless
