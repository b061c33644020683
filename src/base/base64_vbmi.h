// Base64 by processors that look up bytes of a register at once (AVX-512 VBMI).
#pragma once

#include <cstddef>
#include <string_view>

namespace gapless {

inline constexpr std::string_view kBase64Alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Decodes whole blocks of 64 characters of `text` to 48 bytes each at `out`, up to the first one that has a character
// outside of the alphabet. Returns the characters used: 0 on other processors.
std::size_t decode_base64_blocks(const char* text, std::size_t num_characters, char* out);

}  // namespace gapless
