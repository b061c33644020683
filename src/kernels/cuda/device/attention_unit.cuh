// Attention of one query to some pages of a pair of heads in shared memory, by one warp with
// warp-level matrix products (mma.m16n8k16, sums in float). Cached elements are bfloat16, or e4m3,
// which becomes half precision, exactly. The query becomes what they are: exactly too, but for what
// is smaller than 2^-14 or larger than 65504 in half precision.
//
// Scores, per page and head: A = 16 keys x 64 dimensions, B = the query. Columns 2q and 2q + 1 of B
// hold the query of head q % 2, and zeros in the other head's product: the sum of both heads'
// products has in lanes of quarter q (lane % 4) the scores of head q % 2. Of these a lane keeps the
// ones of every second page, from page q / 2 on: keys lane / 4 and lane / 4 + 8. So the softmax of
// both heads is one.
//
// Output, per page and head: A = 64 dimensions x 16 keys, B = the weights of keys. A weight is two
// numbers, rounded and the rest, in two columns. There are more columns for the sake of shared
// memory: lane l reads of keys q, q + 4, q + 8 and q + 12 (q = l % 4) eight dimensions each, the
// chunk (l / 4) ^ 2q. So rows of A have different dimensions at different k, which must not be
// added: columns 2q and 2q + 1 have the weights of quarter q's keys, and zeros elsewhere. In the
// end a lane has sums of its own dimensions over its own keys, and four lanes add theirs.
//
// Bank conflicts: none. Of each head a page has 16 keys of 64 dimensions, then their values.
// * bfloat16: 16-byte loads, served to 8 lanes at a time: two groups l / 4, four quarters. A key is
//   all 32 banks wide, so these lanes' chunks of 16 bytes must differ. Keys: chunk 2q + l / 4 % 2,
//   then the other one of the two; so odd keys have other dimensions at a k than even ones, which
//   costs nothing, because odd columns of B have the query in this other order. Values: chunk
//   (l / 4) ^ 2q.
// * e4m3: a key is half as wide. Keys: 16-byte loads of all of two keys that follow each other.
//   Values: 8-byte loads, served to 16 lanes at a time; (l / 4) ^ 2q of four groups differ for the
//   two even quarters, whose keys are even, and for the two odd ones.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "kernels/cuda/device/decoder_launch.cuh"
#include "kernels/cuda/device/decoder_units.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/register_exchange.cuh"

namespace gapless {

inline constexpr int kDecoderHeadDim = ParallelDecoder::kHeadDim;

// Eight dimensions each of keys l % 4, + 8, + 4, + 12.
template <int kKeyBytes>
struct RawValues {
  static constexpr int kChunkBytes = kKeyBytes * kVector / kDecoderHeadDim;
  std::uint32_t raw[4][kChunkBytes / 4];

  __device__ __forceinline__ void load(std::uint32_t key, int chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_shared(raw[i], key + chunk * kChunkBytes + (i % 2 * 8 + i / 2 * 4) * kKeyBytes);
    }
  }
};

// How a warp multiplies by cached elements. In both, lane l's `Keys` are of keys l / 4 and
// l / 4 + 8 of a page and head, its `Values` of keys l % 4, + 8, + 4, + 12; fragment() is A.
template <typename Element>
struct UnitElement;

template <>
struct UnitElement<Bf16> {
  static constexpr int kKeyBytes = kDecoderHeadDim * 2;

  static __device__ __forceinline__ std::uint32_t round(float low, float high) {
    return pack_bf16x2(low, high);
  }
  static __device__ __forceinline__ float2 rounded(std::uint32_t pair) {
    float2 two;
    unpack_bf16x2(pair, two.x, two.y);
    return two;
  }
  static __device__ __forceinline__ void multiply(float (&sums)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    mma_k16(sums, a, b0, b1);
  }

  struct Keys {
    std::uint32_t raw[2][2][4];  // key, chunk

    __device__ __forceinline__ void load(std::uint32_t head, int lane) {
      const int group = lane / 4;
      const std::uint32_t from = head + group * kKeyBytes + (lane % 4 * 2 + group % 2) * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_shared_16(raw[i][0], from + i * 8 * kKeyBytes);
        load_shared_16(raw[i][1], (from ^ 16) + i * 8 * kKeyBytes);
      }
    }
    __device__ __forceinline__ void fragment(int step, std::uint32_t (&a)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = raw[i % 2][step / 2][step % 2 * 2 + i / 2];
    }
    static __device__ __forceinline__ float score(float even_column, float odd_column, int lane) {
      return lane / 4 % 2 == 0 ? even_column : odd_column;
    }
  };

  struct Values : RawValues<kKeyBytes> {
    __device__ __forceinline__ void fragment(int pair, std::uint32_t (&a)[4]) const {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        a[i] = __byte_perm(raw[i][pair], raw[i + 1][pair], 0x5410);
        a[i + 1] = __byte_perm(raw[i][pair], raw[i + 1][pair], 0x7632);
      }
    }
  };
};

template <>
struct UnitElement<E4m3> {
  static constexpr int kKeyBytes = kDecoderHeadDim;

  static __device__ __forceinline__ std::uint32_t round(float low, float high) {
    return pack_half2(low, high);
  }
  static __device__ __forceinline__ float2 rounded(std::uint32_t pair) {
    return unpack_half2(pair);
  }
  static __device__ __forceinline__ void multiply(float (&sums)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    mma_half_k16(sums, a, b0, b1);
  }

  struct Keys {
    std::uint32_t raw[2][4];

    __device__ __forceinline__ void load(std::uint32_t head, int lane) {
      const std::uint32_t from = head + lane / 4 * kKeyBytes + lane % 4 * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) load_shared_16(raw[i], from + i * 8 * kKeyBytes);
    }
    __device__ __forceinline__ void fragment(int step, std::uint32_t (&a)[4]) const {
#pragma unroll
      for (int i = 0; i < 2; ++i) halves_from_e4m3(raw[i][step], a[i], a[i + 2]);
    }
    static __device__ __forceinline__ float score(float even_column, float /*odd_column*/,
                                                  int /*lane*/) {
      return even_column;
    }
  };

  struct Values : RawValues<kKeyBytes> {
    __device__ __forceinline__ void fragment(int pair, std::uint32_t (&a)[4]) const {
      // The pair's two bytes of two keys, in turn.
      const unsigned order = pair % 2 == 0 ? 0x5140u : 0x7362u;
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        halves_from_e4m3(__byte_perm(raw[i][pair / 2], raw[i + 1][pair / 2], order), a[i],
                         a[i + 1]);
      }
    }
  };
};

// The compiler makes four stores of one.
__device__ __forceinline__ void store_float4(float* to, const float (&values)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}

// The queries of a pair of heads as B fragments.
template <typename Element>
struct UnitQuery {
  // Of a lane's eight columns one head's are zeros. Where registers are not exchanged a lane has none for these.
  static constexpr bool kHoldsZeros = kHasRegisterExchange;
  std::uint32_t pairs[kHoldsZeros ? 2 : 1][8];  // head

  // All lanes of a warp. Lane from + 8h + c gives dimensions 8c to 8c + 7 of head h.
  __device__ __forceinline__ void load(const float (&chunk)[kVector], int from) {
    const int lane = afresh(threadIdx.x) % kWarp;
    const int own_head = lane / 8 % 2, first = lane % 4 * 2 + lane / 4 % 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t given =
          UnitElement<Element>::round(chunk[i % 4 * 2], chunk[i % 4 * 2 + 1]);
      const std::uint32_t pair =
          __shfl_sync(kFullWarp, given, from + own_head * 8 + (i < 4 ? first : first ^ 1));
      if constexpr (kHoldsZeros) {
#pragma unroll
        for (int head = 0; head < 2; ++head) pairs[head][i] = head == own_head ? pair : 0;
      } else {
        pairs[0][i] = pair;
      }
    }
  }
  __device__ __forceinline__ std::uint32_t fragment(int head, int i, int lane) const {
    if constexpr (kHoldsZeros) return pairs[head][i];
    return lane / 8 % 2 == head ? pairs[0][i] : 0;
  }
};

// The same in shared memory, eight words a lane, where a thread has no registers for them.
template <typename Element>
struct SharedUnitQuery {
  static constexpr int kWarpBytes = 8 * kWarp * 4;
  std::uint32_t scratch;  // kWarpBytes of each warp

  __device__ std::uint32_t own(int i) const {
    const unsigned thread = afresh(threadIdx.x);
    return scratch + thread / kWarp * kWarpBytes + i * (kWarp * 4) + thread % kWarp * 4;
  }
  __device__ __forceinline__ void load(const float (&chunk)[kVector], int from) const {
    UnitQuery<Element> query;
    query.load(chunk, from);
#pragma unroll
    for (int i = 0; i < 8; ++i) store_shared_4(own(i), query.pairs[0][i]);
  }
  __device__ __forceinline__ std::uint32_t fragment(int head, int i, int lane) const {
    const std::uint32_t pair = load_shared_4(own(i));
    return lane / 8 % 2 == head ? pair : 0;
  }
};

// Two keys' weights, each rounded and the rest: one part of lower groups, the other part of upper ones.
template <typename Element>
__device__ __forceinline__ void split_weights(float low, float high, int lane,
                                              std::uint32_t (&parts)[2]) {
  using Of = UnitElement<Element>;
  const bool is_lower = lane / 4 < 4;
  const std::uint32_t rounded = Of::round(low, high);
  const float2 two = Of::rounded(rounded);
  const std::uint32_t rest = Of::round(low - two.x, high - two.y);
  parts[0] = is_lower ? rounded : rest;
  parts[1] = is_lower ? rest : rounded;
}

// A page's and head's weights as a B fragment. Column `group` has those of quarter group / 2's keys; rounded where it is even.
// They lie in one lane of each group: in_group.
__device__ __forceinline__ void weight_fragment(const std::uint32_t (&parts)[2], int in_group,
                                                int lane, std::uint32_t (&b)[2]) {
  const int group = lane / 4, quarter = lane % 4;
  const bool has_rest = group % 2 == 1, has_weights = group / 2 == quarter;
  const int source = (group / 2 + has_rest * 4) * 4 + in_group;
  const std::uint32_t one = __shfl_sync(kFullWarp, parts[0], source);
  const std::uint32_t other = __shfl_sync(kFullWarp, parts[1], source ^ 16);
  b[0] = !has_weights ? 0 : has_rest ? other : one;
  b[1] = !has_weights ? 0 : has_rest ? one : other;
}

// One warp. The unit is at `place`; keys from num_keys on do not exist. Leaves a softmax, its sum and
// its output per head in global memory; `part`: of the first head; the second one's lies kPartStride
// further on, or part_stride where that is 0.
template <typename Element, int kPartStride, typename Query>
__device__ __forceinline__ void attend_to_unit(const DecoderLaunch& p, const Query& query,
                                               int num_keys, std::uint32_t place, std::int64_t part,
                                               int part_stride) {
  using Of = UnitElement<Element>;
  using Shape = PairShape<Element>;
  constexpr int kPages = Shape::kPages;
  static_assert(kPages % 2 == 0);
  int stride = part_stride;
  if constexpr (kPartStride > 0) stride = kPartStride;
  const int lane = afresh(threadIdx.x) % kWarp, group = lane / 4, quarter = lane % 4;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kDecoderHeadDim));
  // Instead of a page that does not exist the first is read again, for nothing: loads without
  // conditions stay together.
  std::uint32_t pages[kPages];
#pragma unroll
  for (int page = 0; page < kPages; ++page) {
    pages[page] = place + (num_keys > page * kPageTokens ? page : 0) * Shape::kPageBytes;
  }

  float scores[kPages / 2][2];  // of page 2i + quarter / 2: keys group, group + 8
  float largest = -INFINITY;
#pragma unroll
  for (int first = 0; first < kPages; first += 2) {
    typename Of::Keys keys[2][2];  // page, head
    float sums[2][2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      keys[i / 2][i % 2].load(pages[first + i / 2] + i % 2 * Shape::kHeadBytes, lane);
    }
#pragma unroll
    for (int step = 0; step < kDecoderHeadDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t a[4];
        keys[i / 2][i % 2].fragment(step, a);
        Of::multiply(sums[i / 2][i % 2], a, query.fragment(i % 2, 2 * step, lane),
                     query.fragment(i % 2, 2 * step + 1, lane));
      }
    }
    float own[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      own[i] = quarter < 2 ? sums[0][0][i] + sums[0][1][i] : sums[1][0][i] + sums[1][1][i];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = (first + quarter / 2) * kPageTokens + i * 8 + group;
      float& score = scores[first / 2][i];
      score =
          key < num_keys ? Of::Keys::score(own[2 * i], own[2 * i + 1], lane) * scale : -INFINITY;
      largest = fmaxf(largest, score);
    }
  }

  // All of them ahead, where a thread has the registers.
  constexpr int kPagesAhead = kHasRegisterExchange ? kPages : 1;
  typename Of::Values values[kPagesAhead][2];  // head
  const auto load_values = [&](int page) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      values[page % kPagesAhead][head].load(
          pages[page] + head * Shape::kHeadBytes + Shape::kValuesAt + quarter * Shape::kKeyBytes,
          group ^ 2 * quarter);
    }
  };
#pragma unroll
  for (int page = 0; page < kPagesAhead; ++page) load_values(page);

    // Lanes of one head: all but the lowest bit.
#pragma unroll
  for (int step = 2; step < kWarp; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  const float reference = largest == -INFINITY ? 0.0f : largest;
  float sum = 0;
  std::uint32_t parts[kPages / 2][2];  // two keys each
#pragma unroll
  for (int i = 0; i < kPages / 2; ++i) {
    const float low = power_of_two(scores[i][0] - reference);
    const float high = power_of_two(scores[i][1] - reference);
    sum += low + high;
    split_weights<Element>(low, high, lane, parts[i]);
  }

  float outputs[2][kVector / 2][4] = {};  // head, pair of dimensions
#pragma unroll
  for (int page = 0; page < kPages; ++page) {
    if (page >= kPagesAhead) load_values(page);
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      std::uint32_t b[2];
      weight_fragment(parts[page / 2], page % 2 * 2 + head, lane, b);
#pragma unroll
      for (int pair = 0; pair < kVector / 2; ++pair) {
        std::uint32_t a[4];
        values[page % kPagesAhead][head].fragment(pair, a);
        Of::multiply(outputs[head][pair], a, b[0], b[1]);
      }
    }
  }

#pragma unroll
  for (int step = 2; step < kWarp; step *= 2) sum += __shfl_xor_sync(kFullWarp, sum, step);
  if (lane < 2) p.part_softmax[part + lane * stride] = make_float2(largest, sum);

  // Four lanes have the same dimensions: each adds up four of them, of one head.
  const bool is_upper = quarter >= 2, is_odd = quarter % 2 == 1;
  float eight[kVector], four[4];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float(&first)[4] = outputs[0][i / 2], (&second)[4] = outputs[1][i / 2];
    const float one = first[i % 2 * 2] + first[i % 2 * 2 + 1];
    const float two = second[i % 2 * 2] + second[i % 2 * 2 + 1];
    eight[i] = (is_upper ? two : one) + __shfl_xor_sync(kFullWarp, is_upper ? one : two, 18);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four[i] = (is_odd ? eight[i + 4] : eight[i]) +
              __shfl_xor_sync(kFullWarp, is_odd ? eight[i] : eight[i + 4], 9);
  }
  const std::int64_t at = (part + is_upper * stride) * kDecoderHeadDim;
  store_float4(p.part_outputs + at + (group ^ 2 * quarter) * kVector + is_odd * 4, four);
}

}  // namespace gapless
