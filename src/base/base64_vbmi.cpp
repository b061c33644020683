#include "base/base64_vbmi.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstdint>
#endif

namespace gapless {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::size_t kBlockBytes = 48;

// What each of the 128 characters of ASCII stands for; those outside of the alphabet have the highest bit.
constexpr std::array<std::uint8_t, 128> make_sextets() {
  std::array<std::uint8_t, 128> sextets{};
  sextets.fill(0x80);
  for (std::size_t i = 0; i < kBase64Alphabet.size(); ++i) {
    sextets[static_cast<unsigned char>(kBase64Alphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return sextets;
}
alignas(64) constexpr std::array<std::uint8_t, 128> kAsciiSextets = make_sextets();

// Where the bytes of the result lie among words of four bytes, of which the highest is empty: the
// first byte of each is its third.
constexpr std::array<std::uint8_t, 64> make_places() {
  std::array<std::uint8_t, 64> places{};
  for (std::size_t i = 0; i < kBlockBytes; ++i) {
    places[i] = static_cast<std::uint8_t>(i / 3 * 4 + 2 - i % 3);
  }
  return places;
}
alignas(64) constexpr std::array<std::uint8_t, 64> kPlaces = make_places();

[[gnu::target("avx512f,avx512bw,avx512vbmi")]] std::size_t decode_blocks(const char* text,
                                                                         std::size_t num_characters,
                                                                         char* out) {
  const __m512i low_sextets = _mm512_load_si512(kAsciiSextets.data());
  const __m512i high_sextets = _mm512_load_si512(kAsciiSextets.data() + 64);
  const __m512i places = _mm512_load_si512(kPlaces.data());
  std::size_t at = 0;
  for (; at + kBlock <= num_characters; at += kBlock, out += kBlockBytes) {
    const __m512i characters = _mm512_loadu_si512(text + at);
    // The lookup leaves the highest bit of a character out.
    const __m512i sextets = _mm512_permutex2var_epi8(low_sextets, characters, high_sextets);
    if (_mm512_movepi8_mask(_mm512_or_si512(characters, sextets)) != 0) break;
    // a, b, c, d to a << 6 | b and c << 6 | d, and these to a word of 24 bits.
    const __m512i pairs = _mm512_maddubs_epi16(sextets, _mm512_set1_epi32(0x01400140));
    const __m512i words = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00011000));
    _mm512_mask_storeu_epi8(out, (std::uint64_t{1} << kBlockBytes) - 1,
                            _mm512_permutexvar_epi8(places, words));
  }
  return at;
}

}  // namespace

std::size_t decode_base64_blocks(const char* text, std::size_t num_characters, char* out) {
  static const bool has_it = __builtin_cpu_supports("avx512vbmi");
  return has_it ? decode_blocks(text, num_characters, out) : 0;
}

#else

std::size_t decode_base64_blocks(const char*, std::size_t, char*) {
  return 0;
}

#endif

}  // namespace gapless
