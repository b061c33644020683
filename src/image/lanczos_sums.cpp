#include "image/lanczos_sums.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "image/lanczos_sums_vnni.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gapless {
namespace {

// Both passes are weighted sums of rows of bytes. The horizontal pass gets there by turning a block's rows
// of pixels into columns first: in_width columns of kLanczosLanes bytes.

// Neighbouring bytes that are summed at once.
constexpr int kLanczosLanes = kLanczosBlockRows * kLanczosChannels;

constexpr std::int32_t kHalf = 1 << (kLanczosPrecisionBits - 1);

std::uint8_t clamp_to_byte(std::int32_t fixed) {
  return static_cast<std::uint8_t>(std::clamp(fixed >> kLanczosPrecisionBits, 0, 255));
}

// num_lanes <= kLanczosLanes bytes; the next tap's lie `stride` behind.
void sum_lanes(const std::uint8_t* in, std::size_t stride, const LanczosTaps& taps, int o,
               int num_lanes, std::uint8_t* out) {
  std::int32_t sums[kLanczosLanes];
  std::fill_n(sums, num_lanes, kHalf);
  for (int t = 0; t < taps.num_taps(o); ++t) {
    const std::int32_t weight = taps.weights(o)[t];
    for (int i = 0; i < num_lanes; ++i) sums[i] += in[i] * weight;
    in += stride;
  }
  for (int i = 0; i < num_lanes; ++i) out[i] = clamp_to_byte(sums[i]);
}

void sum_all_lanes(const std::uint8_t* in, std::size_t stride, const LanczosTaps& taps, int o,
                   std::uint8_t* out) {
  sum_lanes(in, stride, taps, o, kLanczosLanes, out);
}

// sum_all is the only part that differs between processors.
template <auto sum_all>
void sum_row(const std::uint8_t* in, std::size_t row_bytes, const LanczosTaps& taps, int o,
             std::uint8_t* out) {
  if (row_bytes < kLanczosLanes) {
    return sum_lanes(in, row_bytes, taps, o, static_cast<int>(row_bytes), out);
  }
  // The last lanes of a row step back to end at its end.
  for (std::size_t begin = 0; begin < row_bytes; begin += kLanczosLanes) {
    const std::size_t at = std::min(begin, row_bytes - kLanczosLanes);
    sum_all(in + at, row_bytes, taps, o, out + at);
  }
}

// One pixel every `step` bytes to one every `to_step`. kSpills: four bytes at a time, which is
// faster; what it writes behind a pixel must come later, or not matter. It stays within `count`
// pixels. Two loops: of one with both sizes, gcc 13 makes a call of memcpy for each pixel.
template <bool kSpills>
void copy_pixels(const std::uint8_t* from, std::size_t step, std::uint8_t* to, std::size_t to_step,
                 int count) {
  int i = 0;
  for (const int num_spilling = kSpills ? count - 1 : 0; i < num_spilling; ++i) {
    std::uint32_t pixel;
    std::memcpy(&pixel, from, sizeof(pixel));
    std::memcpy(to, &pixel, sizeof(pixel));
    from += step;
    to += to_step;
  }
  for (; i < count; ++i, from += step, to += to_step) std::copy_n(from, kLanczosChannels, to);
}

// Pixels of a block's rows that are turned together: their columns stay in the first cache.
constexpr int kTurnedPixels = 64;

template <auto sum_all>
void sum_block(const std::uint8_t* in, int in_width, int num_rows, const LanczosTaps& taps,
               std::uint8_t* out, std::size_t out_stride) {
  const auto bytes_of = [](int count, int size) {
    return static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
  };
  const int out_width = taps.out_size();
  const auto columns =
      std::make_unique_for_overwrite<std::uint8_t[]>(bytes_of(in_width, kLanczosLanes));
  const auto out_columns =
      std::make_unique_for_overwrite<std::uint8_t[]>(bytes_of(out_width, kLanczosLanes));
  for (int x = 0; x < in_width; x += kTurnedPixels) {
    const int count = std::min(kTurnedPixels, in_width - x);
    for (int r = 0; r < num_rows; ++r) {
      const std::uint8_t* from =
          in + bytes_of(r, in_width * kLanczosChannels) + bytes_of(x, kLanczosChannels);
      std::uint8_t* to = columns.get() + bytes_of(x, kLanczosLanes) + r * kLanczosChannels;
      // Behind a pixel of the block's last row lies the first row's next one.
      if (r + 1 < kLanczosBlockRows) {
        copy_pixels<true>(from, kLanczosChannels, to, kLanczosLanes, count);
      } else {
        copy_pixels<false>(from, kLanczosChannels, to, kLanczosLanes, count);
      }
    }
  }
  for (int o = 0; o < out_width; ++o) {
    sum_all(columns.get() + bytes_of(taps.first(o), kLanczosLanes), kLanczosLanes, taps, o,
            out_columns.get() + bytes_of(o, kLanczosLanes));
  }
  for (int x = 0; x < out_width; x += kTurnedPixels) {
    const int count = std::min(kTurnedPixels, out_width - x);
    for (int r = 0; r < num_rows; ++r) {
      copy_pixels<true>(
          out_columns.get() + bytes_of(x, kLanczosLanes) + r * kLanczosChannels, kLanczosLanes,
          out + static_cast<std::size_t>(r) * out_stride + bytes_of(x, kLanczosChannels),
          kLanczosChannels, count);
    }
  }
}

#if defined(__x86_64__)
// 16 lanes. Two taps' bytes side by side, widened to 16 bits, times both weights: one instruction
// multiplies two taps of eight lanes and adds them. Low parts stay below 2^20 a tap: room for 2^11 taps,
// twice what a side of kMaxImageSide pixels needs.
[[gnu::always_inline, gnu::target("avx2")]] inline void sum_16_lanes(const std::uint8_t* in,
                                                                     std::size_t stride,
                                                                     const LanczosTapPair* pair,
                                                                     int num_taps,
                                                                     std::uint8_t* out) {
  __m256i low_0 = _mm256_set1_epi32(kHalf), low_8 = low_0;
  __m256i high_0 = _mm256_setzero_si256(), high_8 = high_0;
  for (int left = num_taps; left > 0; left -= 2, ++pair, in += 2 * stride) {
    const __m256i low = _mm256_set1_epi32(pair->low);
    const __m256i high = _mm256_set1_epi32(pair->high);
    // Behind the last tap there may be no memory; its weight there is 0.
    const std::uint8_t* const second = left > 1 ? in + stride : in;
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
    const __m256i pixels_0 = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
    const __m256i pixels_8 = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
    low_0 = _mm256_add_epi32(low_0, _mm256_madd_epi16(pixels_0, low));
    low_8 = _mm256_add_epi32(low_8, _mm256_madd_epi16(pixels_8, low));
    high_0 = _mm256_add_epi32(high_0, _mm256_madd_epi16(pixels_0, high));
    high_8 = _mm256_add_epi32(high_8, _mm256_madd_epi16(pixels_8, high));
  }
  low_0 = _mm256_add_epi32(low_0, _mm256_slli_epi32(high_0, kLanczosLowBits));
  low_8 = _mm256_add_epi32(low_8, _mm256_slli_epi32(high_8, kLanczosLowBits));
  // Packing goes by halves of a register; the permutation puts the lanes in order again.
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_srai_epi32(low_0, kLanczosPrecisionBits),
                                                  _mm256_srai_epi32(low_8, kLanczosPrecisionBits)),
                               0b11011000);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(out),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

[[gnu::target("avx2")]] void sum_all_lanes_avx2(const std::uint8_t* in, std::size_t stride,
                                                const LanczosTaps& taps, int o, std::uint8_t* out) {
  for (int lane = 0; lane < kLanczosLanes; lane += 16) {
    sum_16_lanes(in + lane, stride, taps.pairs(o), taps.num_taps(o), out + lane);
  }
}
#endif

}  // namespace

std::span<const LanczosSums* const> lanczos_sums_without_vnni() {
  static const std::vector<const LanczosSums*> all = [] {
    static constexpr LanczosSums kPortable{sum_row<sum_all_lanes>, sum_block<sum_all_lanes>};
    std::vector<const LanczosSums*> list{&kPortable};
#if defined(__x86_64__)
    static constexpr LanczosSums kAvx2{sum_row<sum_all_lanes_avx2>, sum_block<sum_all_lanes_avx2>};
    if (__builtin_cpu_supports("avx2")) list.insert(list.begin(), &kAvx2);
#endif
    return list;
  }();
  return all;
}

std::span<const LanczosSums* const> all_lanczos_sums() {
  static const std::vector<const LanczosSums*> all = [] {
    const auto others = lanczos_sums_without_vnni();
    std::vector<const LanczosSums*> list(others.begin(), others.end());
    if (const LanczosSums* const vnni = vnni_lanczos_sums()) list.insert(list.begin(), vnni);
    return list;
  }();
  return all;
}

const LanczosSums& lanczos_sums() {
  return *all_lanczos_sums().front();
}

}  // namespace gapless
