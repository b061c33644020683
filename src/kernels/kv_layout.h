// Where keys and values lie in one layer of the paged cache, in elements:
//   [num_pages, num_heads, 2 (keys, values), kPageTokens, head_dim]
// So a head's keys and values of a page are neighbours, and a GPU brings both by one copy.
//
// The same on the host and on a GPU. Nobody else knows this order.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/limits.h"

namespace gapless {

enum class KvPart : std::uint8_t { kKeys, kValues };

struct KvLayout {
  int num_heads = 0;  // in the cache
  int head_dim = 0;

  // Elements of a page: the keys of one head, or its values; both; those of all heads.
  GAPLESS_HOST_DEVICE constexpr int part_size() const { return kPageTokens * head_dim; }
  GAPLESS_HOST_DEVICE constexpr int head_size() const { return 2 * part_size(); }
  GAPLESS_HOST_DEVICE constexpr std::int64_t page_size() const {
    return std::int64_t{num_heads} * head_size();
  }

  // Where a key or value begins, from the beginning of its page. `token`: of the page.
  GAPLESS_HOST_DEVICE constexpr int in_page(KvPart part, int head, int token) const {
    return head * head_size() + (part == KvPart::kValues ? part_size() : 0) + token * head_dim;
  }
  // The same from the beginning of the layer. A slot is page * kPageTokens + token.
  GAPLESS_HOST_DEVICE constexpr std::int64_t at(KvPart part, std::int64_t slot, int head) const {
    return slot / kPageTokens * page_size() +
           in_page(part, head, static_cast<int>(slot % kPageTokens));
  }
  // Of page 0, which holds nobody's tokens. Several tokens of a step may have the same one, so what lies there is undefined.
  GAPLESS_HOST_DEVICE static constexpr bool is_trash(std::int64_t slot) {
    return slot < kPageTokens;
  }
};

}  // namespace gapless
