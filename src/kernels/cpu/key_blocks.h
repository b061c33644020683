// What every attention of the CPU does in the same way: its keys come in blocks, each packed once for all queries of a tile.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/kv_index.h"

namespace gapless::cpu {

// Keys of one step of the running softmax. Fixed, and counted from key 0, so that a query meets the
// same steps in whatever tile, pack or launch it comes.
inline constexpr int kKeyBlock = 64;
static_assert(kKeyBlock % kPageTokens == 0);

// Keys that the queries [first, first + count) of a tile see together.
[[gnu::always_inline]] inline int most_visible(const AttentionTile& tile, int first, int count) {
  int most = 0;
  for (int i = first; i < first + count; ++i) {
    if (tile.num_visible[i] > most) most = tile.num_visible[i];
  }
  return most;
}

// Where a key or value begins, in elements of the cache's format.
[[gnu::always_inline]] inline std::int64_t place_of(const AttentionTile& tile, int key) {
  const std::int64_t page = key / kPageTokens;
  const std::int64_t number = tile.page_table != nullptr ? tile.page_table[page] : page;
  return tile.first + number * tile.page_stride + key % kPageTokens * tile.key_stride;
}

// load(begin, count) for each block of kKeys keys, and then, for each kRows queries of which one at least sees keys of it,
// attend(first, num_rows, begin, count): the first `count` of these keys are all that one of them sees.
template <int kKeys, int kRows, typename Load, typename Attend>
[[gnu::always_inline]] inline void over_key_blocks(const AttentionTile& tile, Load load,
                                                   Attend attend) {
  static_assert(kKeys % kPageTokens == 0);
  const int num_keys = most_visible(tile, 0, tile.num_queries);
  for (int begin = 0; begin < num_keys; begin += kKeys) {
    const int count = num_keys - begin < kKeys ? num_keys - begin : kKeys;
    load(begin, count);
    for (int first = 0; first < tile.num_queries; first += kRows) {
      const int left = tile.num_queries - first;
      const int num_rows = left < kRows ? left : kRows;
      const int visible = most_visible(tile, first, num_rows) - begin;
      if (visible > 0) attend(first, num_rows, begin, visible < count ? visible : count);
    }
  }
}

// Keys, or values, as rows of bfloat16, which those of a cache in 8 bits are turned into. Those past `count` repeat the last one.
template <typename Simd, int kKeys>
class KeyRows {
 public:
  void find(const AttentionTile& tile, const void* from, int begin, int count) {
    for (int j = 0; j < count; ++j) {
      const std::int64_t at = place_of(tile, begin + j);
      rows_[j] = static_cast<const Bf16*>(from) + at;
      if (tile.format == KvFormat::kNative) continue;
      alignas(64) float copy[kMaxHeadDim];
      load_kv(tile.format, from, at, copy, tile.head_dim);
      for_lanes<Simd>(
          tile.head_dim, [&](int d, int lanes) __attribute__((always_inline)) {
            store_count<Simd>(widened_[j] + d, Simd::load(copy + d), lanes);
          });
      rows_[j] = widened_[j];
    }
    for (int j = count; j < kKeys; ++j) rows_[j] = rows_[count - 1];
  }

  const Bf16* operator[](int j) const { return rows_[j]; }

 private:
  const Bf16* rows_[kKeys];
  Bf16 widened_[kKeys][kMaxHeadDim];
};

}  // namespace gapless::cpu
