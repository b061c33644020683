// Attention of bfloat16 with AMX: scores and weighted sums of values by tiles, the running softmax of attention_kernel.h in
// float32. Weights become bfloat16.
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
      largest_[i] = -__builtin_inff();
      _mm512_store_ps(sums_[i], _mm512_setzero_ps());
    }
    for (int i = tile.num_queries; i < kPadded; ++i) largest_[i] = -__builtin_inff();
    const auto num_values = static_cast<std::size_t>(tile.num_queries + kAmxRows) * width_;
    __builtin_memset(values_, 0, num_values * sizeof(float));
  }

  void run() {
    const AmxTiles tiles;
    over_key_blocks<kKeys, kAmxRows>(
        tile_,
        [&](int begin, int count) {
          load_keys(begin, count);
          load_values(begin, count);
        },
        [&](int first, int num_rows, int begin, int) { attend_to_block(first, num_rows, begin); });
    for (int i = 0; i < tile_.num_queries; ++i) write_row(i);
  }

 private:
  static constexpr int kKeys = 128;  // of a block
  static constexpr int kVectors = kKeys / kAmxRows;
  static constexpr int kKeyGroup = 64;  // four tiles of scores
  static constexpr int kMaxSteps = kMaxHeadDim / kAmxStep;
  static constexpr int kPadded =
      kMaxTileQueries + kAmxRows;  // a last tile may begin with any query
  static constexpr std::int64_t kRowBytes = kAmxStep * sizeof(Bf16);
  static constexpr std::int64_t kScoreBytes = kKeys * sizeof(float);

  void load_keys(int begin, int count) {
    rows_.find(tile_, tile_.k, begin, count);
    for (int first = 0; first < kKeys; first += kAmxRows) {
      const Bf16* keys[kAmxRows];
      for (int j = 0; j < kAmxRows; ++j) keys[j] = rows_[first + j];
      for (int step = 0; step < num_steps_; ++step) {
        const int at = step * kAmxStep, left = tile_.head_dim - at;
        pack_amx_columns<Simd>(keys, at, left < kAmxStep ? left : kAmxStep,
                               keys_[first / kAmxRows][step]);
      }
    }
  }

  // Pairs of values: their dimensions lie in the lanes.
  void load_values(int begin, int count) {
    rows_.find(tile_, tile_.v, begin, count);
    for (int j = 0; j < kKeys; j += 2) {
      for_lanes<Simd>(
          tile_.head_dim, [&](int d, int lanes) __attribute__((always_inline)) {
            const __m512i even = _mm512_castps_si512(load_count<Simd>(rows_[j] + d, lanes));
            const __m512i odd = _mm512_castps_si512(load_count<Simd>(rows_[j + 1] + d, lanes));
            _mm512_store_si512(pairs_ + j / 2 * width_ + d,
                               _mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
          });
    }
  }

  // Queries [first, first + num_rows), of which one at least sees keys of the block.
  void attend_to_block(int first, int num_rows, int begin) {
    for (int key = 0; key < kKeys; key += kKeyGroup) score(first, key);
    weigh_rows(first, num_rows, begin);
    int d = 0;
    for (; d + 4 * kAmxRows <= width_; d += 4 * kAmxRows) add_values<4>(first, d);
    for (; d < width_; d += kAmxRows) add_values<1>(first, d);
  }

  // Of sixteen queries and the group of keys at `key`.
  void score(int first, int key) {
    AmxTiles::clear<0>(), AmxTiles::clear<1>(), AmxTiles::clear<2>(), AmxTiles::clear<3>();
    const auto* keys = &keys_[key / kAmxRows];
    for (int step = 0; step < num_steps_; ++step) {
      AmxTiles::load<4>(queries_[step][first], kRowBytes);
      AmxTiles::load<5>(keys[0][step], kRowBytes);
      AmxTiles::add_products<0, 4, 5>();
      AmxTiles::load<6>(keys[1][step], kRowBytes);
      AmxTiles::add_products<1, 4, 6>();
      AmxTiles::load<7>(keys[2][step], kRowBytes);
      AmxTiles::add_products<2, 4, 7>();
      AmxTiles::load<5>(keys[3][step], kRowBytes);
      AmxTiles::add_products<3, 4, 5>();
    }
    float* const to = scores_[0] + key;
    AmxTiles::store<0>(to, kScoreBytes), AmxTiles::store<1>(to + kAmxRows, kScoreBytes);
    AmxTiles::store<2>(to + 2 * kAmxRows, kScoreBytes);
    AmxTiles::store<3>(to + 3 * kAmxRows, kScoreBytes);
  }

  // Vector v of a row's scores; those of keys past the first num_visible of this block are minus infinity.
  [[gnu::always_inline]] __m512 score_of(int row, int v, int num_visible) const {
    const __m512 scores = _mm512_load_ps(scores_[row] + v * kAmxRows);
    const int seen = num_visible - v * kAmxRows;
    if (seen >= kAmxRows) return scores;
    const auto lanes = static_cast<__mmask16>(seen > 0 ? (1u << seen) - 1u : 0u);
    return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), lanes, scores);
  }

  // Scores to weights of the keys that each of these queries sees: the first num_visible - begin of this block. For a block that a
  // query does not see, weights of 0 leave everything as it was.
  void weigh_rows(int first, int num_rows, int begin) {
    find_largest(first, num_rows, begin);
    for (int row = 0; row < num_rows; ++row) {
      weigh_row(first + row, row, tile_.num_visible[first + row] - begin);
    }
  }

  // Of all sixteen queries at once: one after the other, each would wait for its own maximum. What was summed up relative to a smaller
  // one becomes smaller.
  void find_largest(int first, int num_rows, int begin) {
    __m512 most[kAmxRows];
    for (int row = 0; row < kAmxRows; ++row) {
      const int num_visible = row < num_rows ? tile_.num_visible[first + row] - begin : 0;
      most[row] = score_of(row, 0, num_visible);
      for (int v = 1; v < kVectors; ++v) {
        most[row] = _mm512_max_ps(most[row], score_of(row, v, num_visible));
      }
    }
    Simd::transpose(most);
    for (int width = kAmxRows / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) most[i] = _mm512_max_ps(most[i], most[i + width]);
    }
    const __m512 before = _mm512_loadu_ps(largest_ + first);
    const __m512 largest = _mm512_max_ps(most[0], before);
    const __mmask16 grown = _mm512_cmp_ps_mask(largest, before, _CMP_GT_OQ);
    if (grown == 0) return;
    _mm512_storeu_ps(largest_ + first, largest);
    alignas(64) float factors[kAmxRows];
    _mm512_store_ps(factors,
                    exp2_of(_mm512_mul_ps(_mm512_sub_ps(before, largest), _mm512_set1_ps(scale_))));
    for (int row = 0; row < num_rows; ++row) {
      if ((grown >> row & 1) == 0) continue;
      const __m512 by = _mm512_set1_ps(factors[row]);
      float* const sum = sums_[first + row];
      _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), by));
      float* const values = values_ + (first + row) * width_;
      for (int d = 0; d < width_; d += kAmxRows) {
        _mm512_store_ps(values + d, _mm512_mul_ps(_mm512_load_ps(values + d), by));
      }
    }
  }

  void weigh_row(int i, int row, int num_visible) {
    Bf16* const weights = weights_[row];
    if (num_visible <= 0) {
      __builtin_memset(weights, 0, sizeof(weights_[row]));
      return;
    }
    const __m512 scale = _mm512_set1_ps(scale_), relative_to = _mm512_set1_ps(largest_[i]);
    __m512 sum = _mm512_load_ps(sums_[i]);
    for (int v = 0; v < kVectors; v += 2) {
      const auto weight = [&](int at) __attribute__((always_inline)) {
        const __m512 score = score_of(row, at, num_visible);
        const __m512 w = exp2_of(_mm512_mul_ps(_mm512_sub_ps(score, relative_to), scale));
        sum = _mm512_add_ps(sum, w);
        return w;
      };
      const __m512 lower = weight(v), upper = weight(v + 1);
      _mm512_store_si512(weights + v * kAmxRows,
                         reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, lower)));
    }
    _mm512_store_ps(sums_[i], sum);
  }

  // Sixteen queries' values from dimension d on, kCount tiles of them.
  template <int kCount>
  void add_values(int first, int d) {
    const auto row_bytes = static_cast<std::int64_t>(width_ * sizeof(float));
    float* const to = values_ + first * width_ + d;
    const auto over_sums = [&](auto each) __attribute__((always_inline)) {
      each.template operator()<0>();
      if constexpr (kCount == 4) {
        each.template operator()<1>();
        each.template operator()<2>();
        each.template operator()<3>();
      }
    };
    over_sums([&]<int kSum>() __attribute__((always_inline)) {
      AmxTiles::load<kSum>(to + kSum * kAmxRows, row_bytes);
    });
    for (int key = 0; key < kKeys; key += kAmxStep) {
      AmxTiles::load<4>(weights_[0] + key, kKeys * sizeof(Bf16));
      const std::int32_t* const pairs = pairs_ + key / 2 * width_ + d;
      over_sums([&]<int kSum>() __attribute__((always_inline)) {
        constexpr int kPairs = 5 + kSum % 3;
        AmxTiles::load<kPairs>(pairs + kSum * kAmxRows, row_bytes);
        AmxTiles::add_products<kSum, 4, kPairs>();
      });
    }
    over_sums([&]<int kSum>() __attribute__((always_inline)) {
      AmxTiles::store<kSum>(to + kSum * kAmxRows, row_bytes);
    });
  }

  void write_row(int i) {
    const __m512 sum = _mm512_set1_ps(Simd::sum(_mm512_load_ps(sums_[i])));
    const float* const values = values_ + i * width_;
    Bf16* const out = static_cast<Bf16*>(tile_.out) + i * tile_.out_stride;
    for_lanes<Simd>(
        tile_.head_dim, [&](int at, int lanes) __attribute__((always_inline)) {
          store_count<Simd>(out + at, _mm512_div_ps(_mm512_load_ps(values + at), sum), lanes);
        });
  }

  const AttentionTile& tile_;
  const int num_steps_;     // of head_dim, in tiles
  const int width_;         // head_dim in whole vectors
  const float scale_;       // log2(e) / sqrt(head_dim)
  float largest_[kPadded];  // unscaled
  KeyRows<Simd, kKeys> rows_;
  alignas(64) float sums_[kMaxTileQueries][kAmxRows];  // of the weights, in each lane
  alignas(64) Bf16 queries_[kMaxSteps][kPadded][kAmxStep];
  alignas(64) Bf16 keys_[kKeys / kAmxRows][kMaxSteps][kAmxNumbers];
  alignas(64) std::int32_t pairs_[kKeys / 2 * kMaxHeadDim];  // [kKeys / 2, width_]
  alignas(64) float scores_[kAmxRows][kKeys];
  alignas(64) Bf16 weights_[kAmxRows][kKeys] = {};
  alignas(64) float values_[kPadded * kMaxHeadDim];  // [num_queries, width_]
};

}  // namespace gapless::cpu
