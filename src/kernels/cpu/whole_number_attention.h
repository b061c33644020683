// Attention of bfloat16 in 16-bit whole numbers (whole_numbers.h): the scores and the weighted sums of values. Softmax is
// float32, as in attention_kernel.h, whose blocks of keys these are too.
//
// Scales belong to a query, a key, a value, and to a query's weights of a block: none to what a query does not see. A
// value's scale is multiplied into the weights before these become whole numbers.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/key_blocks.h"
#include "kernels/cpu/simd_avx512_bf16.h"
#include "kernels/cpu/whole_numbers.h"

namespace gapless::cpu {

// Simd: Avx512Simd, or a type derived from it.
template <typename Simd>
class WholeNumberAttention {
 public:
  explicit WholeNumberAttention(const AttentionTile& tile)
      : tile_(tile),
        width_((tile.head_dim + kLanes - 1) / kLanes * kLanes),
        query_max_(query_max_of(tile.head_dim)) {
    const float scale = kLog2E / __builtin_sqrtf(static_cast<float>(tile.head_dim));
    for (int i = 0; i < tile.num_queries; ++i) {
      const Bf16* q = static_cast<const Bf16*>(tile.q) + i * tile.q_stride;
      query_scales_[i] = scale * Numbers::pack_row(q, tile.head_dim, query_max_, queries_[i]);
      largest_[i] = -__builtin_inff();
      _mm512_store_ps(sums_[i], _mm512_setzero_ps());
      __builtin_memset(values_[i], 0, static_cast<std::size_t>(width_) * sizeof(float));
    }
  }

  void run() {
    over_key_blocks<kKeyBlock, kTileRows>(
        tile_,
        [&](int begin, int count) {
          load_keys(begin, count);
          load_values(begin, count);
        },
        [&](int first, int num_rows, int begin, int) {
          with_count<kTileRows>(num_rows,
                                [&]<int kRows>() { attend_to_block<kRows>(first, begin); });
        });
    for (int i = 0; i < tile_.num_queries; ++i) write_row(i);
  }

 private:
  using Numbers = WholeNumbers<Simd>;
  static constexpr int kLanes = Numbers::kLanes, kGroup = Numbers::kGroup, kTileRows = 12;
  static constexpr int kMaxWidth = kMaxHeadDim;
  static constexpr int kXStride = kMaxWidth / 2 + 16, kWeightStride = kKeyBlock / 2 + 16;
  static constexpr float kMax = 4095, kWeightMax = 8191;
  static_assert(kKeyBlock * 8191ll * 4095 <= 0x7fffffff, "a block's sums are exact");

  // So that a head's sums are exact.
  static float query_max_of(int head_dim) {
    const auto most = static_cast<float>(0x7fffffffll / (4095ll * head_dim));
    return most < kWeightMax ? most : kWeightMax;
  }

  void load_keys(int begin, int count) {
    rows_.find(tile_, tile_.k, begin, count);
    for (int first = 0; first < kKeyBlock; first += kLanes) {
      const Bf16* columns[kLanes];
      for (int j = 0; j < kLanes; ++j) columns[j] = rows_[first + j];
      Numbers::pack_columns(columns, tile_.head_dim, kMax, keys_[0] + first, kKeyBlock,
                            key_scales_ + first);
    }
  }

  // Pairs of values, one behind the other: their dimensions lie in the lanes.
  void load_values(int begin, int count) {
    rows_.find(tile_, tile_.v, begin, count);
    for (int j = 0; j < kKeyBlock; j += 2) {
      __m512 factors[2];
      for (int one = 0; one < 2; ++one) {
        const float most = Numbers::largest(rows_[j + one], tile_.head_dim);
        factors[one] = _mm512_set1_ps(Numbers::factor_of(most, kMax));
        value_scales_[j + one] = most * (1 / kMax);
      }
      for (int d = 0; d < tile_.head_dim; d += kLanes) {
        const int lanes = tile_.head_dim - d < kLanes ? tile_.head_dim - d : kLanes;
        const auto whole = [&](int one) __attribute__((always_inline)) {
          const __m512 v = load_count<Simd>(rows_[j + one] + d, lanes);
          return _mm512_cvtps_epi32(_mm512_mul_ps(v, factors[one]));
        };
        _mm512_store_si512(block_values_[j / 2] + d, Numbers::join(whole(0), whole(1)));
      }
    }
  }

  // Queries [first, first + kRows), of which one at least sees keys of the block.
  template <int kRows>
  void attend_to_block(int first, int begin) {
    for (int j = 0; j < kKeyBlock; j += kGroup) {
      __m512i sums[kRows][2];
      Numbers::template multiply<kRows, 2, kXStride>(queries_[first], keys_[0] + j, kKeyBlock,
                                                     (tile_.head_dim + 1) / 2, sums);
      for (int i = 0; i < kRows; ++i) {
        const __m512 scale = _mm512_set1_ps(query_scales_[first + i]);
        for (int v = 0; v < 2; ++v) {
          const __m512 key_scale = _mm512_load_ps(key_scales_ + j + v * kLanes);
          _mm512_store_ps(
              scores_[i] + j + v * kLanes,
              _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][v]), scale), key_scale));
        }
      }
    }
    float weight_scales[kRows];
    for (int i = 0; i < kRows; ++i) {
      weight_scales[i] = weigh_row(first + i, i, tile_.num_visible[first + i] - begin);
    }
    int d = 0;
    for (; d + kGroup <= width_; d += kGroup) add_values<kRows, 2>(first, d, weight_scales);
    if (d < width_) add_values<kRows, 1>(first, d, weight_scales);
  }

  // Not inlined: gcc 12 keeps some of the sums in memory otherwise.
  template <int kRows, int kVectors>
  [[gnu::noinline]] void add_values(int first, int d, const float (&weight_scales)[kRows]) {
    __m512i sums[kRows][kVectors];
    Numbers::template multiply<kRows, kVectors, kWeightStride>(weights_[0], block_values_[0] + d,
                                                               kMaxWidth, kKeyBlock / 2, sums);
    for (int i = 0; i < kRows; ++i) {
      const __m512 scale = _mm512_set1_ps(weight_scales[i]);
      for (int v = 0; v < kVectors; ++v) {
        float* to = values_[first + i] + d + v * kLanes;
        _mm512_store_ps(to,
                        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i][v]), scale, _mm512_load_ps(to)));
      }
    }
  }

  // Scores to weights, in whole numbers, of the keys that query i sees: the first num_visible of this block. For a block that it does not
  // see, weights of 0 leave everything as it was. Returns the weights' scale.
  float weigh_row(int i, int row, int num_visible) {
    std::int32_t* const weights = weights_[row];
    if (num_visible <= 0) {
      __builtin_memset(weights, 0, kKeyBlock / 2 * sizeof(*weights));
      return 0;
    }
    float* const scores = scores_[row];
    for (int j = num_visible; j < kKeyBlock; ++j) scores[j] = -__builtin_inff();
    constexpr int kVectors = kKeyBlock / kLanes;
    __m512 score[kVectors];
    for (int v = 0; v < kVectors; ++v) score[v] = _mm512_load_ps(scores + v * kLanes);
    const __m512 most =
        _mm512_max_ps(_mm512_max_ps(score[0], score[1]), _mm512_max_ps(score[2], score[3]));
    const float block_largest = Simd::largest(most);
    const float largest = block_largest > largest_[i] ? block_largest : largest_[i];
    const __m512 relative_to = _mm512_set1_ps(largest);
    __m512 sum = _mm512_load_ps(sums_[i]), most_weight = _mm512_setzero_ps();
    if (largest != largest_[i]) {
      const __m512 by = exp2_of(_mm512_sub_ps(_mm512_set1_ps(largest_[i]), relative_to));
      sum = _mm512_mul_ps(sum, by);
      for (int d = 0; d < width_; d += kLanes) {
        _mm512_store_ps(values_[i] + d, _mm512_mul_ps(_mm512_load_ps(values_[i] + d), by));
      }
      largest_[i] = largest;
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m512 weight = exp2_of(_mm512_sub_ps(score[v], relative_to));
      sum = _mm512_add_ps(sum, weight);
      score[v] = _mm512_mul_ps(weight, _mm512_load_ps(value_scales_ + v * kLanes));
      most_weight = _mm512_max_ps(most_weight, score[v]);
    }
    _mm512_store_ps(sums_[i], sum);
    const float scale = Simd::largest(most_weight);
    const __m512 factor = _mm512_set1_ps(Numbers::factor_of(scale, kWeightMax));
    for (int v = 0; v < kVectors; ++v) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(score[v], factor));
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights + v * kLanes / 2),
                         _mm512_cvtepi32_epi16(whole));
    }
    return scale * (1 / kWeightMax);
  }

  void write_row(int i) {
    const __m512 sum = _mm512_set1_ps(Simd::sum(_mm512_load_ps(sums_[i])));
    Bf16* out = static_cast<Bf16*>(tile_.out) + i * tile_.out_stride;
    for_lanes<Simd>(
        tile_.head_dim, [&](int at, int lanes) __attribute__((always_inline)) {
          store_count<Simd>(out + at, Simd::div(Simd::load(values_[i] + at), sum), lanes);
        });
  }

  const AttentionTile& tile_;
  const int width_;  // head_dim in whole vectors
  const float query_max_;
  float largest_[kMaxTileQueries];
  alignas(64) float sums_[kMaxTileQueries][kLanes];  // of the weights, in each lane
  float query_scales_
      [kMaxTileQueries];  // times log2(e) / sqrt(head_dim): powers of two need no product
  alignas(64) float key_scales_[kKeyBlock];
  alignas(64) float value_scales_[kKeyBlock];
  alignas(64) std::int32_t queries_[kMaxTileQueries][kXStride];  // pairs
  alignas(64) std::int32_t keys_[kMaxWidth / 2][kKeyBlock];  // pairs along a key; keys in the lanes
  alignas(64) std::int32_t block_values_[kKeyBlock / 2][kMaxWidth];  // pairs of values
  alignas(64) float scores_[kTileRows][kKeyBlock];
  alignas(64) std::int32_t weights_[kTileRows][kWeightStride];  // pairs
  alignas(64) float values_[kMaxTileQueries][kMaxWidth];
  KeyRows<Simd, kKeyBlock> rows_;
};

}  // namespace gapless::cpu
