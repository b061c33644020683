// Where a token's key or value of one head lies in the paged cache of one layer:
// [num_pages, num_heads, kPageTokens, head_dim]; a slot is page * kPageTokens + offset.
#pragma once

#include <cstdint>

#include "base/limits.h"

namespace gapless {

inline std::int64_t kv_index(std::int64_t slot, std::int64_t head, int num_heads, int head_dim) {
  const std::int64_t page = slot / kPageTokens, offset = slot % kPageTokens;
  return ((page * num_heads + head) * kPageTokens + offset) * head_dim;
}

inline std::int64_t kv_slot(const std::int32_t* page_table_row, std::int64_t position) {
  return std::int64_t{page_table_row[position / kPageTokens]} * kPageTokens +
         position % kPageTokens;
}

}  // namespace gapless
