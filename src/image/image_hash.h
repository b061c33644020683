// The cache key of a picture: GMAC (NIST SP 800-38D) of its encoded bytes, under a key that each process takes at random
// and shows nobody. About ten times as fast as SHA-256. Two tenants' pictures must never be taken for each other: who does not
// know the key, and sees no hash, finds two files of n bytes with the same one with a probability of n / 16 in 2^128 a
// try. So hashes stay within the process. What else changes the decoded pixels
// (DecodeOptions) is not in the hash; a cache that serves several settings adds it to its key.
#pragma once

#include <cstddef>
#include <span>

#include "base/content_hash.h"

namespace gapless {

// Any thread.
ContentHash hash_image_bytes(std::span<const std::byte> bytes);

}  // namespace gapless
