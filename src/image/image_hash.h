// The cache key of a picture: SHA-256 of its encoded bytes. Collision-resistant, because two
// tenants' pictures must never be taken for each other. What else changes the decoded pixels
// (DecodeOptions) is not in the hash; a cache that serves several settings adds it to its key.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

namespace gapless {

struct ImageHash {
  std::array<std::uint8_t, 32> bytes{};

  std::string hex() const;  // 64 lower-case digits
  friend auto operator<=>(const ImageHash&, const ImageHash&) = default;
};

ImageHash hash_image_bytes(std::span<const std::byte> bytes);

}  // namespace gapless

template <>
struct std::hash<gapless::ImageHash> {
  std::size_t operator()(const gapless::ImageHash& key) const noexcept {
    std::size_t value;  // any 8 bytes of a SHA-256 are as good as a hash of it
    std::memcpy(&value, key.bytes.data(), sizeof(value));
    return value;
  }
};
