// Attention of a few queries of one head, over keys and values that are packed block by block.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/key_blocks.h"
#include "kernels/cpu/multiply_tile.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_ops.h"

namespace gapless::cpu {

// Running softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): per
// query the largest score so far, the sum of the exponentials, and the weighted sum of the values,
// all relative to that largest score.
template <typename Simd, typename T>
class AttentionRun {
 public:
  explicit AttentionRun(const AttentionTile& tile)
      : tile_(tile),
        width_(round_up(tile.head_dim, Simd::kLanes)),
        scale_(1.0f / __builtin_sqrtf(static_cast<float>(tile.head_dim))) {
    for (int i = 0; i < tile.num_queries; ++i) {
      const T* q = static_cast<const T*>(tile.q) + i * tile.q_stride;
      for_lanes<Simd>(
          tile.head_dim, [&](int at, int lanes) __attribute__((always_inline)) {
            Simd::store(queries_[i] + at, load_count<Simd>(q + at, lanes));
          });
      largest_[i] = -__builtin_inff();
      sum_[i] = 0;
      __builtin_memset(values_of(i), 0, static_cast<std::size_t>(width_) * sizeof(float));
    }
  }

  void run() {
    over_key_blocks<kKeyBlock, Simd::kPackedRows>(
        tile_,
        [&](int begin, int count) {
          load_keys(begin, count);
          load_values(begin, count);
        },
        [&](int first, int num_rows, int begin, int count) {
          with_count<Simd::kPackedRows>(
              num_rows, [&]<int kRows>() { attend_to_block<kRows>(first, begin, count); });
        });
    for (int i = 0; i < tile_.num_queries; ++i) write_row(i);
  }

 private:
  using Vector = typename Simd::Vector;
  static constexpr int kMaxWidth = kMaxHeadDim;

  static constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

  float* values_of(int i) { return values_ + i * width_; }

  // Keys past the end repeat the last one: their scores are not used.
  void load_keys(int begin, int count) {
    for (int first = 0; first < count; first += Simd::kLanes) {
      if (tile_.format == KvFormat::kNative) {
        const T* rows[Simd::kLanes];
        for (int j = 0; j < Simd::kLanes; ++j) {
          const int key = first + j < count ? first + j : count - 1;
          rows[j] = static_cast<const T*>(tile_.k) + place_of(tile_, begin + key);
        }
        pack_columns<Simd>(rows, tile_.head_dim, keys_[0] + first, kKeyBlock);
      } else {
        alignas(64) float copies[Simd::kLanes][kMaxHeadDim];
        const float* rows[Simd::kLanes];
        for (int j = 0; j < Simd::kLanes; ++j) {
          const int key = first + j < count ? first + j : count - 1;
          load_kv(tile_.format, tile_.k, place_of(tile_, begin + key), copies[j], tile_.head_dim);
          rows[j] = copies[j];
        }
        pack_columns<Simd>(rows, tile_.head_dim, keys_[0] + first, kKeyBlock);
      }
    }
  }

  void load_values(int begin, int count) {
    for (int j = 0; j < count; ++j) {
      float* to = block_values_ + j * width_;
      const std::int64_t at = place_of(tile_, begin + j);
      if (tile_.format != KvFormat::kNative) {
        load_kv(tile_.format, tile_.v, at, to, tile_.head_dim);
        for (int d = tile_.head_dim; d < width_; ++d) to[d] = 0;
        continue;
      }
      const T* v = static_cast<const T*>(tile_.v) + at;
      for_lanes<Simd>(
          tile_.head_dim, [&](int d, int lanes) __attribute__((always_inline)) {
            Simd::store(to + d, load_count<Simd>(v + d, lanes));
          });
    }
  }

  // Queries [first, first + kRows), of which one at least sees keys of the block: `count` of them.
  template <int kRows>
  void attend_to_block(int first, int begin, int count) {
    constexpr int kPair = 2 * Simd::kLanes;
    __builtin_memset(weights_, 0, kRows * sizeof(weights_[0]));
    for (int j = 0; j < count; j += kPair) {
      multiply_tile<Simd, kRows, 2, kMaxWidth>(queries_[first], keys_[0] + j, kKeyBlock,
                                               tile_.head_dim, weights_[0] + j, kKeyBlock);
    }
    for (int i = 0; i < kRows; ++i) weigh_row(first + i, i, tile_.num_visible[first + i] - begin);
    int d = 0;
    for (; d + kPair <= width_; d += kPair) {
      multiply_tile<Simd, kRows, 2, kKeyBlock>(weights_[0], block_values_ + d, width_, count,
                                               values_of(first) + d, width_);
    }
    if (d < width_) {
      multiply_tile<Simd, kRows, 1, kKeyBlock>(weights_[0], block_values_ + d, width_, count,
                                               values_of(first) + d, width_);
    }
  }

  // Scores to weights of the keys that query i sees: the first num_visible of this block. For a
  // block that it does not see, weights of 0 leave everything as it was.
  void weigh_row(int i, int weights_row, int num_visible) {
    float* row = weights_[weights_row];
    for (int j = num_visible > 0 ? num_visible : 0; j < kKeyBlock; ++j) row[j] = -__builtin_inff();
    if (num_visible <= 0) {
      for (int j = 0; j < kKeyBlock; ++j) row[j] = 0;
      return;
    }
    const Vector scale = Simd::broadcast(scale_);
    Vector most = Simd::load(row);
    for (int j = Simd::kLanes; j < kKeyBlock; j += Simd::kLanes) {
      most = Simd::max(most, Simd::load(row + j));
    }
    const float block_largest = Simd::largest(most) * scale_;
    const float largest = block_largest > largest_[i] ? block_largest : largest_[i];
    Vector sum = Simd::zero();
    for (int j = 0; j < kKeyBlock; j += Simd::kLanes) {
      const Vector score = Simd::mul(Simd::load(row + j), scale);
      const Vector weight = exp<Simd>(Simd::sub(score, Simd::broadcast(largest)));
      Simd::store(row + j, weight);
      sum = Simd::add(sum, weight);
    }
    if (largest != largest_[i]) {
      alignas(64) float shrink[Simd::kLanes];
      Simd::store(shrink, exp<Simd>(Simd::broadcast(largest_[i] - largest)));
      const Vector factor = Simd::broadcast(shrink[0]);
      float* values = values_of(i);
      for (int d = 0; d < width_; d += Simd::kLanes) {
        Simd::store(values + d, Simd::mul(Simd::load(values + d), factor));
      }
      sum_[i] *= shrink[0];
      largest_[i] = largest;
    }
    sum_[i] += Simd::sum(sum);
  }

  void write_row(int i) {
    const Vector sum = Simd::broadcast(sum_[i]);
    T* out = static_cast<T*>(tile_.out) + i * tile_.out_stride;
    for_lanes<Simd>(
        tile_.head_dim, [&](int at, int lanes) __attribute__((always_inline)) {
          store_count<Simd>(out + at, Simd::div(Simd::load(values_of(i) + at), sum), lanes);
        });
  }

  const AttentionTile& tile_;
  const int width_;  // head_dim in whole vectors
  const float scale_;
  float largest_[kMaxTileQueries];
  float sum_[kMaxTileQueries];
  alignas(64) float queries_[kMaxTileQueries][kMaxWidth];
  alignas(64) float weights_[Simd::kPackedRows][kKeyBlock];
  alignas(64) float values_[kMaxTileQueries * kMaxWidth];  // [num_queries, width_]
  alignas(64) float keys_[kMaxWidth][kKeyBlock];           // of this block, a column each
  alignas(64) float block_values_[kKeyBlock * kMaxWidth];  // [keys, width_]
};

template <typename Simd, typename T>
void attend(const AttentionTile& tile) {
  AttentionRun<Simd, T>(tile).run();
}

}  // namespace gapless::cpu
