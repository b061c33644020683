// Base64 as clients really send it (RFC 4648, standard alphabet).
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

// Whitespace anywhere and missing padding are accepted; any other foreign character, padding in the
// middle and a lone last character are not. The error names the offset.
StatusOr<std::string> decode_base64(std::string_view text);

// With padding, on one line.
std::string encode_base64(std::string_view bytes);

}  // namespace gapless
