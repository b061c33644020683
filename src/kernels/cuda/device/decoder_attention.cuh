// Attention of one new token per row, as decoder_blocks.cu runs it.
//
// unit = kUnitKeys keys of a pair of heads: a stage of the ring, of two pages, each 4 KB of keys
// and 4 KB of values (two heads lie side by side in a page). One warp attends to it, and leaves a
// softmax, its sum and its output per head in global memory; all of a row and head are combined
// later.
//
// Units start at multiples of their size of the sequence, and sums run over lanes and units in
// fixed orders: a row's result does not depend on the rows beside it. Their order is by row, pair
// of heads, place in the sequence; each block takes an equal run of them.
#pragma once

#include "base/limits.h"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless {

inline constexpr int kPairPageBytes = 2 * kPageTokens * kDecoderHeadDim * 2;
static_assert(kUnitKeys == 2 * kPageTokens);

// Of all rows, in shared memory.
struct AttentionRows {
  int num_keys[kMaxRows];        // the new one included; 0: nothing to do
  int seat[kMaxRows];            // row of the page table
  int first_unit[kMaxRows + 1];  // of all rows' pairs of heads

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

// The units of this block.
struct UnitRange {
  int begin, end;

  __device__ UnitRange(const AttentionRows& rows, int num_rows) {
    const std::int64_t total = rows.first_unit[num_rows];
    begin = static_cast<int>(blockIdx.x * total / gridDim.x);
    end = static_cast<int>((blockIdx.x + 1) * total / gridDim.x);
  }
  __device__ int size() const { return end - begin; }
};

// One unit. Found in rising order: `row` is where the search begins.
struct Unit {
  int row = 0, pair = 0, first_key = 0, num_keys = 0;  // num_keys: of the row, from first_key on

  __device__ void find(const AttentionRows& rows, int index) {
    while (rows.first_unit[row + 1] <= index) ++row;
    const int units = rows.units(row), rest = index - rows.first_unit[row];
    pair = rest / units;
    first_key = rest % units * kUnitKeys;
    num_keys = rows.num_keys[row] - first_key;
  }
  __device__ int num_pages() const { return num_keys > kPageTokens ? 2 : 1; }
  __device__ bool has_newest() const { return num_keys <= kUnitKeys; }
};

inline constexpr int kUnitPieces = 4;  // keys and values of two pages

// The ring's producer: asks for the pages of this block's units.
__device__ inline void stream_pages(const DecoderLaunch& p, const DecoderLayer& layer,
                                    const AttentionRows& rows, RingProducer& producer) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t page_elements = std::int64_t{p.num_heads} * kPageTokens * kDecoderHeadDim;
  // Lane 4i + 2j + k: unit i of eight, its page j, keys or values.
  const Bf16* plane = lane % 2 == 0 ? layer.keys : layer.values;
  const UnitRange range(rows, p.num_rows);
  Unit unit;
  for (int first = range.begin; first < range.end; first += kWarp / kUnitPieces) {
    const int index = first + lane / kUnitPieces;
    std::uint64_t own = 0;
    int num_pages = 0;
    if (index < range.end) {
      unit.find(rows, index);
      num_pages = unit.num_pages();
      const int page_index = unit.first_key / kPageTokens + min(lane / 2 % 2, num_pages - 1);
      const std::int64_t page = __ldg(
          p.page_table + std::int64_t{rows.seat[unit.row]} * p.page_table_stride + page_index);
      own = reinterpret_cast<std::uint64_t>(plane + page * page_elements +
                                            unit.pair * (kPairPageBytes / 2));
    }
    __syncwarp();
    const int count = min(kWarp / kUnitPieces, range.end - first);
    for (int i = 0; i < count; ++i) {
      const int source = i * kUnitPieces + lane % kUnitPieces;
      const std::uint64_t from = __shfl_sync(kFullWarp, own, source);
      const int pages = __shfl_sync(kFullWarp, num_pages, source);
      producer.push(0, 2 * pages, kPairPageBytes, reinterpret_cast<const char*>(from));
    }
  }
}

// Cosines and sines of a position, of the dimensions of one head from lane % 8 * 8 on.
struct Angles {
  float4 pairs[kVector / 2];  // cos, sin, cos, sin

  __device__ void load(const DecoderLaunch& p, int position) {
    const int chunk = threadIdx.x % 8, half = p.rotary_dim / 2 / kVector;
    const auto* table = reinterpret_cast<const float4*>(
        p.rope_table + std::int64_t{position} * p.rotary_dim + chunk % half * (2 * kVector));
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) pairs[i] = __ldg(table + i);
  }
};

// Eight dimensions of one head, from lane % 8 * 8 on, of the token's q, k or v.
struct HeadChunk {
  float values[kVector];

  __device__ static void turn(float& own, float other, float cosine, float sine, bool is_real) {
    own = round_to_bf16(is_real ? own * cosine - other * sine : other * sine + own * cosine);
  }

  // All lanes of a warp, each with its `own` dimensions. `rotated`: a pair (j, j + rotary_dim / 2)
  // is turned by its angle. Rounded to bf16, as the cache holds it.
  __device__ void load(const uint4& own, bool rotated, int rotary_dim, const Angles& angles) {
    const int lane = threadIdx.x % kWarp, chunk = lane % 8, half = rotary_dim / 2 / kVector;
    const bool is_real = chunk < half;
    const int other_lane = is_real ? lane + half : lane - half;
    const uint4 other_raw{
        __shfl_sync(kFullWarp, own.x, other_lane), __shfl_sync(kFullWarp, own.y, other_lane),
        __shfl_sync(kFullWarp, own.z, other_lane), __shfl_sync(kFullWarp, own.w, other_lane)};
    unpack(own, values);
    if (!rotated || chunk >= 2 * half) return;
    float other[kVector];
    unpack(other_raw, other);
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const float4 two = angles.pairs[i / 2];
      turn(values[i], other[i], two.x, two.y, is_real);
      turn(values[i + 1], other[i + 1], two.z, two.w, is_real);
    }
  }
};

__device__ __forceinline__ float weight_of_part(float largest, float whole_largest) {
  return largest == -INFINITY ? 0.0f : exp2f(largest - whole_largest);
}

// One warp attends to one unit, lanes 8i to 8i + 7 to every fourth key. Keys from num_keys on do
// not exist. `place`: of the unit's stage. `part`: of the first head.
__device__ __forceinline__ void attend_to_unit(const DecoderLaunch& p,
                                               const HeadChunk (&queries)[2], int num_keys,
                                               std::uint32_t place, std::int64_t part) {
  constexpr int kTurns = kUnitKeys / 4;
  const int lane = threadIdx.x % kWarp;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kDecoderHeadDim));
  // Where there is no second page the first is read again, for nothing: loads without conditions
  // stay together.
  const int second = num_keys > kPageTokens ? 2 : 0;
  const std::uint32_t pages[4] = {place, place + kPairPageBytes, place + second * kPairPageBytes,
                                  place + (second + 1) * kPairPageBytes};
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const std::uint32_t offset = head * (kPairPageBytes / 2) + lane * 16;
    float scores[kTurns];
    float largest = -INFINITY;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      std::uint32_t raw[4];
      load_shared_16(raw, pages[turn / 4 * 2] + offset + turn % 4 * 512);
      float k[kVector];
      unpack(uint4{raw[0], raw[1], raw[2], raw[3]}, k);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) dot += queries[head].values[i] * k[i];
      dot = warp_sum<8>(dot) * scale;
      scores[turn] = turn * 4 + lane / 8 < num_keys ? dot : -INFINITY;
      largest = fmaxf(largest, scores[turn]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 8));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 16));
    const float reference = largest == -INFINITY ? 0.0f : largest;
    float sum = 0, output[kVector] = {};
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const float weight = exp2f(scores[turn] - reference);
      sum += weight;
      std::uint32_t raw[4];
      load_shared_16(raw, pages[turn / 4 * 2 + 1] + offset + turn % 4 * 512);
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
      const std::int64_t at = part + head * kMaxUnits;
      auto* to = reinterpret_cast<float4*>(p.part_outputs + at * kDecoderHeadDim) + lane * 2;
      to[0] = make_float4(output[0], output[1], output[2], output[3]);
      to[1] = make_float4(output[4], output[5], output[6], output[7]);
      if (lane == 0) p.part_softmax[at] = make_float2(largest, sum);
    }
  }
}

// A row's queries of a pair of heads, and the new token's keys and values of it: each lane has
// eight dimensions, from lane % 8 * 8 on, of both queries, and of the keys (of the values where
// lane >= 16) of head lane / 8 % 2.
struct NewToken {
  HeadChunk queries[2];
  uint4 entry;  // of the cache

  // One warp. `qkv`: of this layer. Waits until they are written.
  __device__ void load(const DecoderLaunch& p, const Bf16* qkv, const Unit& unit, int position) {
    const int lane = threadIdx.x % kWarp;
    const bool is_value = lane >= 16;
    Angles angles;
    angles.load(p, position);
    const Bf16* q = qkv + std::int64_t{unit.row} * 3 * p.dim + unit.pair * 2 * kDecoderHeadDim +
                    lane % 8 * kVector;
    const Bf16* const from[3] = {q, q + kDecoderHeadDim,
                                 q + (1 + is_value) * p.dim + lane / 8 % 2 * kDecoderHeadDim};
    uint4 raw[3];
    load_when_written(from, raw);
    queries[0].load(raw[0], true, p.rotary_dim, angles);
    queries[1].load(raw[1], true, p.rotary_dim, angles);
    HeadChunk own;
    own.load(raw[2], !is_value, p.rotary_dim, angles);
    entry = pack(own.values);
  }

  // To the cache.
  __device__ void store(const DecoderLaunch& p, const DecoderLayer& layer, std::int64_t page,
                        const Unit& unit, int position) const {
    const int lane = threadIdx.x % kWarp;
    const std::int64_t head = page * p.num_heads + unit.pair * 2 + lane / 8 % 2;
    const std::int64_t to =
        (head * kPageTokens + position % kPageTokens) * kDecoderHeadDim + lane % 8 * kVector;
    *reinterpret_cast<uint4*>((lane >= 16 ? layer.values : layer.keys) + to) = entry;
  }
};

// Puts its entry where the unit's stage holds its place, and zeros where later tokens' values
// will be: what lies there may be no number, even times zero.
__device__ __forceinline__ void insert_new_token(const uint4& entry, int at_key,
                                                 std::uint32_t place) {
  const int lane = threadIdx.x % kWarp, head = lane / 8 % 2, chunk = lane % 8;
  const int page = at_key / kPageTokens, offset = at_key % kPageTokens;
  const std::uint32_t in_page = head * (kPairPageBytes / 2) + chunk * 16;
  const std::uint32_t value_page = place + (page * 2 + 1) * kPairPageBytes + in_page;
  for (int t = offset + 1 + lane / 16; t < kPageTokens; t += 2) {
    store_shared_16(value_page + t * (kDecoderHeadDim * 2), uint4{0, 0, 0, 0});
  }
  const std::uint32_t to = lane >= 16 ? value_page : place + page * 2 * kPairPageBytes + in_page;
  store_shared_16(to + offset * (kDecoderHeadDim * 2), entry);
  // The copy engine fills this memory again.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
}

// This warp's units of the block's, which lie in the ring from first_stage on. `qkv`: of this
// layer.
__device__ inline void attend_to_units(const DecoderLaunch& p, const DecoderLayer& layer,
                                       const Bf16* qkv, const AttentionRows& rows,
                                       const StageRing& ring, unsigned first_stage) {
  const unsigned warp = threadIdx.x / kWarp;
  const UnitRange range(rows, p.num_rows);
  Unit unit;
  NewToken token;
  int token_row = -1, token_pair = -1;
  for (unsigned i = (warp - first_stage) % kRingConsumers; i < static_cast<unsigned>(range.size());
       i += kRingConsumers) {
    unit.find(rows, range.begin + static_cast<int>(i));
    const int position = rows.num_keys[unit.row] - 1;
    const std::int64_t page =
        unit.has_newest()
            ? __ldg(p.page_table + std::int64_t{rows.seat[unit.row]} * p.page_table_stride +
                    position / kPageTokens)
            : 0;
    if (unit.row != token_row || unit.pair != token_pair) {
      token_row = unit.row, token_pair = unit.pair;
      token.load(p, qkv, unit, position);
    }
    const std::uint32_t place = ring.wait(first_stage + i);
    if (unit.has_newest()) {
      token.store(p, layer, page, unit, position);
      insert_new_token(token.entry, unit.num_keys - 1, place);
    }
    attend_to_unit(p, token.queries, unit.num_keys, place,
                   (std::int64_t{unit.row} * p.num_heads + unit.pair * 2) * kMaxUnits +
                       unit.first_key / kUnitKeys);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) ring.give_back(first_stage + i);
  }
}

// This block's share of rows and heads: the parts of all units become the attention's output. One
// warp each, two dimensions a lane.
template <int kRows>
__device__ inline void combine_units(const DecoderLaunch& p, const AttentionRows& rows) {
  constexpr int kBatch = 32;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int i = warp * gridDim.x + blockIdx.x; i < p.num_rows * p.num_heads;
       i += gridDim.x * kProductWarps) {
    const int row = i / p.num_heads, head = i % p.num_heads;
    const int count = rows.units(row);
    if (count == 0) continue;
    const std::int64_t first = std::int64_t{i} * kMaxUnits;
    const auto* outputs =
        reinterpret_cast<const float2*>(p.part_outputs + first * kDecoderHeadDim) + lane;
    const float2 none = make_float2(-INFINITY, 0);
    const float2 lower = lane < count ? __ldcg(p.part_softmax + first + lane) : none;
    const float2 upper =
        lane + kWarp < count ? __ldcg(p.part_softmax + first + kWarp + lane) : none;
    float low = 0, high = 0, lower_weight = 0, upper_weight = 0;
    for (int begin = 0; begin < count; begin += kBatch) {
      float2 parts[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        parts[k] = begin + k < count ? __ldcg(outputs + (begin + k) * (kDecoderHeadDim / 2))
                                     : make_float2(0, 0);
      }
      if (begin == 0) {
        const float largest = warp_max(fmaxf(lower.x, upper.x));
        lower_weight = weight_of_part(lower.x, largest);
        upper_weight = weight_of_part(upper.x, largest);
      }
      const float own = begin < kWarp ? lower_weight : upper_weight;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float weight = __shfl_sync(kFullWarp, own, (begin + k) % kWarp);
        low += weight * parts[k].x;
        high += weight * parts[k].y;
      }
    }
    const float sum = warp_sum(lower_weight * lower.y + upper_weight * upper.y);
    const int at = fragment_index<kRows>(row, head * kDecoderHeadDim + 2 * lane);
    *reinterpret_cast<std::uint32_t*>(p.wide + at) = pack_bf16x2(low / sum, high / sum);
  }
}

}  // namespace gapless
