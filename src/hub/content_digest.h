// Compares a file's bytes with the name that the hub gives them.
#pragma once

#include <openssl/evp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

// The hub names large files by their SHA-256 (64 hexadecimal digits) and small ones as git does: by
// the SHA-1 of "blob SIZE\0" and the bytes (40 digits).
class ContentDigest {
 public:
  // InvalidArgument: `etag` is neither.
  static StatusOr<ContentDigest> of_etag(std::string_view etag, std::uint64_t num_bytes);

  void update(std::span<const std::byte> bytes);
  // Once, after all bytes.
  bool matches();

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
  std::string expected_;
};

}  // namespace gapless
