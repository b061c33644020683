// TokenTexts::heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gapless {

inline constexpr int kTokenHeadBytes = 8;

inline std::uint64_t head_of(std::string_view text) {
  std::uint64_t head = 0;
  const std::size_t num_bytes = std::min<std::size_t>(text.size(), kTokenHeadBytes);
  for (std::size_t i = 0; i < num_bytes; ++i) {
    head |= std::uint64_t{static_cast<std::uint8_t>(text[i])} << 8 * i;
  }
  return head;
}

}  // namespace gapless
