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
// Enlarged, reduced a little, by what still fits a register of four outputs' taps and a little more, and very much; odd and
// even numbers of taps, more taps than inputs.
constexpr Sizes kSizes[] = {{800, 1176}, {600, 378}, {160, 30}, {161, 30},   {4000, 31},
                            {5, 40},     {1, 7},     {2, 1},    {65535, 378}};

LanczosTaps computed_taps(const Sizes& sizes) {
  LanczosTaps taps(sizes.in, sizes.out);
  taps.compute(0, sizes.out);
  return taps;
}

// What every processor makes.
const LanczosSums& portable() {
  return *all_lanczos_sums().back();
}

TEST(LanczosSumsTest, EveryProcessorMakesTheSameBlocks) {
  for (const Sizes& sizes : kSizes) {
    const LanczosTaps taps = computed_taps(sizes);
    for (const int num_rows : {1, 4, 7, kLanczosBlockRows}) {
      const auto in = some_bytes(static_cast<std::size_t>(sizes.in) * kLanczosChannels *
                                     static_cast<std::size_t>(num_rows),
                                 1);
      const std::size_t out_bytes = static_cast<std::size_t>(sizes.out) * kLanczosChannels;
      const std::size_t stride = out_bytes + kLanczosSpill;
      const auto made_by = [&](const LanczosSums& sums) {
        std::vector<std::uint8_t> out(stride * static_cast<std::size_t>(num_rows));
        sums.block(in.data(), sizes.in, num_rows, taps, out.data(), stride);
        std::vector<std::uint8_t> rows;
        for (std::size_t at = 0; at < out.size(); at += stride) {
          const auto row = out.begin() + static_cast<std::ptrdiff_t>(at);
          rows.insert(rows.end(), row, row + static_cast<std::ptrdiff_t>(out_bytes));
        }
        return rows;
      };
      for (const LanczosSums* const sums : all_lanczos_sums()) {
        EXPECT_EQ(made_by(*sums), made_by(portable()))
            << sizes.in << " to " << sizes.out << ", " << num_rows << " rows";
      }
    }
  }
}

TEST(LanczosSumsTest, EveryProcessorMakesTheSameRows) {
  for (const Sizes& sizes : kSizes) {
    const LanczosTaps taps = computed_taps(sizes);
    // Narrower than what is summed at once, as wide, and wider by a part.
    for (const std::size_t row_bytes : {3u, 47u, 48u, 49u, 63u, 64u, 65u, 150u}) {
      const auto in = some_bytes(static_cast<std::size_t>(sizes.in) * row_bytes, 2);
      std::vector<std::uint8_t> out(row_bytes), wanted(row_bytes);
      for (int o = 0; o < sizes.out; o += 1 + sizes.out / 20) {
        const std::uint8_t* const first =
            in.data() + static_cast<std::size_t>(taps.first(o)) * row_bytes;
        portable().row(first, row_bytes, taps, o, wanted.data());
        for (const LanczosSums* const sums : all_lanczos_sums()) {
          sums->row(first, row_bytes, taps, o, out.data());
          ASSERT_EQ(out, wanted) << sizes.in << " to " << sizes.out << ", row " << o << " of "
                                 << row_bytes << " bytes";
        }
      }
    }
  }
}

TEST(LanczosSumsTest, TheFastestIsTaken) {
  EXPECT_EQ(&lanczos_sums(), all_lanczos_sums().front());
#if defined(__x86_64__)
  const bool has_bytes =
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  const std::size_t count = 1 + (__builtin_cpu_supports("avx2") ? 1 : 0) + (has_bytes ? 1 : 0);
  EXPECT_EQ(all_lanczos_sums().size(), count);
#endif
}

}  // namespace
}  // namespace gapless
