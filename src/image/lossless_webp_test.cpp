#include "image/lossless_webp.h"

#include <gtest/gtest.h>
#include <webp/decode.h>
#include <webp/encode.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "image/codecs.h"

namespace gapless::internal {
namespace {

using Bytes = std::vector<std::uint8_t>;

// RGBA of many kinds: noise, few colours, gradients, grey, edges. Each is what an encoder's transforms are for.
Bytes picture(int width, int height, int kind, std::mt19937& random) {
  std::vector<std::uint32_t> colours(random() % 300 + 1);
  for (std::uint32_t& colour : colours) colour = static_cast<std::uint32_t>(random());
  Bytes pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 4);
  std::uint8_t* rgba = pixels.data();
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x, rgba += 4) {
      const auto noise = [&random](unsigned bound) { return static_cast<int>(random() % bound); };
      const auto set = [rgba](int red, int green, int blue, int alpha) {
        const int values[4] = {red, green, blue, alpha};
        for (int c = 0; c < 4; ++c) rgba[c] = static_cast<std::uint8_t>(values[c]);
      };
      const auto colour_at = [&](int index) {
        std::memcpy(rgba, &colours[static_cast<std::size_t>(index) % colours.size()], 4);
      };
      switch (kind) {
        case 0:
          set(noise(256), noise(256), noise(256), noise(256));
          break;
        case 1:
          colour_at(x / 7 + y / 5 * 3);
          break;
        case 2:
          set(x * 2 + noise(5), y + noise(9), x + y, 255);
          break;
        case 3:
          set(x * y / 50, x * y / 50, x * y / 50, 255 - (x & y & 15));
          break;
        case 4:
          colour_at(noise(300));
          rgba[3] = 255;
          break;
        default:
          set(128 + 60 * ((x / 16 + y / 16) & 1) + noise(17), 120 + noise(9), x * 255 / width, 255);
      }
    }
  }
  return pixels;
}

Bytes encoded(const Bytes& rgba, int width, int height, int method, float quality, bool is_near) {
  WebPConfig config;
  WebPPicture image;
  WebPMemoryWriter file;
  EXPECT_TRUE(WebPConfigInit(&config) && WebPPictureInit(&image));
  WebPMemoryWriterInit(&file);
  config.lossless = 1;
  config.exact = 1;  // colours under full transparency too
  config.method = method;
  config.quality = quality;
  if (is_near) config.near_lossless = 40;
  image.use_argb = 1;
  image.width = width;
  image.height = height;
  image.writer = WebPMemoryWrite;
  image.custom_ptr = &file;
  EXPECT_TRUE(WebPPictureImportRGBA(&image, rgba.data(), width * 4) && WebPEncode(&config, &image));
  const Bytes bytes(file.mem, file.mem + file.size);
  WebPPictureFree(&image);
  WebPMemoryWriterClear(&file);
  return bytes;
}

Bytes by_libwebp(const Bytes& file, std::size_t num_bytes) {
  int width = 0, height = 0;
  const std::unique_ptr<std::uint8_t, void (*)(void*)> rgba(
      WebPDecodeRGBA(file.data(), file.size(), &width, &height), WebPFree);
  if (rgba == nullptr) return {};
  return Bytes(rgba.get(), rgba.get() + num_bytes);
}

Status decode(std::span<const std::uint8_t> chunk, int width, int height, Bytes& to) {
  to.assign(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 4, 0);
  return decode_lossless_webp(chunk, width, height, 4, to.data(),
                              static_cast<std::size_t>(width) * 4, {});
}

const Bytes kUnsetColour = {
    47,  17,  64,  3,   0,   9,   128, 72,  106, 127, 235, 37,  34,  250, 159, 90,  0,   4,   225,
    127, 219, 68,  20,  164, 255, 41,  11,  220, 70,  146, 28,  73,  183, 103, 214, 153, 247, 134,
    243, 55,  34,  159, 101, 75,  157, 210, 106, 207, 66,  32,  144, 194, 8,   62,  38,  224, 206,
    64,  31,  71,  151, 62,  142, 207, 30,  0,   0,   0,   243, 252, 254, 248, 255, 56,  191, 111,
    93,  227, 193, 129, 35,  215, 225, 170, 123, 104, 72,  146, 49,  35,  92,  92,  92,  92,  92,
    92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,
    92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,
    92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,
    92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,  92,
    92,  2,   12,  4,   87,  162, 176, 174, 91,  184, 174, 89,  36,  130, 226, 76,  200, 244, 98,
    5,   117, 87,  48,  166, 70,  133, 42,  98,  33,  105, 40,  99,  35,  132, 33,  3,   0,
};
const Bytes kNoSuchDistance = {
    47,  17,  64,  3,   0,   9,   128, 72,  106, 127, 235, 37,  34,  250, 159, 90,  0,   4,   225,
    127, 219, 68,  20,  164, 255, 41,  11,  220, 70,  146, 28,  73,  183, 103, 214, 153, 247, 134,
    243, 55,  34,  159, 101, 75,  157, 210, 106, 207, 66,  32,  144, 194, 8,   62,  38,  136, 136,
    136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136,
    136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136,
    136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136,
    136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136,
    136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136,
    136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136, 136,
    136, 136, 136, 224, 206, 67,  31,  71,  151, 62,  142, 31,  33,  121, 121, 121, 121, 132, 121,
    121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121,
    254, 248, 255, 57,  191, 111, 93,  227, 193, 129, 215, 35,  225, 170, 123, 104, 72,  254, 168,
    87,  7,   40,  84,  244, 45,  249, 135, 76,  18,  163, 56,  0,   0,   0,   239, 40,  34,  176,
    101, 9,   31,  52,  51,  73,  242, 255, 255, 255, 255, 255, 255, 255, 255, 146, 49,  35,  2,
    12,  4,   21,  162, 176, 174, 91,  184, 174, 89,  55,  34,  159, 101, 75,  157, 210, 106, 207,
    66,  32,  144, 194, 8,   62,  38,  224, 206, 67,  122, 16,  209, 117, 0,   35,  34,  184, 231,
    222, 130, 5,   79,  156, 31,  0,   132, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121, 121,
    121, 121, 121, 121, 121, 121, 121, 121, 121, 254, 248, 255, 57,  191, 111, 93,  227, 193, 129,
    215, 35,  225, 170, 123, 104, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    255, 72,  146, 49,  35,  2,   12,  4,   21,  162, 176, 174, 91,  184, 174, 89,  36,  12,  2,
    86,  65,  53,  129, 203, 148, 10,  110, 184, 78,  131, 140, 232, 12,  148, 219, 50,  48,  51,
    172, 115, 168, 36,  130, 226, 76,  200, 244, 98,  5,   117, 87,  48,  166, 70,  133, 42,  98,
    33,  105, 40,  99,  35,  132, 33,  3,   0,
};

TEST(LosslessWebpTest, MakesThePixelsThatLibwebpMakes) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    // Some are large enough for codes that differ from square to square.
    const auto most = static_cast<unsigned>(i % 20 == 0 ? 500 : 90);
    const int width = static_cast<int>(random() % most) + 1;
    const int height = static_cast<int>(random() % most) + 1;
    const int method = static_cast<int>(random() % 7);
    const auto quality = static_cast<float>(random() % 101);
    const Bytes rgba = picture(width, height, i % 6, random);
    const Bytes file = encoded(rgba, width, height, method, quality, i % 4 == 3);
    Bytes ours;
    const Status status = decode(lossless_webp_chunk(file), width, height, ours);
    ASSERT_TRUE(status.ok()) << i << ": " << status.to_string();
    ASSERT_TRUE(ours == by_libwebp(file, rgba.size()))
        << i << ": " << width << "x" << height << ", method " << method << ", quality " << quality;
  }
}

TEST(LosslessWebpTest, WritesRowsWhereTheyAreWanted) {
  std::mt19937 random(2);
  const Bytes rgba = picture(20, 10, 0, random);
  const Bytes file = encoded(rgba, 20, 10, 4, 50, false);
  Bytes rows(100 * 10, 7);
  ASSERT_TRUE(
      decode_lossless_webp(lossless_webp_chunk(file), 20, 10, 3, rows.data(), 100, {}).ok());
  for (std::size_t y = 0; y < 10; ++y) {
    for (std::size_t i = 0; i < 100; ++i) {
      const std::size_t pixel = y * 20 + i / 3;
      EXPECT_EQ(rows[y * 100 + i], i < 60 ? rgba[pixel * 4 + i % 3] : 7) << y << ", " << i;
    }
  }
}

TEST(LosslessWebpTest, ACutChunkIsTruncatedOrCorrupt) {
  std::mt19937 random(3);
  const Bytes file = encoded(picture(60, 50, 5, random), 60, 50, 4, 75, false);
  const std::span<const std::uint8_t> chunk = lossless_webp_chunk(file);
  Bytes pixels;
  // A byte of filling may be the last one, and some bits of that before it.
  for (std::size_t size = 0; size + 2 < chunk.size(); ++size) {
    EXPECT_EQ(decode(chunk.first(size), 60, 50, pixels).code(), StatusCode::kDataLoss) << size;
  }
}

// Where a damaged file is taken for a picture, it is the one that libwebp takes it for.
TEST(LosslessWebpTest, DamagedFilesAreTakenForWhatLibwebpTakesThemFor) {
  std::mt19937 random(4);
  int num_taken = 0, num_refused = 0;
  for (int i = 0; i < 1000; ++i) {
    Bytes file = encoded(picture(24, 17, i % 6, random), 24, 17, i % 7, 60, false);
    const std::size_t begin = file.size() - lossless_webp_chunk(file).size() + 5;
    for (int k = 0; k < 1 + i % 3; ++k) {
      file[begin + random() % (file.size() - begin)] ^=
          static_cast<std::uint8_t>(1u << random() % 8);
    }
    Bytes ours;
    const Status status = decode(lossless_webp_chunk(file), 24, 17, ours);
    const bool is_taken = status.ok();
    const Bytes theirs = by_libwebp(file, ours.size());
    if (is_taken && !theirs.empty()) {
      ASSERT_TRUE(ours == theirs) << i;
    }
    ++(is_taken ? num_taken : num_refused);
    EXPECT_EQ(is_taken, !theirs.empty()) << i << ": " << status.to_string();
  }
  EXPECT_GT(num_taken, 100);
  EXPECT_GT(num_refused, 100);
}

// Found by fuzzing with libwebp beside it: a colour from the cache that was never put there; a distance that does not exist.
TEST(LosslessWebpTest, OddFilesAreTakenForWhatLibwebpTakesThemFor) {
  for (const Bytes& odd : {kUnsetColour, kNoSuchDistance}) {
    Bytes file = {'R', 'I', 'F', 'F', 0,   0,   0, 0, 'W', 'E',
                  'B', 'P', 'V', 'P', '8', 'L', 0, 0, 0,   0};
    ASSERT_EQ(odd.size() % 2, 0u);
    for (std::size_t i = 0; i < 4; ++i) {
      file[4 + i] = static_cast<std::uint8_t>((odd.size() + 12) >> (8 * i));
      file[16 + i] = static_cast<std::uint8_t>(odd.size() >> (8 * i));
    }
    file.insert(file.end(), odd.begin(), odd.end());
    Bytes ours;
    EXPECT_TRUE(decode(lossless_webp_chunk(file), 18, 14, ours).ok());
    EXPECT_EQ(ours, by_libwebp(file, ours.size()));
  }
}

TEST(LosslessWebpTest, FindsTheChunkAmongOthers) {
  std::mt19937 random(5);
  const Bytes file = encoded(picture(9, 9, 2, random), 9, 9, 4, 75, false);
  const std::span<const std::uint8_t> chunk = lossless_webp_chunk(file);
  Bytes extended(file.begin(), file.begin() + 12);
  for (const char c : std::string_view("ICCP\3\0\0\0abc\0", 12)) {
    extended.push_back(static_cast<std::uint8_t>(c));
  }
  extended.insert(extended.end(), file.begin() + 12, file.end());
  EXPECT_TRUE(std::ranges::equal(lossless_webp_chunk(extended), chunk));
  // An animation's frame is the chunk with its header.
  EXPECT_TRUE(std::ranges::equal(lossless_webp_chunk(std::span(file).subspan(12)), chunk));
  EXPECT_TRUE(lossless_webp_chunk(std::span(file).first(file.size() - 2)).empty());
  EXPECT_TRUE(lossless_webp_chunk({}).empty());
}

}  // namespace
}  // namespace gapless::internal
