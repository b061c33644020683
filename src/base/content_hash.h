// The SHA-256 of some content, used as a key: of an image's bytes, for example.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace gapless {

using ContentHash = std::array<std::uint8_t, 32>;

// Any eight bytes of a SHA-256 are as good as a hash of it.
inline std::uint64_t short_hash(const ContentHash& hash) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, hash.data(), sizeof(bits));
  return bits;
}

}  // namespace gapless
