// The byte-level alphabet of GPT-2: every byte has a printable character that stands for it in
// tokenizer.json, so that a vocabulary of strings can hold any bytes. Printable Latin-1 stands for
// itself; the other 68 bytes take U+0100, U+0101, ... in order (the space is U+0120, "Ġ").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gapless {

// The character (in UTF-8) that stands for each byte.
const std::array<std::string, 256>& byte_level_alphabet();

std::string to_byte_level(std::string_view bytes);

// The bytes that a spelling stands for; nothing when some character is outside of the alphabet.
std::optional<std::string> from_byte_level(std::string_view spelling);

}  // namespace gapless
