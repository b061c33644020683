// Pixel bytes to the vision encoder's inputs: (v / 255 - 0.5) / 0.5, in [-1, 1], the same for all
// channels. Moondream reference (June 2025): computed in the storage type, so that each of the
// three steps rounds. In bfloat16 that differs from rounding once for 128 of the 256 values, hence
// tables rather than a formula at run time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace gapless {

using PixelTableF32 = std::array<float, 256>;
using PixelTableBf16 = std::array<std::uint16_t, 256>;  // bfloat16 bits

namespace internal {

// Nearest, ties to even; for finite values.
constexpr std::uint16_t round_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr PixelTableF32 make_pixel_table_f32() {
  PixelTableF32 table{};
  for (std::size_t v = 0; v < 256; ++v) {
    table[v] = (static_cast<float>(v) / 255.0f - 0.5f) / 0.5f;
  }
  return table;
}

constexpr PixelTableBf16 make_pixel_table_bf16() {
  PixelTableBf16 table{};
  for (std::size_t v = 0; v < 256; ++v) {
    const float scaled = bf16_to_float(round_to_bf16(static_cast<float>(v) / 255.0f));
    const float centred = bf16_to_float(round_to_bf16(scaled - 0.5f));
    table[v] = round_to_bf16(centred / 0.5f);
  }
  return table;
}

}  // namespace internal

inline constexpr PixelTableF32 kPixelTableF32 = internal::make_pixel_table_f32();
inline constexpr PixelTableBf16 kPixelTableBf16 = internal::make_pixel_table_bf16();

}  // namespace gapless
