// A hash of some content, used as a key: of an image's bytes, for example (image/image_hash.h).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace gapless {

using ContentHash = std::array<std::uint8_t, 16>;

// Any eight bytes of it are as good.
inline std::uint64_t short_hash(const ContentHash& hash) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, hash.data(), sizeof(bits));
  return bits;
}

}  // namespace gapless
