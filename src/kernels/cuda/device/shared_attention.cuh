// Attention of several rows to a unit that they share (attention_rows.h), by one warp: what attention_unit.cuh computes for each of
// them alone, bit for bit, but the unit is read once, by the ring and by the warp.
//
// Four rows at a time. Scores, per page and head: columns 2q and 2q + 1 of B hold the q-th row's query, in the orders of
// attention_unit.cuh. So lanes of quarter q have that row's scores, of both heads and all pages, and add up its softmax in the order
// in which a row's alone is added up: pages of even numbers, pages of odd numbers, these two, then over the groups. Columns of a
// product do not depend on each other, and alone a head's zeros in the other head's product add nothing.
//
// Output, per head: the values stay in registers, and rows are multiplied one after the other with the fragments that a row has
// alone. All of the kernel's registers are spoken for elsewhere (decoder_block.cuh), so this holds few: one head's values and two
// rows' sums.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "kernels/cuda/device/attention_unit.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_units.cuh"
#include "kernels/cuda/device/head_chunk.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless {

inline constexpr int kRowsAtOnce = 4;
inline constexpr int kOutputRows = 2;  // whose outputs are summed up at once
static_assert(kRowsAtOnce % kOutputRows == 0);

// The queries of four rows for a pair of heads as B fragments: columns 2q and 2q + 1 have the q-th row's. One warp. `qkv`: of this
// layer; waits until they are written. row_of(i): the i-th of the rows.
template <typename Element, typename RowOf>
__device__ __forceinline__ void load_queries(const DecoderLaunch& p, const Bf16* qkv,
                                             const AttentionRows& rows, int heads,
                                             const RowOf& row_of, int lane,
                                             UnitQuery<Element>& query) {
  // Of row 2i + lane / 16 a lane has eight dimensions, from lane % 8 * 8 on, of head lane / 8 % 2.
  const int column = (heads * 2 + lane / 8 % 2) * kDecoderHeadDim + lane % 8 * kVector;
  const Bf16* addresses[2];
  Angles angles[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_of(2 * i + lane / 16);
    addresses[i] = qkv + std::int64_t{row} * 3 * p.dim + column;
    angles[i].load(p, rows.num_keys[row] - 1, lane);
  }
  uint4 raw[2];
  load_when_written(addresses, raw);
  std::uint32_t pairs[2][kVector / 2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    HeadChunk turned;
    turned.load_rotated(raw[i], p.rotary_dim, angles[i], lane);
#pragma unroll
    for (int k = 0; k < kVector / 2; ++k) {
      pairs[i][k] = UnitElement<Element>::round(turned.values[2 * k], turned.values[2 * k + 1]);
    }
  }
  const int group = lane / 4, first = lane % 4 * 2 + group % 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      const int from = group / 2 % 2 * 16 + head * 8 + (i < 4 ? first : first ^ 1);
      const std::uint32_t lower = __shfl_sync(kFullWarp, pairs[0][i % 4], from);
      const std::uint32_t upper = __shfl_sync(kFullWarp, pairs[1][i % 4], from);
      query.pairs[head][i] = group < 4 ? lower : upper;
    }
  }
}

// A unit's output of one row and head. Four lanes have the same dimensions: each adds up two of them, in the order of
// attend_to_unit.
__device__ __forceinline__ void store_head_output(const DecoderLaunch& p,
                                                  const float (&output)[kVector / 2][4], int part,
                                                  int lane, bool exists) {
  const int group = lane / 4, quarter = lane % 4;
  const bool is_upper = quarter >= 2, is_odd = quarter % 2 == 1;
  float eight[kVector], four[4], two[2];
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    eight[i] = output[i / 2][i % 2 * 2] + output[i / 2][i % 2 * 2 + 1];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four[i] = (is_upper ? eight[i + 4] : eight[i]) +
              __shfl_xor_sync(kFullWarp, is_upper ? eight[i] : eight[i + 4], 18);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    two[i] = (is_odd ? four[i + 2] : four[i]) +
             __shfl_xor_sync(kFullWarp, is_odd ? four[i] : four[i + 2], 9);
  }
  const int column = (group ^ 2 * quarter) * kVector + is_upper * 4 + is_odd * 2;
  if (!exists) return;
  *reinterpret_cast<float2*>(p.part_outputs + part * kDecoderHeadDim + column) =
      make_float2(two[0], two[1]);
}

// One warp, up to four rows, whose queries are the columns of `query`. The unit is at `place`; all its keys exist. `part`: as in
// attend_to_unit, of row `lane`.
template <typename Element>
__device__ __forceinline__ void attend_rows_to_unit(const DecoderLaunch& p,
                                                    const UnitQuery<Element>& query, int num_rows,
                                                    std::uint32_t place, int part, int lane) {
  using Of = UnitElement<Element>;
  using Shape = PairShape<Element>;
  constexpr int kPages = Shape::kPages;
  const int group = lane / 4, quarter = lane % 4;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kDecoderHeadDim));

  float scores[kPages][2][2];  // head; keys group, group + 8
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int page = 0; page < kPages; ++page) {
    typename Of::Keys keys[2];  // head
    float sums[2][4] = {};
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      keys[head].load(place + page * Shape::kPageBytes + head * Shape::kHeadBytes, lane);
    }
#pragma unroll
    for (int step = 0; step < kDecoderHeadDim / 16; ++step) {
#pragma unroll
      for (int head = 0; head < 2; ++head) {
        std::uint32_t a[4];
        keys[head].fragment(step, a);
        const std::uint32_t(&b)[8] = query.pairs[head];
        Of::multiply(sums[head], a, b[2 * step], b[2 * step + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = i / 2, key = i % 2;
      const float(&own)[4] = sums[head];
      float& score = scores[page][head][key];
      // Not to become one operation with what follows: alone it does not either.
      score = __fmul_rn(Of::Keys::score(own[2 * key], own[2 * key + 1], lane), scale);
      largest[head] = fmaxf(largest[head], score);
    }
  }

  // Lanes of one row: every fourth.
  std::uint32_t parts[kPages][2][2];  // head; two keys each
#pragma unroll
  for (int head = 0; head < 2; ++head) {
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) {
      largest[head] = fmaxf(largest[head], __shfl_xor_sync(kFullWarp, largest[head], step));
    }
    const float reference = largest[head] == -INFINITY ? 0.0f : largest[head];
    float sums[2] = {};  // of even pages, of odd ones
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const float low = power_of_two(scores[page][head][0] - reference);
      const float high = power_of_two(scores[page][head][1] - reference);
      sums[page % 2] += low + high;
      split_weights<Element>(low, high, lane, parts[page][head]);
    }
    float sum = sums[0] + sums[1];
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
    if (lane < num_rows) {
      p.part_softmax[part + head * kMaxUnits] = make_float2(largest[head], sum);
    }
  }

  // Rows that are not there are computed like the last one, and not stored.
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    typename Of::Values values[kPages];
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      values[page].load(place + page * Shape::kPageBytes + head * Shape::kHeadBytes +
                            Shape::kValuesAt + quarter * Shape::kKeyBytes,
                        group ^ 2 * quarter);
    }
#pragma unroll 1
    for (int row = 0; row < num_rows; row += kOutputRows) {
      float outputs[kOutputRows][kVector / 2][4] = {};  // pair of dimensions
#pragma unroll
      for (int page = 0; page < kPages; ++page) {
        std::uint32_t b[kOutputRows][2];
#pragma unroll
        for (int i = 0; i < kOutputRows; ++i)
          weight_fragment(parts[page][head], row + i, lane, b[i]);
#pragma unroll
        for (int pair = 0; pair < kVector / 2; ++pair) {
          std::uint32_t a[4];
          values[page].fragment(pair, a);
#pragma unroll
          for (int i = 0; i < kOutputRows; ++i) Of::multiply(outputs[i][pair], a, b[i][0], b[i][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < kOutputRows; ++i) {
        const int at = __shfl_sync(kFullWarp, part, row + i) + head * kMaxUnits;
        store_head_output(p, outputs[i], at, lane, row + i < num_rows);
      }
    }
  }
}

// One warp: all rows of a set. The unit is, or will be, in `stage`.
template <typename Element>
__device__ __forceinline__ void attend_to_shared_unit(const DecoderLaunch& p, const Bf16* qkv,
                                                      const AttentionRows& rows,
                                                      const PairUnit<Element>& unit,
                                                      const StageRing& ring, unsigned stage) {
  using Shape = PairShape<Element>;
  // The compiler is to compute here what follows from it, and not ahead of the loop over the layers, where it would keep it.
  int lane = threadIdx.x % kWarp;
  asm volatile("" : "+r"(lane));
  const std::uint8_t* members = rows.members[unit.row()];
  const int num_members = rows.num_members[unit.row()];
#pragma unroll 1
  for (int first = 0; first < num_members; first += kRowsAtOnce) {
    // Instead of a row that the set does not have, its last one.
    const auto row_of = [&](int i) -> int { return members[min(first + i, num_members - 1)]; };
    const int part =
        (row_of(lane) * p.num_heads + unit.heads * 2) * kMaxUnits + unit.first_key / Shape::kKeys;
    UnitQuery<Element> query;
    load_queries<Element>(p, qkv, rows, unit.heads, row_of, lane, query);
    const std::uint32_t place = ring.wait(stage);
    attend_rows_to_unit<Element>(p, query, min(num_members - first, kRowsAtOnce), place, part,
                                 lane);
  }
  ring.give_back(stage);
}

}  // namespace gapless
