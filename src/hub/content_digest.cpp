#include "hub/content_digest.h"

#include <algorithm>
#include <array>

namespace gapless {

StatusOr<ContentDigest> ContentDigest::of_etag(std::string_view etag, std::uint64_t num_bytes) {
  const bool hexadecimal = std::all_of(etag.begin(), etag.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  if (!hexadecimal || (etag.size() != 40 && etag.size() != 64)) {
    return invalid_argument("'{}' is neither a SHA-256 nor a SHA-1", etag.substr(0, 80));
  }
  ContentDigest digest;
  digest.expected_ = etag;
  digest.context_.reset(EVP_MD_CTX_new());
  const bool is_git = etag.size() == 40;
  GAPLESS_CHECK(digest.context_ != nullptr);
  GAPLESS_CHECK(
      EVP_DigestInit_ex(digest.context_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (is_git) {
    const std::string head = fmt::format("blob {}", num_bytes);
    // With the zero that ends it.
    digest.update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
  }
  return digest;
}

void ContentDigest::update(std::span<const std::byte> bytes) {
  GAPLESS_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

bool ContentDigest::matches() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> raw{};
  unsigned size = 0;
  GAPLESS_CHECK(EVP_DigestFinal_ex(context_.get(), raw.data(), &size) == 1);
  std::string found;
  for (unsigned i = 0; i < size; ++i) found += fmt::format("{:02x}", raw[i]);
  return found == expected_;
}

}  // namespace gapless
