// Made by tools/image_goldens.py with Pillow 13.0.0; do not edit.
// clang-format off
#pragma once

#include <cstdint>

namespace gapless {

// fnv1a is over the RGB bytes, row by row.
struct DecodeGolden {
  const char* file;
  int width, height;
  std::uint64_t fnv1a;
};
inline constexpr DecodeGolden kDecodeGoldens[] = {
    {"animated.gif", 37, 29, 0xde48b5556de6da3f},
    {"animated.webp", 37, 29, 0x1452548e4dec5885},
    {"beyond_canvas.gif", 40, 31, 0xdefb6db5f4e5db52},
    {"cmyk.jpg", 37, 29, 0xaec29b974edb8242},
    {"grey.gif", 37, 29, 0x5fa86209bb224b4f},
    {"grey.jpg", 37, 29, 0xedebefa5f3143d2e},
    {"grey_alpha.png", 37, 29, 0x5fa86209bb224b4f},
    {"grey_alpha_16.png", 37, 29, 0xe15f1b17db940cd1},
    {"grey_transparent.png", 37, 29, 0x5fa86209bb224b4f},
    {"interlaced.gif", 37, 29, 0xcea15993e6df1a16},
    {"lossless_alpha.webp", 37, 29, 0x06f60a26952f1d68},
    {"lossy.webp", 37, 29, 0x6d8bd2b60db85006},
    {"lossy_alpha.webp", 37, 29, 0xded115eed348e86e},
    {"on_canvas.gif", 50, 40, 0xbe27266837684258},
    {"one_bit.png", 37, 29, 0xf7e4a729731f42e7},
    {"palette.png", 37, 29, 0xcea15993e6df1a16},
    {"palette_alpha.png", 37, 29, 0xcea15993e6df1a16},
    {"plain.gif", 37, 29, 0xcea15993e6df1a16},
    {"progressive.jpg", 37, 29, 0x8a918cc615f8a5a5},
    {"restart.jpg", 37, 29, 0xab69cdc2c8860de7},
    {"rgb.jpg", 37, 29, 0xca14516cc834d145},
    {"rgb_transparent.png", 37, 29, 0x06f60a26952f1d68},
    {"rgba.png", 37, 29, 0x06f60a26952f1d68},
    {"rgba_16.png", 37, 29, 0x5a8a9d24f407ef01},
    {"ycc420.jpg", 37, 29, 0xab69cdc2c8860de7},
    {"ycc422.jpg", 37, 29, 0xff5e590c27f80177},
    {"ycc444.jpg", 37, 29, 0x26d87c8f7e9e4581},
};

struct ResizeGolden {
  int width, height, out_width, out_height;
  std::uint8_t first_pixel[3], last_pixel[3];
  std::uint64_t fnv1a;
};
inline constexpr ResizeGolden kResizeGoldens[] = {
    {64, 48, 64, 48, {0, 40, 80}, {168, 208, 248}, 0xbcbcd03fa198744e},
    {64, 48, 31, 48, {2, 42, 82}, {166, 206, 246}, 0x5a4fb5a2cb26ae51},
    {64, 48, 64, 100, {0, 40, 80}, {168, 208, 248}, 0x4142d674d38d4af6},
    {100, 75, 37, 29, {8, 47, 87}, {143, 109, 55}, 0x5540e8a5e5bf8be3},
    {37, 29, 100, 75, {0, 39, 79}, {221, 139, 0}, 0x5b95938b5f27aa5a},
    {50, 90, 80, 30, {8, 45, 85}, {103, 70, 67}, 0xa338673a136dc518},
    {48, 292, 3, 52, {79, 100, 122}, {78, 98, 115}, 0x49650a5b28965f17},
    {139, 270, 20, 30, {42, 77, 107}, {164, 159, 111}, 0xb99ab62c5135c85f},
    {140, 270, 20, 30, {42, 78, 107}, {170, 156, 93}, 0xe138889529ee10dc},
    {1, 97, 5, 40, {4, 44, 84}, {156, 104, 102}, 0x49e48362a5221c65},
    {97, 1, 40, 5, {2, 42, 82}, {178, 81, 191}, 0x45b689bae7a7094f},
    {1, 1, 9, 7, {0, 40, 80}, {0, 40, 80}, 0xaf2e605e29284147},
    {9, 7, 1, 1, {33, 73, 112}, {33, 73, 112}, 0xba827d17c9599cfd},
    {15, 33, 16, 12, {6, 45, 85}, {155, 170, 55}, 0x8e087cd57714a20c},
    {17, 33, 15, 12, {6, 45, 85}, {176, 142, 126}, 0x8647d2050bfa680e},
    {200, 150, 378, 378, {0, 39, 79}, {63, 103, 143}, 0x9e2d121dc3aa2f2c},
    {640, 480, 378, 378, {2, 42, 82}, {214, 137, 38}, 0x39113964ff6c72fa},
};

struct CropsGolden {
  int width, height, rows, cols;
  std::uint64_t fnv1a;  // over all distinct crops, the global one first
};
inline constexpr CropsGolden kCropsGoldens[] = {
    {378, 378, 1, 1, 0x15bbc77770865daa},
    {300, 2000, 1, 1, 0x06f982768a6d8b41},
    {400, 390, 3, 3, 0xfc456639743b0c60},
    {800, 600, 2, 4, 0x39f545f29eef5e75},
    {600, 800, 4, 2, 0x6ced7519e4642f78},
    {720, 1600, 4, 2, 0x03b120061d03c688},
    {1400, 1000, 3, 3, 0x251ddf68af87ff9c},
};

}  // namespace gapless
