#include "image/image_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace gapless {

std::string ImageHash::hex() const {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

ImageHash hash_image_bytes(std::span<const std::byte> bytes) {
  ImageHash hash;
  unsigned int num_bytes = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), hash.bytes.data(), &num_bytes, EVP_sha256(), nullptr);
  GAPLESS_CHECK_MSG(ok == 1 && num_bytes == hash.bytes.size(), "OpenSSL has no SHA-256");
  return hash;
}

}  // namespace gapless
