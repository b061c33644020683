// Attention of one new token per row, as decoder_blocks.cu runs it.
//
//   unit  = kUnitKeys keys of a pair of heads: two pages, each a 4 KB granule of keys and one of
//           values (two heads lie side by side in a page). One warp attends to it.
//   split = kSplitUnits units. Half of a block's computing warps take one, and leave a softmax, its
//           sum and its output per head in global memory.
//   Splits start at multiples of their size of the sequence, and sums run over lanes, units and
//   splits in fixed orders: a row's result does not depend on the rows beside it.
//
// The order of splits is by row, pair of heads, split; a block takes those that start in its share
// of all units.
#pragma once

#include "base/limits.h"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/granule_ring.cuh"

namespace gapless {

inline constexpr int kPairPageBytes = 2 * kPageTokens * kDecoderHeadDim * 2;
static_assert(kPairPageBytes == kGranuleBytes);
static_assert(kUnitKeys == 2 * kPageTokens);

// Of all rows, in shared memory.
struct AttentionRows {
  int num_keys[kMaxRows];       // the new one included; 0: nothing to do
  int seat[kMaxRows];           // row of the page table
  int first_unit[kMaxRows + 1]; // of all rows' pairs of heads

  __device__ int units(int row) const { return (num_keys[row] + kUnitKeys - 1) / kUnitKeys; }

  // One warp.
  __device__ void load(const DecoderLaunch& p) {
    const int lane = threadIdx.x % kWarp;
    int before = 0;
    for (int base = 0; base < p.num_rows; base += kWarp) {
      const int row = base + lane;
      int own = 0;
      if (row < p.num_rows) {
        const AttentionSequence sequence = p.sequences[row];
        num_keys[row] = sequence.num_tokens == 0 ? 0 : sequence.num_cached + 1;
        seat[row] = sequence.row;
        own = units(row) * (p.num_heads / 2);
      }
      int sum = own;
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int lower = __shfl_up_sync(kFullWarp, sum, offset);
        if (lane >= offset) sum += lower;
      }
      if (row < p.num_rows) first_unit[row] = before + sum - own;
      before += __shfl_sync(kFullWarp, sum, kWarp - 1);
    }
    if (lane == 0) first_unit[p.num_rows] = before;
    __syncwarp();
  }
};

// The splits of one block, in order.
class SplitWalk {
 public:
  int row, pair, split;

  __device__ SplitWalk(const AttentionRows& rows, int num_rows, int num_heads)
      : rows_(rows), num_rows_(num_rows), num_pairs_(num_heads / 2) {
    const std::int64_t total = rows.first_unit[num_rows];
    const int begin = static_cast<int>(blockIdx.x * total / gridDim.x);
    end_ = static_cast<int>((blockIdx.x + 1) * total / gridDim.x);
    for (row = 0; row < num_rows && rows.first_unit[row + 1] <= begin;) ++row;
    if (row == num_rows) return;
    row_units_ = rows.units(row);
    const int skip = begin - rows.first_unit[row];
    pair = skip / row_units_;
    split = (skip % row_units_ + kSplitUnits - 1) / kSplitUnits;
    settle();
  }

  __device__ bool done() const {
    return row >= num_rows_ ||
           rows_.first_unit[row] + pair * row_units_ + split * kSplitUnits >= end_;
  }
  __device__ void next() {
    ++split;
    settle();
  }
  __device__ int num_units() const { return min(kSplitUnits, row_units_ - split * kSplitUnits); }
  // Pages of unit `unit` of this split: 1 or 2.
  __device__ int num_pages(int unit) const {
    const int keys = rows_.num_keys[row] - (split * kSplitUnits + unit) * kUnitKeys;
    return keys > kPageTokens ? 2 : 1;
  }
  __device__ int num_granules() const {
    const int units = num_units();
    return (units - 1) * 4 + num_pages(units - 1) * 2;
  }

 private:
  // Steps over the ends of pairs and rows.
  __device__ void settle() {
    if (split * kSplitUnits < row_units_) return;
    split = 0;
    if (++pair < num_pairs_) return;
    pair = 0;
    do ++row;
    while (row < num_rows_ && rows_.num_keys[row] == 0);
    if (row < num_rows_) row_units_ = rows_.units(row);
  }

  const AttentionRows& rows_;
  const int num_rows_, num_pairs_;
  int end_ = 0, row_units_ = 1;
};

// The ring's producer: asks for the pages of this block's splits.
__device__ inline void stream_pages(const DecoderLaunch& p, const DecoderLayer& layer,
                                    const AttentionRows& rows, RingProducer& producer) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t page_elements = std::int64_t{p.num_heads} * kPageTokens * kDecoderHeadDim;
  const Bf16* plane = lane % 2 == 0 ? layer.keys : layer.values;
  for (SplitWalk walk(rows, p.num_rows, p.num_heads); !walk.done(); walk.next()) {
    // Lane 2i + j: page i of the split, keys or values.
    const int page_index = walk.split * kSplitUnits * 2 + lane / 2;
    const bool exists = lane / 2 < 2 * kSplitUnits &&
                        page_index * kPageTokens < rows.num_keys[walk.row];
    const std::int64_t page =
        exists ? __ldg(p.page_table + std::int64_t{rows.seat[walk.row]} * p.page_table_stride +
                       page_index)
               : 0;
    const auto own = reinterpret_cast<std::uint64_t>(plane + page * page_elements +
                                                     walk.pair * (kPairPageBytes / 2));
    for (int unit = 0; unit < walk.num_units(); ++unit) {
      const std::uint64_t from = __shfl_sync(kFullWarp, own, (unit * 4 + lane) % kWarp);
      producer.push(2 * walk.num_pages(unit), reinterpret_cast<const char*>(from));
    }
  }
}

// Eight dimensions of one head, from lane % 8 * 8 on, of the token's q or k.
struct HeadChunk {
  float values[kVector];

  // `rotated`: a pair (j, j + rotary_dim / 2) is turned by its angle. Rounded to bf16, as the cache
  // holds it.
  __device__ void load(const Bf16* head, bool rotated, int rotary_dim, const float* angles) {
    const int chunk = threadIdx.x % 8, half = rotary_dim / 2 / kVector;
    const uint4 own = __ldcg(reinterpret_cast<const uint4*>(head + chunk * kVector));
    unpack(own, values);
    if (!rotated || chunk >= 2 * half) return;
    const bool is_real = chunk < half;
    const int other_chunk = is_real ? chunk + half : chunk - half;
    float other[kVector];
    unpack(__ldcg(reinterpret_cast<const uint4*>(head + other_chunk * kVector)), other);
    const float* table = angles + min(chunk, other_chunk) * kVector * 2;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float cosine = __ldg(table + 2 * i), sine = __ldg(table + 2 * i + 1);
      const float turned = is_real ? values[i] * cosine - other[i] * sine
                                   : other[i] * sine + values[i] * cosine;
      values[i] = round_to_bf16(turned);
    }
  }
};

// What a unit, or a split, leaves of one head.
struct HeadPart {
  float largest;  // scaled score, in powers of two
  float sum;
  float output[kDecoderHeadDim];
};

__device__ __forceinline__ float weight_of_part(float largest, float whole_largest) {
  return largest == -INFINITY ? 0.0f : exp2f(largest - whole_largest);
}

// One warp attends to one unit, lanes 8i to 8i + 7 to every fourth key. Keys from num_keys on (in
// the unit) do not exist. `granule(i)`: keys of page i / 2, or its values.
template <typename Granule>
__device__ __forceinline__ void attend_to_unit(const HeadChunk (&queries)[2], int num_keys,
                                               const Granule& granule, HeadPart (&parts)[2]) {
  constexpr int kTurns = kUnitKeys / 4;
  const int lane = threadIdx.x % kWarp;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kDecoderHeadDim));
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const std::uint32_t offset = head * (kPairPageBytes / 2) + lane * 16;
    float scores[kTurns];
    float largest = -INFINITY;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      scores[turn] = -INFINITY;
      if (turn >= kTurns / 2 && num_keys <= kPageTokens) continue;
      std::uint32_t raw[4];
      load_shared_16(raw, granule(turn / 4 * 2) + offset + turn % 4 * 512);
      float k[kVector];
      unpack(uint4{raw[0], raw[1], raw[2], raw[3]}, k);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) dot += queries[head].values[i] * k[i];
      dot = warp_sum<8>(dot) * scale;
      if (turn * 4 + lane / 8 < num_keys) scores[turn] = dot;
      largest = fmaxf(largest, scores[turn]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 8));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 16));
    const float reference = largest == -INFINITY ? 0.0f : largest;
    float sum = 0, output[kVector] = {};
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn >= kTurns / 2 && num_keys <= kPageTokens) continue;
      const float weight = exp2f(scores[turn] - reference);
      sum += weight;
      std::uint32_t raw[4];
      load_shared_16(raw, granule(turn / 4 * 2 + 1) + offset + turn % 4 * 512);
      float v[kVector];
      unpack(uint4{raw[0], raw[1], raw[2], raw[3]}, v);
#pragma unroll
      for (int i = 0; i < kVector; ++i) output[i] += weight * v[i];
    }
#pragma unroll
    for (int step = 8; step < kWarp; step *= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, step);
#pragma unroll
      for (int i = 0; i < kVector; ++i) output[i] += __shfl_xor_sync(kFullWarp, output[i], step);
    }
    if (lane < 8) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) parts[head].output[lane * kVector + i] = output[i];
      if (lane == 0) parts[head].largest = largest, parts[head].sum = sum;
    }
  }
}

// The new token's keys and values of a pair of heads, to the cache and to `staging`
// ([key, value][head][kDecoderHeadDim] in shared memory). One warp.
__device__ inline void cache_new_token(const DecoderLaunch& p, const DecoderLayer& layer,
                                       const AttentionRows& rows, const SplitWalk& walk,
                                       const float* angles, char* staging) {
  const int lane = threadIdx.x % kWarp, head = lane / 8 % 2, chunk = lane % 8;
  const bool is_value = lane >= 16;
  const int position = rows.num_keys[walk.row] - 1;
  const std::int64_t page = __ldg(
      p.page_table + std::int64_t{rows.seat[walk.row]} * p.page_table_stride +
      position / kPageTokens);
  HeadChunk own;
  own.load(p.qkv + (std::int64_t{walk.row} * 3 + 1 + is_value) * p.dim +
               (walk.pair * 2 + head) * kDecoderHeadDim,
           !is_value, p.rotary_dim, angles);
  const uint4 packed = pack(own.values);
  const std::int64_t to = ((page * p.num_heads + walk.pair * 2 + head) * kPageTokens +
                           position % kPageTokens) *
                              kDecoderHeadDim +
                          chunk * kVector;
  *reinterpret_cast<uint4*>((is_value ? layer.values : layer.keys) + to) = packed;
  *reinterpret_cast<uint4*>(staging + lane * 16) = packed;
}

// Puts them where the unit's granules hold their place, and zeros where later tokens' values will
// be: what lies there may be no number, even times zero.
template <typename Granule>
__device__ __forceinline__ void insert_new_token(const char* staging, int at_key,
                                                 const Granule& granule) {
  const int lane = threadIdx.x % kWarp, head = lane / 8 % 2, chunk = lane % 8;
  const int page = at_key / kPageTokens, offset = at_key % kPageTokens;
  const std::uint32_t in_page = head * (kPairPageBytes / 2) + chunk * 16;
  const std::uint32_t value_page = granule(page * 2 + 1) + in_page;
  for (int t = offset + 1 + lane / 16; t < kPageTokens; t += 2) {
    store_shared_16(value_page + t * (kDecoderHeadDim * 2), uint4{0, 0, 0, 0});
  }
  __syncwarp();  // of `staging`
  const std::uint32_t to = lane >= 16 ? value_page : granule(page * 2) + in_page;
  store_shared_16(to + offset * (kDecoderHeadDim * 2),
                  *reinterpret_cast<const uint4*>(staging + lane * 16));
  // The copy engine fills these granules again.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
}

// One warp's unit of a split.
__device__ inline void attend(const DecoderLaunch& p, const DecoderLayer& layer,
                              const AttentionRows& rows, const SplitWalk& walk, int unit,
                              const GranuleRing& ring, const RingCursor& cursor,
                              HeadPart (&parts)[2]) {
  const int lane = threadIdx.x % kWarp;
  const int num_units = walk.num_units();
  const int num_keys = rows.num_keys[walk.row];
  const int first_key = (walk.split * kSplitUnits + unit) * kUnitKeys;
  const int newest = num_keys - 1;
  const Bf16* q = p.qkv + std::int64_t{walk.row} * 3 * p.dim + walk.pair * 2 * kDecoderHeadDim;
  const float* angles = p.rope_table + std::int64_t{newest} * p.rotary_dim;
  HeadChunk queries[2];
  const bool has_newest = unit == num_units - 1 && newest - first_key < kUnitKeys;
  auto* staging = reinterpret_cast<char*>(parts);  // until the unit is done
  static_assert(sizeof(parts) >= 4 * kDecoderHeadDim * 2);
  if (unit < num_units) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      queries[head].load(q + head * kDecoderHeadDim, true, p.rotary_dim, angles);
    }
  }
  if (has_newest) cache_new_token(p, layer, rows, walk, angles, staging);
  const auto granule = [&](int i) { return ring.granule(cursor.granule + unit * 4 + i); };
  for (int i = 0; i < num_units; ++i) {
    cursor.wait(ring, i);
    if (i == unit) {
      if (has_newest) insert_new_token(staging, newest - first_key, granule);
      attend_to_unit(queries, num_keys - first_key, granule, parts);
      __syncwarp();
    }
    if (lane == 0) cursor.give_back(ring, i);
  }
}

// A split that is another half's.
__device__ inline void pass_by(int num_units, const GranuleRing& ring, const RingCursor& cursor) {
  for (int i = 0; i < num_units; ++i) {
    cursor.wait(ring, i);
    if (threadIdx.x % kWarp == 0) cursor.give_back(ring, i);
  }
}

// A split's units become one part per head in global memory. Half of the computing warps, one
// thread per head and dimension.
__device__ inline void store_split(const DecoderLaunch& p, const SplitWalk& walk, int thread,
                                   const HeadPart (&parts)[kSplitUnits][2]) {
  static_assert(kSplitUnits * kWarp == 2 * kDecoderHeadDim);
  const int num_units = walk.num_units();
  const int head = thread / kDecoderHeadDim, d = thread % kDecoderHeadDim;
  float largest = -INFINITY;
  for (int i = 0; i < num_units; ++i) largest = fmaxf(largest, parts[i][head].largest);
  float sum = 0, output = 0;
  for (int i = 0; i < num_units; ++i) {
    const HeadPart& part = parts[i][head];
    const float weight = weight_of_part(part.largest, largest);
    sum += weight * part.sum;
    output += weight * part.output[d];
  }
  const std::int64_t at =
      (std::int64_t{walk.row} * p.num_heads + walk.pair * 2 + head) * kMaxDecoderSplits +
      walk.split;
  p.split_outputs[at * kDecoderHeadDim + d] = output;
  if (d == 0) p.split_softmax[at] = make_float2(largest, sum);
}

// All splits of this block, the halves of the computing warps by turns. `parts`: [2 halves].
__device__ inline void attend_to_splits(const DecoderLaunch& p, const DecoderLayer& layer,
                                        const AttentionRows& rows, const GranuleRing& ring,
                                        RingCursor& cursor, HeadPart (*parts)[kSplitUnits][2]) {
  constexpr int kHalfThreads = kSplitUnits * kWarp;
  const int half = threadIdx.x / kHalfThreads, thread = threadIdx.x % kHalfThreads;
  const int unit = thread / kWarp;
  int turn = 0;
  for (SplitWalk walk(rows, p.num_rows, p.num_heads); !walk.done(); walk.next(), turn ^= 1) {
    if (turn == half) {
      attend(p, layer, rows, walk, unit, ring, cursor, parts[half][unit]);
      named_barrier(2 + half, kHalfThreads);
      store_split(p, walk, thread, parts[half]);
      named_barrier(2 + half, kHalfThreads);
    } else {
      pass_by(walk.num_units(), ring, cursor);
    }
    cursor.advance(ring, walk.num_granules(), walk.num_units());
  }
}

// This block's share of rows and heads: the splits become the attention's output. One warp each,
// two dimensions a lane.
template <int kRows>
__device__ inline void combine_splits(const DecoderLaunch& p, const AttentionRows& rows) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int i = warp * gridDim.x + blockIdx.x; i < p.num_rows * p.num_heads;
       i += gridDim.x * kProductWarps) {
    const int row = i / p.num_heads, head = i % p.num_heads;
    const int num_splits = (rows.units(row) + kSplitUnits - 1) / kSplitUnits;
    if (num_splits == 0) continue;
    const std::int64_t first = std::int64_t{i} * kMaxDecoderSplits;
    const float2 softmax = lane < num_splits ? __ldcg(p.split_softmax + first + lane)
                                             : make_float2(-INFINITY, 0);
    const float weight = weight_of_part(softmax.x, warp_max(softmax.x));
    const auto* outputs =
        reinterpret_cast<const float2*>(p.split_outputs + first * kDecoderHeadDim) + lane;
    float sum = 0, low = 0, high = 0;
#pragma unroll 8
    for (int split = 0; split < num_splits; ++split) {
      const float2 part = __ldcg(outputs + split * (kDecoderHeadDim / 2));
      const float w = __shfl_sync(kFullWarp, weight, split);
      sum += w * __shfl_sync(kFullWarp, softmax.y, split);
      low += w * part.x;
      high += w * part.y;
    }
    const int at = fragment_index<kRows>(row, head * kDecoderHeadDim + 2 * lane);
    *reinterpret_cast<std::uint32_t*>(p.wide + at) = pack_bf16x2(low / sum, high / sum);
  }
}

}  // namespace gapless
