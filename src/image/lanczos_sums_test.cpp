#include "image/lanczos_sums.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gapless {
namespace {

// Noise, and bytes at both ends of their range, where sums overshoot.
std::vector<std::uint8_t> some_bytes(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) {
    const auto bits = random();
    byte = (bits & 0x300) != 0 ? static_cast<std::uint8_t>(bits) : (bits & 0x400) != 0 ? 255 : 0;
  }
  return bytes;
}

struct Sizes {
  int in, out;
};
// Enlarged, reduced a little and very much, odd and even numbers of taps, more taps than inputs.
constexpr Sizes kSizes[] = {{800, 1176}, {600, 378}, {4000, 31}, {5, 40}, {1, 7}, {65535, 378}};

LanczosTaps computed_taps(const Sizes& sizes) {
  LanczosTaps taps(sizes.in, sizes.out);
  taps.compute(0, sizes.out);
  return taps;
}

TEST(LanczosSumsTest, EveryProcessorMakesTheSameColumns) {
  for (const Sizes& sizes : kSizes) {
    const LanczosTaps taps = computed_taps(sizes);
    const auto in = some_bytes(static_cast<std::size_t>(sizes.in) * kLanczosLanes, 1);
    const std::size_t out_bytes = static_cast<std::size_t>(sizes.out) * kLanczosLanes;
    std::vector<std::uint8_t> fast(out_bytes), portable(out_bytes);
    lanczos_sums().columns(in.data(), taps, fast.data());
    portable_lanczos_sums().columns(in.data(), taps, portable.data());
    EXPECT_EQ(fast, portable) << sizes.in << " to " << sizes.out;
  }
}

TEST(LanczosSumsTest, EveryProcessorMakesTheSameRows) {
  for (const Sizes& sizes : kSizes) {
    const LanczosTaps taps = computed_taps(sizes);
    // Narrower than the lanes, as wide, and wider by a part.
    for (const std::size_t row_bytes : {3u, 47u, 48u, 49u, 150u}) {
      const auto in = some_bytes(static_cast<std::size_t>(sizes.in) * row_bytes, 2);
      std::vector<std::uint8_t> fast(row_bytes), portable(row_bytes);
      for (int o = 0; o < sizes.out; o += 1 + sizes.out / 20) {
        const std::uint8_t* const first =
            in.data() + static_cast<std::size_t>(taps.first(o)) * row_bytes;
        lanczos_sums().row(first, row_bytes, taps, o, fast.data());
        portable_lanczos_sums().row(first, row_bytes, taps, o, portable.data());
        ASSERT_EQ(fast, portable) << sizes.in << " to " << sizes.out << ", row " << o << " of "
                                  << row_bytes << " bytes";
      }
    }
  }
}

}  // namespace
}  // namespace gapless
