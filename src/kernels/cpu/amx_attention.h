// Attention of bfloat16 with AMX: scores and weighted sums of values by tiles, the softmax in float32. Weights become bfloat16.
//
// Sixteen queries meet a whole span of keys before their values are summed: so a query has one largest score and one sum for each
// span, and the sums of values stay in the tiles. A crop and a prefill of its prompt are one span.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/key_blocks.h"
#include "kernels/cpu/simd_avx512_bf16.h"

namespace gapless::cpu {

// Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class AmxAttention {
 public:
  explicit AmxAttention(const AttentionTile& tile)
      : tile_(tile),
        num_steps_((tile.head_dim + kAmxStep - 1) / kAmxStep),
        width_((tile.head_dim + kAmxRows - 1) / kAmxRows * kAmxRows),
        scale_(kLog2E / __builtin_sqrtf(static_cast<float>(tile.head_dim))) {
    for (int i = 0; i < tile.num_queries; ++i) {
      const Bf16* q = static_cast<const Bf16*>(tile.q) + i * tile.q_stride;
      for (int step = 0; step < num_steps_; ++step) {
        const int left = tile.head_dim - step * kAmxStep;
        copy_amx_row<Simd>(q + step * kAmxStep, left < kAmxStep ? left : kAmxStep,
                           queries_[step][i]);
      }
    }
  }

  void run() {
    const AmxTiles tiles;
    over_key_blocks<kSpan, kAmxRows>(
        tile_,
        [&](int begin, int count) {
          for (int at = 0; at < count; at += kBlock) {
            load_block(begin, at, count - at < kBlock ? count - at : kBlock, count);
          }
        },
        [&](int first, int num_rows, int begin, int count) {
          attend_to_span(first, num_rows, begin, count);
        });
    for (int i = 0; i < tile_.num_queries; ++i) write_row(i);
  }

 private:
  // Keys of a span. Fixed, and counted from key 0, so that a query meets the same spans in whatever tile it comes.
  static constexpr int kSpan = 1024;
  static constexpr int kBlock = 128;    // keys that are packed at a time
  static constexpr int kKeyGroup = 64;  // four tiles of scores
  static constexpr int kMaxSteps = kMaxHeadDim / kAmxStep;
  static constexpr int kPadded = kMaxTileQueries + kAmxRows;  // a last tile has sixteen queries too
  static constexpr std::int64_t kRowBytes = kAmxStep * sizeof(Bf16);
  // Rows of scores, and of weights, do not meet in the same cache sets.
  static constexpr int kScoreStride = kSpan + kAmxRows, kWeightStride = kSpan + kAmxStep;

  static constexpr int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

  // Keys and values [at, at + count) of a span that has `all` of them. Whole tiles: those past the end repeat the last one.
  void load_block(int begin, int at, int count, int all) {
    const int padded = round_up(count, kAmxStep);
    rows_.find(tile_, tile_.k, begin + at, count);
    fetch_block(tile_.v, begin + at, count);
    for (int first = 0; first < padded; first += kAmxRows) {
      const Bf16* keys[kAmxRows];
      for (int j = 0; j < kAmxRows; ++j) keys[j] = rows_[first + j];
      for (int step = 0; step < num_steps_; ++step) {
        const int from = step * kAmxStep, left = tile_.head_dim - from;
        pack_amx_columns<Simd>(keys, from, left < kAmxStep ? left : kAmxStep,
                               key_tile((at + first) / kAmxRows, step));
      }
    }
    const int next = at + kBlock;
    if (next < all) fetch_block(tile_.k, begin + next, all - next < kBlock ? all - next : kBlock);
    rows_.find(tile_, tile_.v, begin + at, count);
    // Pairs of values: their dimensions lie in the lanes.
    for (int j = 0; j < padded; j += 2) {
      for_lanes<Simd>(
          tile_.head_dim, [&](int d, int lanes) __attribute__((always_inline)) {
            const __m512i even = _mm512_castps_si512(load_count<Simd>(rows_[j] + d, lanes));
            const __m512i odd = _mm512_castps_si512(load_count<Simd>(rows_[j + 1] + d, lanes));
            _mm512_store_si512(pairs_ + (at + j) / 2 * width_ + d,
                               _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
          });
    }
  }

  // Another core has just written these keys or values: they come while something else is packed.
  void fetch_block(const void* from, int begin, int count) const {
    if (tile_.format != KvFormat::kNative) return;
    for (int j = 0; j < count; ++j) {
      const Bf16* row = static_cast<const Bf16*>(from) + place_of(tile_, begin + j);
      for (int d = 0; d < tile_.head_dim; d += kAmxStep) __builtin_prefetch(row + d, 0, 2);
    }
  }

  Bf16* key_tile(int group, int step) { return keys_[group * num_steps_ + step]; }

  // Queries [first, first + num_rows), one of which at least sees keys of the span: its first `count`.
  void attend_to_span(int first, int num_rows, int begin, int count) {
    const int num_keys = round_up(count, kAmxStep);
    int key = 0;
    for (; key + kKeyGroup <= num_keys; key += kKeyGroup) score<4>(first, key);
    for (; key < num_keys; key += kAmxStep) score<2>(first, key);
    for (int row = 0; row < kAmxRows; ++row) {
      const int visible = row < num_rows ? tile_.num_visible[first + row] - begin : 0;
      weigh_row(first + row, row, visible < count ? visible : count, num_keys, begin == 0);
    }
    for (int d = 0; d < width_;) {
      const int left = (width_ - d) / kAmxRows;
      if (left == 5) {
        d += add_values<5>(first, d, num_keys, begin == 0);
      } else if (left >= 4) {
        d += add_values<4>(first, d, num_keys, begin == 0);
      } else {
        d += add_values<1>(first, d, num_keys, begin == 0);
      }
    }
  }

  // f<0>() to f<kCount - 1>().
  template <int kCount, typename F>
  [[gnu::always_inline]] static void for_tiles(const F& f) {
    f.template operator()<0>();
    if constexpr (kCount > 1) f.template operator()<1>();
    if constexpr (kCount > 2) f.template operator()<2>();
    if constexpr (kCount > 3) f.template operator()<3>();
    if constexpr (kCount > 4) f.template operator()<4>();
  }

  // Of sixteen queries and kCount tiles of keys at `key`.
  template <int kCount>
  void score(int first, int key) {
    for_tiles<kCount>([]<int kTile>() __attribute__((always_inline)) { AmxTiles::clear<kTile>(); });
    const int group = key / kAmxRows;
    for (int step = 0; step < num_steps_; ++step) {
      AmxTiles::load<4>(queries_[step][first], kRowBytes);
      for_tiles<kCount>([&]<int kTile>() __attribute__((always_inline)) {
        constexpr int kKeys = 5 + kTile % 3;
        AmxTiles::load<kKeys>(key_tile(group + kTile, step), kRowBytes);
        AmxTiles::add_products<kTile, 4, kKeys>();
      });
    }
    float* const to = scores_[0] + key;
    for_tiles<kCount>([&]<int kTile>() __attribute__((always_inline)) {
      AmxTiles::store<kTile>(to + kTile * kAmxRows, kScoreStride * sizeof(float));
    });
  }

  // Scores to weights of the keys that query i sees: the first num_visible of this span, of num_keys that have a weight. Where it sees
  // none, weights of 0 leave everything as it was.
  void weigh_row(int i, int row, int num_visible, int num_keys, bool is_first) {
    Bf16* const weights = weights_[row];
    if (num_visible <= 0) {
      __builtin_memset(weights, 0, static_cast<std::size_t>(num_keys) * sizeof(Bf16));
      return;
    }
    const float* const scores = scores_[row];
    const int whole = num_visible / kAmxRows * kAmxRows;
    const auto seen = static_cast<__mmask16>((1u << (num_visible - whole)) - 1u);
    const __m512 unseen = _mm512_set1_ps(-__builtin_inff());
    __m512 most = _mm512_mask_load_ps(unseen, seen, scores + whole), most2 = unseen;
    int j = 0;
    for (; j + kAmxStep <= whole; j += kAmxStep) {
      most = _mm512_max_ps(most, _mm512_load_ps(scores + j));
      most2 = _mm512_max_ps(most2, _mm512_load_ps(scores + j + kAmxRows));
    }
    if (j < whole) most2 = _mm512_max_ps(most2, _mm512_load_ps(scores + j));
    float largest = Simd::largest(_mm512_max_ps(most, most2));
    __m512 sum = _mm512_setzero_ps();
    if (!is_first) {
      sum = _mm512_load_ps(sums_[i]);
      if (largest > largest_[i]) {
        sum = shrink(i, largest, sum);
      } else {
        largest = largest_[i];
      }
    }
    largest_[i] = largest;
    const __m512 scale = _mm512_set1_ps(scale_), offset = _mm512_set1_ps(-largest * scale_);
    const auto weight = [&](__m512 score) __attribute__((always_inline)) {
      return exp2_of(_mm512_fmadd_ps(score, scale, offset));
    };
    const auto store = [&](int at, __m512 lower, __m512 upper) __attribute__((always_inline)) {
      sum = _mm512_add_ps(sum, _mm512_add_ps(lower, upper));
      _mm512_store_si512(weights + at,
                         reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, lower)));
    };
    for (j = 0; j + kAmxStep <= whole; j += kAmxStep) {
      store(j, weight(_mm512_load_ps(scores + j)), weight(_mm512_load_ps(scores + j + kAmxRows)));
    }
    // The two vectors with the last key that it sees, and what others see beyond.
    const auto last = [&](int at) __attribute__((always_inline)) {
      if (at + kAmxRows <= whole) return weight(_mm512_load_ps(scores + at));
      if (at > whole) return _mm512_setzero_ps();
      return _mm512_maskz_mov_ps(seen, weight(_mm512_mask_load_ps(unseen, seen, scores + at)));
    };
    for (; j < num_keys; j += kAmxStep) store(j, last(j), last(j + kAmxRows));
    _mm512_store_ps(sums_[i], sum);
  }

  // What was summed up relative to a smaller score.
  __m512 shrink(int i, float largest, __m512 sum) {
    const __m512 by = exp2_of(_mm512_set1_ps((largest_[i] - largest) * scale_));
    float* const values = values_ + i * width_;
    for (int d = 0; d < width_; d += kAmxRows) {
      _mm512_store_ps(values + d, _mm512_mul_ps(_mm512_load_ps(values + d), by));
    }
    return _mm512_mul_ps(sum, by);
  }

  // Sixteen queries' values from dimension d on, kCount tiles of them. Returns their dimensions.
  template <int kCount>
  int add_values(int first, int d, int num_keys, bool is_first) {
    constexpr int kWeights = 5;
    const auto row_bytes = static_cast<std::int64_t>(width_ * sizeof(float));
    float* const to = values_ + first * width_ + d;
    for_tiles<kCount>([&]<int kTile>() __attribute__((always_inline)) {
      if (is_first) {
        AmxTiles::clear<kTile>();
      } else {
        AmxTiles::load<kTile>(to + kTile * kAmxRows, row_bytes);
      }
    });
    for (int key = 0; key < num_keys; key += kAmxStep) {
      AmxTiles::load<kWeights>(weights_[0] + key, kWeightStride * sizeof(Bf16));
      const std::int32_t* const pairs = pairs_ + key / 2 * width_ + d;
      for_tiles<kCount>([&]<int kTile>() __attribute__((always_inline)) {
        constexpr int kPairs = 6 + kTile % 2;
        AmxTiles::load<kPairs>(pairs + kTile * kAmxRows, row_bytes);
        AmxTiles::add_products<kTile, kWeights, kPairs>();
      });
    }
    for_tiles<kCount>([&]<int kTile>() __attribute__((always_inline)) {
      AmxTiles::store<kTile>(to + kTile * kAmxRows, row_bytes);
    });
    return kCount * kAmxRows;
  }

  void write_row(int i) {
    const __m512 sum = _mm512_set1_ps(Simd::sum(_mm512_load_ps(sums_[i])));
    const float* const values = values_ + i * width_;
    Bf16* const out = static_cast<Bf16*>(tile_.out) + i * tile_.out_stride;
    for_lanes<Simd>(
        tile_.head_dim, [&](int at, int lanes) __attribute__((always_inline)) {
          store_count<Simd>(out + at, Simd::div(_mm512_load_ps(values + at), sum), lanes);
        });
  }

  const AttentionTile& tile_;
  const int num_steps_;             // of head_dim, in tiles
  const int width_;                 // head_dim in whole vectors
  const float scale_;               // log2(e) / sqrt(head_dim)
  float largest_[kMaxTileQueries];  // unscaled
  KeyRows<Simd, kBlock> rows_;
  alignas(64) float sums_[kMaxTileQueries][kAmxRows];  // of the weights, in each lane
  alignas(64) Bf16 queries_[kMaxSteps][kPadded][kAmxStep];
  alignas(64) Bf16 keys_[kSpan / kAmxRows * kMaxSteps][kAmxNumbers];  // [kSpan / 16][num_steps]
  alignas(64) std::int32_t pairs_[kSpan / 2 * kMaxHeadDim];           // [kSpan / 2, width_]
  alignas(64) float scores_[kAmxRows][kScoreStride];
  alignas(64) Bf16 weights_[kAmxRows][kWeightStride];
  alignas(64) float values_[kPadded * kMaxHeadDim];  // [num_queries, width_]
};

}  // namespace gapless::cpu
