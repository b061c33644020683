#include "image/image_hash.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <array>
#include <memory>
#include <utility>

#include "base/check.h"

namespace gapless {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kIvBytes = 12;

// The process's own.
const std::array<unsigned char, kKeyBytes>& secret_key() {
  static const auto key = [] {
    std::array<unsigned char, kKeyBytes> bytes{};
    GAPLESS_CHECK_MSG(RAND_priv_bytes(bytes.data(), kKeyBytes) == 1, "OpenSSL has no random bytes");
    return bytes;
  }();
  return key;
}

struct Free {
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using MacContext = std::unique_ptr<EVP_MAC_CTX, Free>;

// With the key. nullptr: OpenSSL has no such thing.
MacContext make_context() {
  EVP_MAC* const gmac = EVP_MAC_fetch(nullptr, "GMAC", nullptr);
  MacContext context(EVP_MAC_CTX_new(gmac));
  EVP_MAC_free(gmac);
  char cipher[] = "AES-256-GCM";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
                               OSSL_PARAM_construct_end()};
  const bool ok = context != nullptr &&
                  EVP_MAC_init(context.get(), secret_key().data(), kKeyBytes, params) == 1;
  return ok ? std::move(context) : nullptr;
}

}  // namespace

ContentHash hash_image_bytes(std::span<const std::byte> bytes) {
  // The cipher is looked up once a thread.
  thread_local const MacContext context = make_context();
  // One for all files: a GMAC may not be shown then, and is not.
  std::array<unsigned char, kIvBytes> iv{};
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, iv.data(), iv.size()),
      OSSL_PARAM_construct_end()};
  ContentHash hash{};
  std::size_t num_bytes = 0;
  const bool ok =
      context != nullptr && EVP_MAC_init(context.get(), nullptr, 0, params) == 1 &&
      EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(bytes.data()),
                     bytes.size()) == 1 &&
      EVP_MAC_final(context.get(), hash.data(), &num_bytes, hash.size()) == 1;
  GAPLESS_CHECK_MSG(ok && num_bytes == hash.size(), "OpenSSL has no GMAC");
  return hash;
}

}  // namespace gapless
