// UTF-8: validation, and repair of bytes that are not UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace gapless {

// What stands at the beginning of some bytes.
struct Utf8Step {
  enum class Kind {
    kCodePoint,   // a whole, valid code point
    kInvalid,     // bytes that no continuation makes valid (the maximal subpart, Unicode 3.9)
    kIncomplete,  // all of the bytes are the beginning of a valid code point
  };
  Kind kind;
  std::size_t num_bytes;
};

// `bytes` must not be empty. Overlong forms, surrogates and values above U+10FFFF are invalid.
Utf8Step utf8_step(std::string_view bytes);

// The offset of the first byte that is not part of a valid code point; nothing when all are.
std::optional<std::size_t> find_invalid_utf8(std::string_view bytes);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The bytes with every maximal invalid subpart replaced by U+FFFD: what decoders of the HTML
// standard and Hugging Face's tokenizers do.
std::string repair_utf8(std::string_view bytes);

// The bytes with every byte that is not part of a valid code point spelled as \xhh: what Python's
// "backslashreplace" does. Not to be undone: a backslash stays as it is.
std::string escape_invalid_utf8(std::string_view bytes);

}  // namespace gapless
