// Attention of one new token per row where several query heads share a key head of 128 dimensions
// (grouped queries), as decoder_kernel.cuh runs it for sequential decoders.
//
// unit = two pages of a key head, keys and values, four of e4m3 (decoder_units.cuh). One warp attends to it with all
// query heads of the group. For each a softmax, its sum and its output are left in global memory, of a unit or of several that
// are a part (attention_rows.h); all of a row and head are combined later. Units begin at multiples of their size, and sums run in
// fixed orders: a row's result does not depend on the rows beside it.
//
// Scores: mma.m16n8k16, A = 16 keys of a page, B = the group's queries. A key's row is all 32 banks (of
// bfloat16 twice), so the lanes of two keys that are served together must load other chunks of 16 bytes:
// lane (g, q) (g = lane / 4, q = lane % 4) loads of keys g and g + 8 chunks 2q and 2q + 1 (of bfloat16 of
// each half), odd g in the other order. So odd keys have other dimensions at a k than even ones; column
// 2j of B has query j in the even keys' order, column 2j + 1 in the odd ones'. Lane (g, q) keeps the
// scores of query q for its keys. Elements of e4m3 become half precision, exactly, and queries too.
//
// Output: mma.m16n8k16, A = the weights of a page's 16 keys, rounded as the elements are, B = values. A key's row is all 32
// banks here too, so the four quarters q, whose lanes load values of keys 2q, 2q + 8, 2q + 1 and 2q + 9, must load other chunks:
// lane (g, q) chunk g ^ 2q. So a column has other dimensions at a k of another quarter, which must not be added up: A has four rows
// for each query, one for the keys of each quarter, with zeros elsewhere. Row 4s + i is of quarter s and query i. When all pages
// are added up, four lanes add theirs, and each keeps 16 dimensions of one query.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "kernels/cuda/device/activations.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_units.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/register_exchange.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/cuda/device/self_announcing.cuh"
#include "kernels/cuda/device/stage_ring.cuh"

namespace gapless {

inline constexpr int kGroupHeadDim = SequentialDecoder::kHeadDim;
inline constexpr int kMaxGroup = 4;  // query heads of a key head: two columns of eight for each

// How a warp multiplies by cached elements: a lane's chunks of keys g and g + 8, fragment() is A of 16
// dimensions. A lane has kValueChunks chunks of 16 bytes of a key's values; value_fragments() are B of two
// dimensions. What is left of them, in fours, begins at dimension of_four().
template <typename Element>
struct GroupElement;

template <>
struct GroupElement<Bf16> {
  static constexpr int kChunks = 4;
  // In 16 bytes of a row.
  static __device__ __forceinline__ int chunk(int i, int quarter, int is_odd) {
    return i / 2 * 8 + ((quarter * 2 + i % 2) ^ is_odd);
  }
  // In eights of dimensions: which the i-th eight of a lane's are.
  static __device__ __forceinline__ int eight(int i, int quarter, int is_odd) {
    return chunk(i, quarter, is_odd);
  }
  static __device__ __forceinline__ std::uint32_t round(float low, float high) {
    return pack_bf16x2(low, high);
  }
  static __device__ __forceinline__ void fragment(const std::uint32_t (&raw)[2][kChunks][4],
                                                  int step, std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = raw[i % 2][step / 2][step % 2 * 2 + i / 2];
  }
  static __device__ __forceinline__ void multiply(float (&sums)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    mma_k16(sums, a, b0, b1);
  }
  static __device__ __forceinline__ float2 rounded(std::uint32_t pair) {
    float2 two;
    unpack_bf16x2(pair, two.x, two.y);
    return two;
  }
  static constexpr int kValueChunks = 2;
  static __device__ __forceinline__ void value_fragments(const std::uint32_t (&raw)[4][4], int pair,
                                                         std::uint32_t (&b)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      b[0][i] = __byte_perm(raw[2 * i][pair], raw[2 * i + 1][pair], 0x5410);
      b[1][i] = __byte_perm(raw[2 * i][pair], raw[2 * i + 1][pair], 0x7632);
    }
  }
  static __device__ __forceinline__ int of_four(int four, int chunk) {
    return (four / 2 * 8 + chunk) * kVector + four % 2 * 4;
  }
};

template <>
struct GroupElement<E4m3> {
  static constexpr int kChunks = 2;
  static __device__ __forceinline__ int chunk(int i, int quarter, int is_odd) {
    return (quarter * 2 + i) ^ is_odd;
  }
  static __device__ __forceinline__ int eight(int i, int quarter, int is_odd) {
    return chunk(i / 2, quarter, is_odd) * 2 + i % 2;
  }
  static __device__ __forceinline__ std::uint32_t round(float low, float high) {
    return pack_half2(low, high);
  }
  static __device__ __forceinline__ void fragment(const std::uint32_t (&raw)[2][kChunks][4],
                                                  int step, std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) halves_from_e4m3(raw[i][step / 4][step % 4], a[i], a[i + 2]);
  }
  static __device__ __forceinline__ void multiply(float (&sums)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    mma_half_k16(sums, a, b0, b1);
  }
  static __device__ __forceinline__ float2 rounded(std::uint32_t pair) {
    return unpack_half2(pair);
  }
  static constexpr int kValueChunks = 1;
  static __device__ __forceinline__ void value_fragments(const std::uint32_t (&raw)[4][4], int pair,
                                                         std::uint32_t (&b)[2][2]) {
    // The pair's two bytes of two keys, in turn.
    const unsigned order = pair % 2 == 0 ? 0x5140u : 0x7362u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      halves_from_e4m3(__byte_perm(raw[2 * i][pair / 2], raw[2 * i + 1][pair / 2], order), b[0][i],
                       b[1][i]);
    }
  }
  static __device__ __forceinline__ int of_four(int four, int chunk) {
    return chunk * 16 + four * 4;
  }
};

// Whether a thread keeps its queries, and what the new token adds to the cache, from unit to unit. Where registers are not exchanged
// it has none for them, and takes them from the scratch again.
inline constexpr bool kHoldsToken = kHasRegisterExchange;

// A warp's own piece of the block's reduce buffer, which nobody uses between two products: the group's queries and, if a thread does
// not hold it, what the new token adds to the cache.
struct GroupScratch {
  static constexpr int kBytes = kGroupScratchBytes;
  static constexpr int kEntriesAt = kMaxGroup * kGroupHeadDim * static_cast<int>(sizeof(Bf16));
  static_assert(kBytes >= kEntriesAt + (kHoldsToken ? 0 : kWarp * 16));
  static_assert(kBytes % 16 == 0);
  std::uint32_t address;

  __device__ explicit GroupScratch(const float* reduce_buffer)
      : address(shared_address(reduce_buffer) + afresh(threadIdx.x) / kWarp * kBytes) {}
};

__device__ __forceinline__ float weight_of_group_part(float largest, float whole_largest) {
  return largest == -INFINITY ? 0.0f : exp2f(largest - whole_largest);
}

// Eight dimensions of a head, from lane % 16 * 8 on: half a warp has a head.
struct GroupHeadChunk {
  float values[kVector];

  __device__ void load(const uint4& raw) { unpack(raw, values); }

  // RMS norm over the head.
  __device__ void normalise(const uint4& raw_gamma, float eps) {
    float squares = 0, gamma[kVector];
    unpack(raw_gamma, gamma);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += values[i] * values[i];
    const float scale = rsqrtf(warp_sum<16>(squares) / kGroupHeadDim + eps);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] *= scale * gamma[i];
  }

  // Pairs (j, j + 64) are turned by their angles: cos, sin, cos, sin.
  __device__ void rotate(const float4 (&angles)[kVector / 2]) {
    const bool is_real = afresh(threadIdx.x) % 16 < 8;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float other = __shfl_xor_sync(kFullWarp, values[i], 8);
      const float cosine = i % 2 == 0 ? angles[i / 2].x : angles[i / 2].z;
      const float sine = i % 2 == 0 ? angles[i / 2].y : angles[i / 2].w;
      values[i] = is_real ? values[i] * cosine - other * sine : other * sine + values[i] * cosine;
    }
  }
};

// The new token's part in one key head: the group's queries as B fragments, and what it adds to the cache: lanes
// below 16 have eight dimensions of its key, the others of its values.
template <typename Element>
struct GroupToken {
  using Of = GroupElement<Element>;
  using Shape = UnitShape<SequentialDecoder, Element>;
  using Vector = KvVector<Element>;

  using Raw = typename Vector::Raw;

  std::uint32_t queries[16];

  // One warp. `qkv`: of this layer. Waits until they are written.
  template <typename Unit>
  __device__ void load(const DecoderLaunch& p, const SequentialLayer& layer, const Bf16* qkv,
                       const Unit& unit, int position, const GroupScratch& scratch) {
    const int lane = afresh(threadIdx.x) % kWarp, chunk = lane % 16, upper = lane / 16;
    const int group = p.num_heads / p.sequential.num_kv_heads;
    const DecoderSizes sizes = sizes_of<SequentialDecoder>(p);
    float4 angles[kVector / 2];
    const auto* table = reinterpret_cast<const float4*>(
        p.rope_table + std::int64_t{position} * kGroupHeadDim + chunk % 8 * (2 * kVector));
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) angles[i] = __ldg(table + i);
    const bool normalises = layer.q_gamma != nullptr;
    uint4 q_gamma = {}, k_gamma = {};
    if (normalises) {
      q_gamma = __ldg(reinterpret_cast<const uint4*>(layer.q_gamma) + chunk);
      k_gamma = __ldg(reinterpret_cast<const uint4*>(layer.k_gamma) + chunk);
    }
    const Bf16* row = qkv + std::int64_t{unit.row()} * sizes.qkv_width + chunk * kVector;
    const Bf16* own_queries = row + unit.heads * group * kGroupHeadDim;
    const Bf16* own_entry =
        row + sizes.q_width + (unit.heads + upper * p.sequential.num_kv_heads) * kGroupHeadDim;
    // Two heads at a time. Instead of one that the group does not have, its last one.
    const Bf16* const addresses[3] = {own_queries + min(upper, group - 1) * kGroupHeadDim,
                                      own_queries + min(2 + upper, group - 1) * kGroupHeadDim,
                                      own_entry};
    uint4 raw[3];
    load_when_written(addresses, raw);
    __syncwarp();  // what was in the scratch is read
#pragma unroll
    for (int two = 0; two < 2; ++two) {
      GroupHeadChunk head;
      head.load(raw[two]);
      if (normalises) head.normalise(q_gamma, p.eps);
      head.rotate(angles);
      // As bfloat16 has them.
#pragma unroll
      for (float& value : head.values) value = round_to_bf16(value);
      const float(&v)[kVector] = head.values;
      store_shared_16(scratch.address + (two * 2 + upper) * (kGroupHeadDim * 2) + chunk * 16,
                      uint4{Of::round(v[0], v[1]), Of::round(v[2], v[3]), Of::round(v[4], v[5]),
                            Of::round(v[6], v[7])});
    }
    GroupHeadChunk key;
    key.load(raw[2]);
    if (normalises) key.normalise(k_gamma, p.eps);
    key.rotate(angles);
    float own[kVector];
    unpack(raw[2], own);
#pragma unroll
    for (int i = 0; i < kVector; ++i) own[i] = upper == 0 ? key.values[i] : own[i];
    keep_entry(Vector::pack(own), scratch);
    __syncwarp();
    if constexpr (kHoldsToken) take_queries(group, lane, scratch);
  }

  // From the scratch: those of so many heads.
  __device__ __forceinline__ void take_queries(int group, int lane, const GroupScratch& scratch) {
    const int query = lane / 8, is_odd = lane / 4 % 2, quarter = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int from = Of::eight(i, quarter, is_odd);
      std::uint32_t four[4];
      load_shared_16(four, scratch.address + query * (kGroupHeadDim * 2) + from * 16);
#pragma unroll
      for (int k = 0; k < 4; ++k) queries[i * 4 + k] = query < group ? four[k] : 0u;
    }
    __syncwarp();
  }

  // To the cache.
  template <typename Unit>
  __device__ void store(const DecoderLaunch& p, const DecoderLayer& layer, std::int64_t page,
                        const Unit& unit, int position, const GroupScratch& scratch) const {
    const int lane = afresh(threadIdx.x) % kWarp;
    const KvLayout layout{.num_heads = p.sequential.num_kv_heads, .head_dim = kGroupHeadDim};
    const std::int64_t to = page * layout.page_size() +
                            layout.in_page(KvPart::kKeys, unit.heads, position % kPageTokens) +
                            lane % 16 * kVector;
    auto* first = static_cast<Element*>(lane >= 16 ? layer.values : layer.pages);
    *reinterpret_cast<Raw*>(first + to) = entry(scratch);
  }

  // Where the unit at `place` holds its own; and zeros where later tokens' values will be: what lies there may be no
  // number, even times zero.
  __device__ void insert(int at_key, std::uint32_t place, const GroupScratch& scratch) const {
    const int lane = afresh(threadIdx.x) % kWarp, chunk = lane % 16, upper = lane / 16;
    const int page = at_key / kPageTokens, offset = at_key % kPageTokens;
    const std::uint32_t keys = place + page * Shape::kPageBytes;
    const std::uint32_t values = keys + Shape::kValuesAt;
    for (int t = offset + 1 + upper; t < kPageTokens; t += 2) {
      store_shared_elements(values + t * Shape::kKeyBytes + chunk * Shape::kVectorBytes, Raw{});
    }
    store_shared_elements(
        (upper != 0 ? values : keys) + offset * Shape::kKeyBytes + chunk * Shape::kVectorBytes,
        entry(scratch));
    // The copy engine fills this memory again.
    publish_shared_to_engines();
    __syncwarp();
  }

 private:
  // What a lane adds to the cache: eight dimensions of the key, or of the values.
  static __device__ std::uint32_t own_entry(const GroupScratch& scratch) {
    return scratch.address + GroupScratch::kEntriesAt +
           afresh(threadIdx.x) % kWarp * static_cast<unsigned>(sizeof(Raw));
  }
  __device__ void keep_entry(const Raw& entry, const GroupScratch& scratch) {
    if constexpr (kHoldsToken) {
      entry_ = entry;
    } else {
      store_shared_elements(own_entry(scratch), entry);
    }
  }
  __device__ Raw entry(const GroupScratch& scratch) const {
    if constexpr (kHoldsToken) {
      return entry_;
    } else {
      Raw raw;
      load_shared_elements(raw, own_entry(scratch));
      return raw;
    }
  }

  Raw entry_;
};

// The scores of 16 keys of a page: of lane (g, q) those of query q and keys g, g + 8.
template <typename Element>
__device__ __forceinline__ void group_scores(const GroupToken<Element>& token, std::uint32_t keys,
                                             float (&scores)[2]) {
  using Of = GroupElement<Element>;
  constexpr int kKeyBytes = UnitShape<SequentialDecoder, Element>::kKeyBytes;
  const int lane = afresh(threadIdx.x) % kWarp, group = lane / 4, quarter = lane % 4;
  std::uint32_t raw[2][Of::kChunks][4];  // key, chunk
#pragma unroll
  for (int i = 0; i < 2 * Of::kChunks; ++i) {
    const int key = i / Of::kChunks, chunk = i % Of::kChunks;
    load_shared_16(raw[key][chunk], keys + (group + key * 8) * kKeyBytes +
                                        Of::chunk(chunk, quarter, group % 2) * 16);
  }
  float sums[2][4] = {};
#pragma unroll
  for (int step = 0; step < kGroupHeadDim / 16; ++step) {
    std::uint32_t a[4];
    Of::fragment(raw, step, a);
    Of::multiply(sums[step % 2], a, token.queries[step * 2], token.queries[step * 2 + 1]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float even = sums[0][i * 2] + sums[1][i * 2];
    const float odd = sums[0][i * 2 + 1] + sums[1][i * 2 + 1];
    scores[i] = group % 2 == 0 ? even : odd;
  }
}

// What a warp knows of a unit's or a part's keys.
struct UnitSums {
  float largest, sum;  // of query lane % 4
  float outputs[16];   // of query lane / 4 % 4, in fours of dimensions

  static __device__ __forceinline__ int query() { return afresh(threadIdx.x) / 4 % kMaxGroup; }

  // The outputs from `first` on. `sums`: of lane (g, q) rows g and g + 8 of A, columns 2q and 2q + 1, and of each dimension of a
  // chunk.
  template <int kCount>
  __device__ __forceinline__ void gather(int first, const float (&sums)[kCount][4]) {
    const bool is_odd = afresh(threadIdx.x) % kWarp / 16 != 0;  // quarters 1 and 3
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float two[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        two[k] = sums[i][k] + __shfl_xor_sync(kFullWarp, sums[i][2 + k], 2);
      }
      outputs[first + i] =
          (is_odd ? two[1] : two[0]) + __shfl_xor_sync(kFullWarp, is_odd ? two[0] : two[1], 17);
    }
  }

  // `part`: of the group's first head, where max_units are those of one.
  template <typename Element>
  __device__ __forceinline__ void store(const DecoderLaunch& p, std::int64_t part) const {
    const int lane = afresh(threadIdx.x) % kWarp;
    const int num_queries = p.num_heads / p.sequential.num_kv_heads;
    if (lane < num_queries) {
      p.part_softmax[part + std::int64_t{lane} * p.sequential.max_units] =
          make_float2(largest, sum);
    }
    if (query() >= num_queries) return;
    const int is_odd = lane / 16, chunk = 2 * (lane % 4 ^ is_odd) + is_odd;
    float* to =
        p.part_outputs + (part + std::int64_t{query()} * p.sequential.max_units) * kGroupHeadDim;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<float4*>(to + GroupElement<Element>::of_four(i, chunk)) =
          make_float4(outputs[4 * i], outputs[4 * i + 1], outputs[4 * i + 2], outputs[4 * i + 3]);
    }
  }
};

// One warp. Keys from num_keys on do not exist.
template <typename Element>
__device__ __forceinline__ void attend_to_group(const GroupToken<Element>& token, int num_keys,
                                                std::uint32_t place, UnitSums& result) {
  using Of = GroupElement<Element>;
  using Shape = UnitShape<SequentialDecoder, Element>;
  const int lane = afresh(threadIdx.x) % kWarp, group = lane / 4, quarter = lane % 4;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kGroupHeadDim));
  const int num_pages = min((num_keys + kPageTokens - 1) / kPageTokens, Shape::kPages);
  float scores[Shape::kPages][2];
  float largest = -INFINITY;
#pragma unroll
  for (int page = 0; page < Shape::kPages; ++page) {
    // Instead of a page that does not exist the first once more: loads without conditions stay together.
    const int existing = page < num_pages ? page : 0;
    group_scores<Element>(token, place + existing * Shape::kPageBytes, scores[page]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = page * kPageTokens + i * 8 + group;
      scores[page][i] = key < num_keys ? scores[page][i] * scale : -INFINITY;
      largest = fmaxf(largest, scores[page][i]);
    }
  }
  // Lanes of one query: every fourth.
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  const float reference = largest == -INFINITY ? 0.0f : largest;
  float sum = 0;
  std::uint32_t weights[Shape::kPages];  // of keys g, g + 8
#pragma unroll
  for (int page = 0; page < Shape::kPages; ++page) {
    weights[page] = Of::round(power_of_two(scores[page][0] - reference),
                              power_of_two(scores[page][1] - reference));
    // What values are multiplied by is what they are divided by.
    const float2 two = Of::rounded(weights[page]);
    sum += two.x + two.y;
  }
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  result.largest = largest;
  result.sum = sum;

  // Pairs of dimensions of a lane's eight, at a time; where registers are not exchanged a thread has none for the sums of all.
  constexpr int kPairsAtOnce = kHasRegisterExchange ? 8 : 4;
  constexpr int kPairs = 8 / Of::kValueChunks;  // of a chunk
  constexpr int kPairsLoaded = kPairs < kPairsAtOnce ? kPairs : kPairsAtOnce;
  const std::uint32_t own_values =
      place + Shape::kValuesAt + 2 * quarter * Shape::kKeyBytes + (group ^ 2 * quarter) * 16;
#pragma unroll
  for (int first_pair = 0; first_pair < 8; first_pair += kPairsAtOnce) {
    float sums[2 * kPairsAtOnce][4] = {};
#pragma unroll
    for (int page = 0; page < Shape::kPages; ++page) {
      if (page >= num_pages) break;
      const int source = quarter * 8 + group % kMaxGroup;
      const std::uint32_t one = __shfl_sync(kFullWarp, weights[page], source);
      const std::uint32_t other = __shfl_sync(kFullWarp, weights[page], source + 4);
      const bool has_lower = quarter == group / kMaxGroup;
      const bool has_upper = quarter == 2 + group / kMaxGroup;
      const std::uint32_t a[4] = {has_lower ? one : 0, has_upper ? one : 0, has_lower ? other : 0,
                                  has_upper ? other : 0};
#pragma unroll
      for (int loaded = 0; loaded < kPairsAtOnce; loaded += kPairsLoaded) {
        const int chunk = (first_pair + loaded) / kPairs, in_chunk = (first_pair + loaded) % kPairs;
        std::uint32_t raw[4][4];  // key 2q, 2q + 8, 2q + 1, 2q + 9
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t from = own_values + page * Shape::kPageBytes + chunk * 128 +
                                     (i % 2 * 8 + i / 2) * Shape::kKeyBytes;
          if constexpr (kPairsLoaded == kPairs) {
            load_shared_16(raw[i], from);
          } else {
            std::uint32_t two[2];
            load_shared_8(two, from + in_chunk * 2);
            raw[i][in_chunk / 2] = two[0], raw[i][in_chunk / 2 + 1] = two[1];
          }
        }
#pragma unroll
        for (int pair = 0; pair < kPairsLoaded; ++pair) {
          std::uint32_t b[2][2];
          Of::value_fragments(raw, in_chunk + pair, b);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            Of::multiply(sums[(loaded + pair) * 2 + i], a, b[i][0], b[i][1]);
          }
        }
      }
    }
    result.gather(2 * first_pair, sums);
  }
}

// Units of a part are attended to by several warps. Each leaves its sums where its unit's keys were, and the last of them adds all
// up, in the order of the units, whoever it is.
struct GroupPartMerger {
  static constexpr int kFourBytes = kWarp * 16;  // of all lanes
  static constexpr int kSoftmaxAt = 4 * kFourBytes;
  static_assert(kSoftmaxAt + kMaxGroup * 8 <= UnitShape<SequentialDecoder, Bf16>::kBytes);

  // Leaves a unit's sums at `place`. Whether it is the last of `count` units; `arrived`: how many of them are there.
  static __device__ __forceinline__ bool leave(const UnitSums& sums, std::uint32_t place,
                                               std::uint32_t* arrived, int count) {
    const int lane = afresh(threadIdx.x) % kWarp;
    __syncwarp();  // keys and values are read
#pragma unroll
    for (int four = 0; four < 4; ++four) {
      const float* o = sums.outputs + 4 * four;
      store_shared_16(place + four * kFourBytes + lane * 16,
                      uint4{__float_as_uint(o[0]), __float_as_uint(o[1]), __float_as_uint(o[2]),
                            __float_as_uint(o[3])});
    }
    if (lane < kMaxGroup) {
      store_shared_float(place + kSoftmaxAt + lane * 8, sums.largest);
      store_shared_float(place + kSoftmaxAt + lane * 8 + 4, sums.sum);
    }
    publish_shared_to_engines();
    __syncwarp();
    std::uint32_t before = 0;
    if (lane == 0) before = signal_in_block(*arrived);
    before = __shfl_sync(kFullWarp, before, 0);
    __syncwarp();
    if (before + 1 < static_cast<std::uint32_t>(count)) return false;
    if (lane == 0) *arrived = 0;
    return true;
  }

  // All of them: place_of(i) is where the i-th unit's are.
  template <typename PlaceOf>
  static __device__ __forceinline__ void merge(int count, const PlaceOf& place_of,
                                               UnitSums& result) {
    static_assert(kMaxUnitsOfPart * kMaxGroup <= kWarp);
    const int lane = afresh(threadIdx.x) % kWarp, own = lane / kMaxGroup;
    float largest = -INFINITY, sum = 0;
    if (own < count) {
      std::uint32_t softmax[2];
      load_shared_8(softmax, place_of(own) + kSoftmaxAt + lane % kMaxGroup * 8);
      largest = __uint_as_float(softmax[0]), sum = __uint_as_float(softmax[1]);
    }
    result.largest = largest;
#pragma unroll
    for (int step = kMaxGroup; step < kMaxUnitsOfPart * kMaxGroup; step *= 2) {
      result.largest = fmaxf(result.largest, __shfl_xor_sync(kFullWarp, result.largest, step));
    }
    const float weight = weight_of_group_part(largest, result.largest);
    result.sum = weight * sum;
#pragma unroll
    for (int step = kMaxGroup; step < kMaxUnitsOfPart * kMaxGroup; step *= 2) {
      result.sum += __shfl_xor_sync(kFullWarp, result.sum, step);
    }
#pragma unroll
    for (float& output : result.outputs) output = 0;
#pragma unroll 1
    for (int unit = 0; unit < count; ++unit) {
      const std::uint32_t from = place_of(unit) + lane * 16;
      const float of_unit = __shfl_sync(kFullWarp, weight, unit * kMaxGroup + UnitSums::query());
#pragma unroll
      for (int four = 0; four < 4; ++four) {
        std::uint32_t raw[4];
        load_shared_16(raw, from + four * kFourBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          result.outputs[4 * four + i] += of_unit * __uint_as_float(raw[i]);
        }
      }
    }
    // The copy engine fills this memory again.
    publish_shared_to_engines();
  }
};

// This warp's units of the block's, which lie in the ring from first_stage on. `qkv`: of this
// layer. `arrived`: of each slot of the ring, zero between two parts (GroupPartMerger).
template <typename Element>
__device__ inline void attend_to_groups(const DecoderLaunch& p, int layer, const Bf16* qkv,
                                        const AttentionRows& rows, const StageRing& ring,
                                        unsigned first_stage, const float* reduce_buffer,
                                        std::uint32_t* arrived) {
  using Shape = UnitShape<SequentialDecoder, Element>;
  const GroupScratch scratch(reduce_buffer);
  const unsigned warp = afresh(threadIdx.x) / kWarp;
  const unsigned num_units = rows.own.size();  // none is shared
  const int first = rows.own.begin;
  Unit<SequentialDecoder, Element> unit;
  GroupToken<Element> token;
  int token_row = -1, token_heads = -1;
  for (unsigned i = (warp - first_stage) % kRingConsumers; i < num_units; i += kRingConsumers) {
    unit.find_own(rows, first + static_cast<int>(i));
    const int position = rows.num_keys[unit.row()] - 1;
    const std::int64_t page =
        unit.has_newest()
            ? __ldg(p.page_table + std::int64_t{rows.seat[unit.row()]} * p.page_table_stride +
                    position / kPageTokens)
            : 0;
    if (unit.row() != token_row || unit.heads != token_heads) {
      token_row = unit.row(), token_heads = unit.heads;
      token.load(p, p.sequential.layers[layer], qkv, unit, position, scratch);
    }
    const std::uint32_t place = ring.wait(first_stage + i);
    if (unit.has_newest()) {
      token.store(p, p.layers[layer], page, unit, position, scratch);
      token.insert(unit.num_keys - 1, place, scratch);
    }
    const std::int64_t head = std::int64_t{unit.row()} * p.num_heads +
                              unit.heads * (p.num_heads / p.sequential.num_kv_heads);
    if constexpr (!kHoldsToken) {
      token.take_queries(p.num_heads / p.sequential.num_kv_heads, afresh(threadIdx.x) % kWarp,
                         scratch);
    }
    UnitSums sums;
    attend_to_group<Element>(token, unit.num_keys, place, sums);
    const int all = rows.units<Shape::kPages>(unit.row()), merged = units_of_part(all);
    const int index = unit.first_key / Shape::kKeys, in_part = index % merged;
    const std::int64_t part = head * p.sequential.max_units + index / merged;
    if (merged == 1) {
      sums.store<Element>(p, part);
      ring.give_back(first_stage + i);
      continue;
    }
    const unsigned first_of_part = first_stage + i - in_part;
    const int count = min(merged, all - (index - in_part));
    if (!GroupPartMerger::leave(sums, place, arrived + first_of_part % kRingStages, count))
      continue;
    GroupPartMerger::merge(
        count, [&](int k) { return ring.place(first_of_part + k); }, sums);
    sums.store<Element>(p, part);
    for (int k = 0; k < count; ++k) ring.give_back(first_of_part + k);
  }
}

// This block's share of rows and heads: all parts become the attention's output. One
// warp each 64 dimensions of a head, two a lane.
template <typename S, typename Element, PreparedFormat kFormat, int kRows, bool kInAtoms>
__device__ inline void combine_groups(const DecoderLaunch& p, const AttentionRows& rows,
                                      const Activations<kFormat, kRows, kInAtoms>& to) {
  constexpr int kBatch = kHasRegisterExchange ? 32 : 16;
  constexpr int kParts = S::kHeadDim / (2 * kWarp);  // of a head
  const unsigned thread = afresh(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  for (int i = warp * gridDim.x + blockIdx.x; i < p.num_rows * p.num_heads * kParts;
       i += gridDim.x * kProductWarps) {
    const int row_head = i / kParts, row = row_head / p.num_heads, head = row_head % p.num_heads;
    const int dims = i % kParts * (2 * kWarp) + 2 * lane;
    constexpr int kPages = UnitShape<S, Element>::kPages;
    const int count = S::kIsSequential ? rows.parts<kPages>(row) : rows.units<kPages>(row);
    if (count == 0) {
      // Products may wait for it.
      to.store_pair(row, head * S::kHeadDim + dims, 0, 0);
      continue;
    }
    const std::int64_t first = std::int64_t{row_head} * max_units_of<S>(p);
    const float2* softmax = p.part_softmax + first;
    const float* outputs = p.part_outputs + first * S::kHeadDim + dims;
    const float2 none = make_float2(-INFINITY, 0);
    float2 own = lane < count ? __ldcg(softmax + lane) : none;
    float largest = own.x, low = 0, high = 0, sum = 0, own_weight = 0;
    for (int unit = lane + kWarp; unit < count; unit += kWarp) {
      largest = fmaxf(largest, __ldcg(softmax + unit).x);
    }
    for (int begin = 0; begin < count; begin += kBatch) {
      float2 parts[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        parts[k] = begin + k < count ? __ldcg(reinterpret_cast<const float2*>(
                                           outputs + std::int64_t{begin + k} * S::kHeadDim))
                                     : make_float2(0, 0);
      }
      if (begin == 0) largest = warp_max(largest);
      if (begin % kWarp == 0) {
        if (begin > 0) own = begin + lane < count ? __ldcg(softmax + begin + lane) : none;
        own_weight = weight_of_group_part(own.x, largest);
        sum += own_weight * own.y;
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float weight = __shfl_sync(kFullWarp, own_weight, (begin + k) % kWarp);
        low += weight * parts[k].x;
        high += weight * parts[k].y;
      }
    }
    sum = warp_sum(sum);
    to.store_pair(row, head * S::kHeadDim + dims, low / sum, high / sum);
  }
}

}  // namespace gapless
