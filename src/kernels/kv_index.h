// The slot of a token in the paged cache: page * kPageTokens + offset (kv_layout.h says where its key
// and value are). And, for backends whose T is float32, how elements of the cache are read and written.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "kernels/fp8.h"
#include "kernels/kv_format.h"

namespace gapless {

inline std::int64_t kv_slot(const std::int32_t* page_table_row, std::int64_t position) {
  return std::int64_t{page_table_row[position / kPageTokens]} * kPageTokens +
         position % kPageTokens;
}

// Elements [at, at + count) of one layer. Always inlined: fp8.h says why.
[[gnu::always_inline]] inline void store_kv(KvFormat format, void* to, std::int64_t at,
                                            const float* from, int count) {
  if (format == KvFormat::kNative) {
    for (int i = 0; i < count; ++i) static_cast<float*>(to)[at + i] = from[i];
  } else {
    for (int i = 0; i < count; ++i) {
      static_cast<std::uint8_t*>(to)[at + i] = e4m3_from_float(from[i]);
    }
  }
}

[[gnu::always_inline]] inline void load_kv(KvFormat format, const void* from, std::int64_t at,
                                           float* to, int count) {
  if (format == KvFormat::kNative) {
    for (int i = 0; i < count; ++i) to[i] = static_cast<const float*>(from)[at + i];
  } else {
    for (int i = 0; i < count; ++i) {
      to[i] = float_from_e4m3(static_cast<const std::uint8_t*>(from)[at + i]);
    }
  }
}

}  // namespace gapless
