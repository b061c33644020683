#include "image/lanczos_sums_vnni.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#define GAPLESS_VNNI [[gnu::target("avx512f,avx512bw,avx512vbmi,avx512vnni")]]
#define GAPLESS_VNNI_INLINE \
  [[gnu::always_inline, gnu::target("avx512f,avx512bw,avx512vbmi,avx512vnni")]] inline
#endif

namespace gapless {

#if defined(__x86_64__)
namespace {

constexpr int kTapsAtOnce = 4;
constexpr std::size_t kRegister = 64;  // bytes

// The digits of four taps' weights: of one output, or of one in each quarter of a register.
struct Weights {
  __m512i digit_0, digit_1, digit_2;
};

// 16 sums, by the digits of the weights.
struct Sums {
  __m512i digit_0, digit_1, digit_2;
};

GAPLESS_VNNI_INLINE Sums no_sums() {
  return {_mm512_set1_epi32(1 << (kLanczosPrecisionBits - 1)), _mm512_setzero_si512(),
          _mm512_setzero_si512()};
}

GAPLESS_VNNI_INLINE void add(Sums& sums, __m512i bytes, const Weights& weights) {
  sums.digit_0 = _mm512_dpbusd_epi32(sums.digit_0, bytes, weights.digit_0);
  sums.digit_1 = _mm512_dpbusd_epi32(sums.digit_1, bytes, weights.digit_1);
  sums.digit_2 = _mm512_dpbusd_epi32(sums.digit_2, bytes, weights.digit_2);
}

GAPLESS_VNNI_INLINE __m512i whole(const Sums& sums) {
  const __m512i upper = _mm512_add_epi32(sums.digit_1, _mm512_slli_epi32(sums.digit_2, 8));
  return _mm512_srai_epi32(_mm512_add_epi32(sums.digit_0, _mm512_slli_epi32(upper, 8)),
                           kLanczosPrecisionBits);
}

GAPLESS_VNNI_INLINE __m512i load_row(const std::uint8_t* in, std::size_t row_bytes, int row) {
  return _mm512_loadu_si512(in + static_cast<std::size_t>(row) * row_bytes);
}

// 64 neighbouring bytes of output row o.
GAPLESS_VNNI_INLINE void sum_64_bytes(const std::uint8_t* in, std::size_t row_bytes,
                                      const LanczosTaps& taps, int o, std::uint8_t* out) {
  const int last_tap = taps.num_taps(o) - 1;
  // Of bytes 0 to 3 of each quarter, 4 to 7, ...
  Sums sums_0 = no_sums(), sums_4 = no_sums(), sums_8 = no_sums(), sums_12 = no_sums();
  for (int q = 0; q < taps.num_quads(o); ++q) {
    // Behind the last tap there may be no memory; the weight there is 0.
    // Four taps of a byte side by side.
    const __m512i tap_0 = load_row(in, row_bytes, q * kTapsAtOnce);
    const __m512i tap_1 = load_row(in, row_bytes, std::min(q * kTapsAtOnce + 1, last_tap));
    const __m512i tap_2 = load_row(in, row_bytes, std::min(q * kTapsAtOnce + 2, last_tap));
    const __m512i tap_3 = load_row(in, row_bytes, std::min(q * kTapsAtOnce + 3, last_tap));
    const __m512i low_01 = _mm512_unpacklo_epi8(tap_0, tap_1);
    const __m512i high_01 = _mm512_unpackhi_epi8(tap_0, tap_1);
    const __m512i low_23 = _mm512_unpacklo_epi8(tap_2, tap_3);
    const __m512i high_23 = _mm512_unpackhi_epi8(tap_2, tap_3);
    const std::int32_t* const digits = taps.quads(o)[q].digits;
    const Weights weights{_mm512_set1_epi32(digits[0]), _mm512_set1_epi32(digits[1]),
                          _mm512_set1_epi32(digits[2])};
    add(sums_0, _mm512_unpacklo_epi16(low_01, low_23), weights);
    add(sums_4, _mm512_unpackhi_epi16(low_01, low_23), weights);
    add(sums_8, _mm512_unpacklo_epi16(high_01, high_23), weights);
    add(sums_12, _mm512_unpackhi_epi16(high_01, high_23), weights);
  }
  const __m512i words_0 = _mm512_packs_epi32(whole(sums_0), whole(sums_4));
  const __m512i words_8 = _mm512_packs_epi32(whole(sums_8), whole(sums_12));
  _mm512_storeu_si512(out, _mm512_packus_epi16(words_0, words_8));
}

// For what the functions here do not take.
const LanczosSums& second_best() {
  return *lanczos_sums_without_vnni().front();
}

GAPLESS_VNNI void sum_row(const std::uint8_t* in, std::size_t row_bytes, const LanczosTaps& taps,
                          int o, std::uint8_t* out) {
  if (row_bytes < kRegister) return second_best().row(in, row_bytes, taps, o, out);
  // The last bytes of a row step back to end at its end.
  for (std::size_t begin = 0; begin < row_bytes; begin += kRegister) {
    const std::size_t at = std::min(begin, row_bytes - kRegister);
    sum_64_bytes(in + at, row_bytes, taps, o, out + at);
  }
}

// Rows and outputs that are summed at once.
constexpr int kRows = 4;
constexpr int kOutputs = 4;

GAPLESS_VNNI_INLINE __m512i four_times_16(__m128i a, __m128i b, __m128i c, __m128i d) {
  const __m512i ab = _mm512_inserti32x4(_mm512_castsi128_si512(a), b, 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(ab, c, 2), d, 3);
}

GAPLESS_VNNI_INLINE __m128i load(const LanczosTapQuad* quad) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(quad));
}

// Of four outputs.
GAPLESS_VNNI_INLINE Weights weights_of(const LanczosTapQuad* a, const LanczosTapQuad* b,
                                       const LanczosTapQuad* c, const LanczosTapQuad* d) {
  const __m512i all = four_times_16(load(a), load(b), load(c), load(d));
  return {_mm512_shuffle_epi32(all, _MM_PERM_AAAA), _mm512_shuffle_epi32(all, _MM_PERM_BBBB),
          _mm512_shuffle_epi32(all, _MM_PERM_CCCC)};
}

// Four pixels, one in each quarter.
GAPLESS_VNNI_INLINE void store_pixels(const Sums& sums, std::uint8_t* out) {
  const __m128i without_gaps =
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const __m512i words = _mm512_max_epi32(whole(sums), _mm512_setzero_si512());
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_shuffle_epi8(_mm512_cvtusepi32_epi8(words), without_gaps));
}

// Where four taps of each channel lie, the first one in so many pixels.
GAPLESS_VNNI_INLINE __m128i bytes_of_taps(int pixels) {
  return _mm_add_epi8(_mm_set1_epi8(static_cast<char>(pixels * kLanczosChannels)),
                      _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 0, 0, 0, 0));
}

// One register holds a quad of taps of kOutputs neighbouring outputs, whose first taps lie at most (kOutputs - 1) * scale + 1
// pixels apart.
bool is_within_register(int in_width, int out_width) {
  constexpr int kMostPixels = kRegister / kLanczosChannels - kTapsAtOnce;
  return std::int64_t{kOutputs - 1} * in_width <= std::int64_t{kMostPixels - 1} * out_width;
}

// Outputs o to o + 3 of kRows rows, row_stride bytes apart; their pixels lie at `out` and so many bytes behind it.
GAPLESS_VNNI_INLINE void sum_4_pixels(const std::uint8_t* rows, std::size_t row_stride,
                                      const LanczosTaps& taps, int o, std::uint8_t* out,
                                      const std::size_t (&row_offsets)[kRows]) {
  const int last = taps.out_size() - 1;
  const int b = std::min(o + 1, last), c = std::min(o + 2, last), d = std::min(o + 3, last);
  // Four taps of a channel side by side, an output's in its quarter.
  const int first = taps.first(o);
  const __m512i by_output =
      four_times_16(bytes_of_taps(0), bytes_of_taps(taps.first(b) - first),
                    bytes_of_taps(taps.first(c) - first), bytes_of_taps(taps.first(d) - first));
  const int num_quads = std::max(std::max(taps.num_quads(o), taps.num_quads(b)),
                                 std::max(taps.num_quads(c), taps.num_quads(d)));
  const LanczosTapQuad* const quads = taps.quads(o);
  const std::ptrdiff_t to_b = taps.quads(b) - quads, to_c = taps.quads(c) - quads,
                       to_d = taps.quads(d) - quads;
  const std::uint8_t* in = rows + static_cast<std::size_t>(taps.first(o)) * kLanczosChannels;
  Sums sums_0 = no_sums(), sums_1 = no_sums(), sums_2 = no_sums(), sums_3 = no_sums();
  for (int q = 0; q < num_quads; ++q, in += kTapsAtOnce * kLanczosChannels) {
    const Weights weights =
        weights_of(quads + q, quads + to_b + q, quads + to_c + q, quads + to_d + q);
    add(sums_0, _mm512_permutexvar_epi8(by_output, _mm512_loadu_si512(in)), weights);
    add(sums_1, _mm512_permutexvar_epi8(by_output, _mm512_loadu_si512(in + row_stride)), weights);
    add(sums_2, _mm512_permutexvar_epi8(by_output, _mm512_loadu_si512(in + 2 * row_stride)),
        weights);
    add(sums_3, _mm512_permutexvar_epi8(by_output, _mm512_loadu_si512(in + 3 * row_stride)),
        weights);
  }
  store_pixels(sums_0, out + row_offsets[0]);
  store_pixels(sums_1, out + row_offsets[1]);
  store_pixels(sums_2, out + row_offsets[2]);
  store_pixels(sums_3, out + row_offsets[3]);
}

// Of the four quarters together, in the first one.
GAPLESS_VNNI_INLINE __m512i sum_of_quarters(__m512i quarters) {
  const __m512i halves =
      _mm512_add_epi32(quarters, _mm512_shuffle_i64x2(quarters, quarters, 0b1110));
  return _mm512_add_epi32(halves, _mm512_shuffle_i64x2(halves, halves, 0b01));
}

// Output o of kRows rows, where many taps make one: four quads of them at once, one in each quarter.
GAPLESS_VNNI_INLINE void sum_1_pixel(const std::uint8_t* rows, std::size_t row_stride,
                                     const LanczosTaps& taps, int o, std::uint8_t* out,
                                     const std::size_t (&row_offsets)[kRows]) {
  constexpr int kQuads = 4;
  const __m512i by_quad =
      four_times_16(bytes_of_taps(0), bytes_of_taps(kTapsAtOnce), bytes_of_taps(2 * kTapsAtOnce),
                    bytes_of_taps(3 * kTapsAtOnce));
  const LanczosTapQuad* quad = taps.quads(o);
  const std::uint8_t* in = rows + static_cast<std::size_t>(taps.first(o)) * kLanczosChannels;
  const __m512i zero = _mm512_setzero_si512();
  // The half that rounds is in the first quarter alone.
  const __m512i half = _mm512_maskz_set1_epi32(0xf, 1 << (kLanczosPrecisionBits - 1));
  Sums sums[kRows] = {
      {half, zero, zero}, {half, zero, zero}, {half, zero, zero}, {half, zero, zero}};
  for (int left = taps.num_quads(o); left > 0;
       left -= kQuads, quad += kQuads, in += kQuads * kTapsAtOnce * kLanczosChannels) {
    // Behind this output's quads lie another's.
    const __mmask8 mine = left >= kQuads ? 0xff : static_cast<__mmask8>((1 << (2 * left)) - 1);
    const __m512i all = _mm512_maskz_loadu_epi64(mine, quad);
    const Weights weights{_mm512_shuffle_epi32(all, _MM_PERM_AAAA),
                          _mm512_shuffle_epi32(all, _MM_PERM_BBBB),
                          _mm512_shuffle_epi32(all, _MM_PERM_CCCC)};
    for (int r = 0; r < kRows; ++r) {
      const std::uint8_t* const row = in + static_cast<std::size_t>(r) * row_stride;
      add(sums[r], _mm512_permutexvar_epi8(by_quad, _mm512_loadu_si512(row)), weights);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    store_pixels({sum_of_quarters(sums[r].digit_0), sum_of_quarters(sums[r].digit_1),
                  sum_of_quarters(sums[r].digit_2)},
                 out + row_offsets[r]);
  }
}

GAPLESS_VNNI void sum_block(const std::uint8_t* in, int in_width, int num_rows,
                            const LanczosTaps& taps, std::uint8_t* out, std::size_t out_stride) {
  const bool are_neighbours_near = is_within_register(in_width, taps.out_size());
  const std::size_t row_bytes = static_cast<std::size_t>(in_width) * kLanczosChannels;
  // Quads of weight 0 and the rest of a register are read behind a row.
  const std::size_t row_stride =
      row_bytes + static_cast<std::size_t>(taps.max_quads()) * kTapsAtOnce * kLanczosChannels +
      kRegister;
  const auto rows = std::make_unique<std::uint8_t[]>(row_stride * kRows);
  for (int first = 0; first < num_rows; first += kRows) {
    // Of fewer rows the last ones twice.
    const int last = std::min(kRows, num_rows - first) - 1;
    std::size_t to[kRows];
    for (int r = 0; r < kRows; ++r) {
      const auto row = static_cast<std::size_t>(first + std::min(r, last));
      std::memcpy(rows.get() + static_cast<std::size_t>(r) * row_stride, in + row * row_bytes,
                  row_bytes);
      to[r] = row * out_stride;
    }
    if (!are_neighbours_near) {
      for (int o = 0; o < taps.out_size(); ++o) {
        sum_1_pixel(rows.get(), row_stride, taps, o,
                    out + static_cast<std::size_t>(o) * kLanczosChannels, to);
      }
      continue;
    }
    for (int o = 0; o < taps.out_size(); o += kOutputs) {
      sum_4_pixels(rows.get(), row_stride, taps, o,
                   out + static_cast<std::size_t>(o) * kLanczosChannels, to);
    }
  }
}

}  // namespace

const LanczosSums* vnni_lanczos_sums() {
  static constexpr LanczosSums kVnni{sum_row, sum_block};
  static const bool has_it =
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  return has_it ? &kVnni : nullptr;
}

#else

const LanczosSums* vnni_lanczos_sums() {
  return nullptr;
}

#endif

}  // namespace gapless
