// Attention of one new token per row, as decoder_kernel.cuh runs it.
//
// unit = some pages of a pair of heads (two heads lie side by side in a page), keys and values:
// two pages of bfloat16, four of e4m3 (decoder_units.cuh). One warp attends to it, and leaves a
// softmax, its sum and its output per head in global memory; all of a row and head are combined
// later. A unit that several rows share is read once (shared_attention.cuh).
//
// Sums run over lanes and units in fixed orders: a row's result does not depend on the rows beside
// it.
#pragma once

#include "base/limits.h"
#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/attention_unit.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_scales.cuh"
#include "kernels/cuda/device/decoder_units.cuh"
#include "kernels/cuda/device/head_chunk.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/device/shared_attention.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless {

__device__ __forceinline__ float weight_of_part(float largest, float whole_largest) {
  return largest == -INFINITY ? 0.0f : exp2f(largest - whole_largest);
}

// A row's queries of a pair of heads, and the new token's keys and values of it: of these each lane
// has eight dimensions, from lane % 8 * 8 on, of the keys (of the values where lane >= 16) of head
// lane / 8 % 2.
template <typename S, typename Element, typename Query>
struct NewToken {
  using Vector = KvVector<Element>;

  Query query;
  typename Vector::Raw entry;  // of the cache

  // One warp. `qkv`: of this layer. Waits until they are written.
  __device__ void load(const DecoderLaunch& p, int layer, const Bf16* qkv,
                       const PairUnit<Element>& unit, int position) {
    const int lane = afresh(threadIdx.x) % kWarp;
    const bool is_upper = lane >= 16;  // has a query and values, not keys
    Angles angles;
    angles.load(p, position, lane);
    [[maybe_unused]] PairScales scales;
    if constexpr (S::kHasExperts) scales.begin(p, layer, unit.heads, position);
    const Bf16* from = qkv + std::int64_t{unit.row()} * 3 * p.dim +
                       (unit.heads * 2 + lane / 8 % 2) * kDecoderHeadDim + lane % 8 * kVector;
    const Bf16* const addresses[2] = {from + (is_upper ? 0 : p.dim), from + 2 * p.dim};
    uint4 raw[2];
    load_when_written(addresses, raw);
    if constexpr (S::kHasExperts) {
      scales.finish(p, layer, unit.row(), unit.heads);
      const int head = lane / 8 % 2;
      if (is_upper) raw[0] = scaled(raw[0], head == 0 ? scales.query[0] : scales.query[1]);
      raw[1] = scaled(raw[1], head == 0 ? scales.value[0] : scales.value[1]);
    }
    HeadChunk turned;
    turned.load_rotated(raw[0], p.rotary_dim, angles, lane);
    query.load(turned.values, 16);
    float own[kVector];
    unpack(raw[1], own);
#pragma unroll
    for (int i = 0; i < kVector; ++i) own[i] = is_upper ? own[i] : turned.values[i];
    entry = Vector::pack(own);
  }

  // To the cache.
  __device__ void store(const DecoderLaunch& p, const DecoderLayer& layer, std::int64_t page,
                        const PairUnit<Element>& unit, int position) const {
    const int lane = afresh(threadIdx.x) % kWarp;
    const KvLayout layout{.num_heads = p.num_heads, .head_dim = kDecoderHeadDim};
    const int head = unit.heads * 2 + lane / 8 % 2;
    const std::int64_t to = page * layout.page_size() +
                            layout.in_page(KvPart::kKeys, head, position % kPageTokens) +
                            lane % 8 * kVector;
    auto* first = static_cast<Element*>(lane >= 16 ? layer.values : layer.pages);
    *reinterpret_cast<typename Vector::Raw*>(first + to) = entry;
  }
};

// Puts its entry where the unit at `place` holds its own, and zeros where later tokens' values
// will be: what lies there may be no number, even times zero.
template <typename Element>
__device__ __forceinline__ void insert_new_token(const typename KvVector<Element>::Raw& entry,
                                                 int at_key, std::uint32_t place) {
  using Shape = PairShape<Element>;
  using Raw = typename KvVector<Element>::Raw;
  const int lane = afresh(threadIdx.x) % kWarp, head = lane / 8 % 2, chunk = lane % 8;
  const int page = at_key / kPageTokens, offset = at_key % kPageTokens;
  const std::uint32_t keys =
      place + page * Shape::kPageBytes + head * Shape::kHeadBytes + chunk * Shape::kVectorBytes;
  const std::uint32_t values = keys + Shape::kValuesAt;
  for (int t = offset + 1 + lane / 16; t < kPageTokens; t += 2) {
    store_shared_elements(values + t * Shape::kKeyBytes, Raw{});
  }
  store_shared_elements((lane >= 16 ? values : keys) + offset * Shape::kKeyBytes, entry);
  // The copy engine fills this memory again.
  publish_shared_to_engines();
  __syncwarp();
}

// This warp's units of the block's, which lie in the ring from first_stage on: those that rows share, then those of rows. `qkv`:
// of this layer. `query`: where a row's queries will be.
template <typename S, typename Element, int kRows, typename Query>
__device__ inline void attend_to_units(const DecoderLaunch& p, int layer_index,
                                       const DecoderLayer& layer, const Bf16* qkv,
                                       const AttentionRows& rows, const StageRing& ring,
                                       unsigned first_stage, const Query& query) {
  const unsigned warp = afresh(threadIdx.x) / kWarp;
  const unsigned num_shared = rows.own_shared.size(), num_units = rows.num_units();
  using Shape = PairShape<Element>;
  PairUnit<Element> unit;
  unsigned i = (warp - first_stage) % kRingConsumers;
  if constexpr (kSharesUnits<S, kRows, Element>) {
    for (; i < num_shared; i += kRingConsumers) {
      unit.find(rows, rows.unit_at(static_cast<int>(i)));
      attend_to_shared_unit<Element>(p, qkv, rows, unit, ring, first_stage + i);
    }
  }
  NewToken<S, Element, Query> token{query, {}};
  int token_row = -1, token_pair = -1;
  const int first_own = rows.own.begin - static_cast<int>(num_shared);
  for (; i < num_units; i += kRingConsumers) {
    unit.find_own(rows, first_own + static_cast<int>(i));
    const int position = rows.num_keys[unit.row()] - 1;
    const std::int64_t page =
        unit.has_newest()
            ? __ldg(p.page_table + std::int64_t{rows.seat[unit.row()]} * p.page_table_stride +
                    position / kPageTokens)
            : 0;
    if (unit.row() != token_row || unit.heads != token_pair) {
      token_row = unit.row(), token_pair = unit.heads;
      token.load(p, layer_index, qkv, unit, position);
    }
    const std::uint32_t place = ring.wait(first_stage + i);
    if (unit.has_newest()) {
      token.store(p, layer, page, unit, position);
      insert_new_token<Element>(token.entry, unit.num_keys - 1, place);
    }
    const std::int64_t part =
        (std::int64_t{unit.row()} * p.num_heads + unit.heads * 2) * max_units_of<S>(p) +
        unit.first_key / Shape::kKeys;
    constexpr int kPartStride = S::kHasExperts ? 0 : kMaxUnits;
    attend_to_unit<Element, kPartStride>(p, token.query, unit.num_keys, place, part,
                                         max_units_of<S>(p));
    ring.give_back(first_stage + i);
  }
}

// This block's share of rows and heads: the parts of all units become the attention's output. One
// warp each, two dimensions a lane.
template <typename Element, PreparedFormat kFormat, int kRows, bool kInAtoms>
__device__ inline void combine_units(const DecoderLaunch& p, const AttentionRows& rows,
                                     const Activations<kFormat, kRows, kInAtoms>& to) {
  constexpr int kBatch = kHasRegisterExchange ? 32 : 16;
  const unsigned thread = afresh(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  for (int i = warp * gridDim.x + blockIdx.x; i < p.num_rows * p.num_heads;
       i += gridDim.x * kProductWarps) {
    const int row = i / p.num_heads, head = i % p.num_heads;
    const int count = rows.units<PairShape<Element>::kPages>(row);
    if (count == 0) {
      // Products may wait for it.
      to.store_pair(row, head * kDecoderHeadDim + 2 * lane, 0, 0);
      continue;
    }
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
    to.store_pair(row, head * kDecoderHeadDim + 2 * lane, low / sum, high / sum);
  }
}

}  // namespace gapless
