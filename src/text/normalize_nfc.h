// Unicode's canonical composition, which some tokenizers apply to a text first.
#pragma once

#include <string>
#include <string_view>

namespace gapless {

// `text` must be valid UTF-8. Characters newer than the library's version of Unicode stay as they are.
std::string normalize_nfc(std::string_view text);

bool is_ascii(std::string_view text);

}  // namespace gapless
