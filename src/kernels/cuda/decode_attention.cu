// Attention of one new token per sequence over the paged cache: bound by reading keys and values
// once.
//
// A block takes kSplitKeys keys of one sequence and head, one warp kWarpKeys of them. Every lane
// asks for all its keys and values at once (8 elements each), so that a multiprocessor has enough
// reads in flight. The last block of a sequence and head to finish combines the splits.
//
// Cached keys and values are asked for before wait_for_predecessor: of what this kernel reads, the
// kernel just before it, rope_and_cache, writes the queries and the newest key and value alone.
// That kernel lets this one start only when everything before it is complete, so the sequences and
// the page table are there.
//
// Row invariance: splits start at multiples of kSplitKeys of the sequence, and sums run over lanes,
// warps and splits in fixed orders, whichever block combines them.
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/kv_element.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kSplitKeys = 256;
constexpr int kWarpKeys = kSplitKeys / kWarps;
static_assert(kWarpKeys % kPageTokens == 0);

// A softmax over part of the keys: the largest scaled score (in powers of two) and the sum of
// powers. The values' sum follows it: kHeadDim floats.
struct PartialSoftmax {
  float largest;
  float sum;
};

template <int kHeadDim>
struct Partial {
  PartialSoftmax softmax;
  float output[kHeadDim];
};

// Weight of a part in the whole; 0 for a part without keys.
__device__ float weight_of(float largest, float whole_largest) {
  return largest == -INFINITY ? 0.0f : exp2f(largest - whole_largest);
}

// Element `d` of the combination of `count` parts, in order.
template <int kHeadDim>
__device__ Partial<1> combine(const Partial<kHeadDim>* parts, int count, int d) {
  float largest = -INFINITY;
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, parts[i].softmax.largest);
  Partial<1> whole{{largest, 0}, {0}};
  for (int i = 0; i < count; ++i) {
    const float weight = weight_of(parts[i].softmax.largest, largest);
    whole.softmax.sum += weight * parts[i].softmax.sum;
    whole.output[0] += weight * parts[i].output[d];
  }
  return whole;
}

// One warp's keys. kLanes lanes share a key, 8 elements each; kKeysAtOnce keys are looked at
// together. Waits for the predecessor.
template <int kHeadDim, typename Element>
__device__ void attend_to_warp_keys(const PagedAttentionParams& p, const std::int32_t* pages,
                                    const Bf16* query, int head, int first_key, int num_keys,
                                    Partial<kHeadDim>* result) {
  constexpr int kLanes = kHeadDim / kVector;
  constexpr int kKeysAtOnce = kWarp / kLanes;
  constexpr int kTurns = kWarpKeys / kKeysAtOnce;
  const int lane = threadIdx.x % kWarp;
  const int chunk = lane % kLanes, key_in_turn = lane / kLanes;
  const KvLayout layout{.num_heads = p.heads.num_kv_heads, .head_dim = kHeadDim};
  const int kv_head = head / p.heads.group_size();
  const auto* const first = static_cast<const Element*>(p.kv.pages) +
                            layout.in_page(KvPart::kKeys, kv_head, 0) + chunk * kVector;

  using Vector = KvVector<Element>;
  using Raw = typename Vector::Raw;
  Raw keys[kTurns], values[kTurns];
  auto load = [&](int turn, int t) {
    const Element* const key =
        first + pages[t / kPageTokens] * layout.page_size() + t % kPageTokens * kHeadDim;
    keys[turn] = __ldcs(reinterpret_cast<const Raw*>(key));
    values[turn] = __ldcs(reinterpret_cast<const Raw*>(key + layout.part_size()));
  };
  // Beyond the cached keys the last of them (or, with none, what the newest page holds) is read
  // again: loads without conditions stay together.
  const int newest = num_keys - 1;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    load(turn, max(min(first_key + turn * kKeysAtOnce + key_in_turn, newest - 1), 0));
  }
  wait_for_predecessor();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int t = first_key + turn * kKeysAtOnce + key_in_turn;
    if (t == newest) load(turn, newest);
    if (t > newest) values[turn] = Raw{};  // may be no number, even times zero
  }
  float q[kVector];
  load_vector(query + chunk * kVector, q);
  const float scale = kLog2E * rsqrtf(static_cast<float>(kHeadDim));

  float scores[kTurns];
  float largest = -INFINITY;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    float k[kVector];
    Vector::unpack(keys[turn], k);
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) dot += q[i] * k[i];
    dot = warp_sum<kLanes>(dot) * scale;
    const bool visible = first_key + turn * kKeysAtOnce + key_in_turn < num_keys;
    scores[turn] = visible ? dot : -INFINITY;
    largest = fmaxf(largest, scores[turn]);
  }
  largest = warp_max(largest);
  const float reference = largest == -INFINITY ? 0.0f : largest;
  float sum = 0, output[kVector] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const float weight = exp2f(scores[turn] - reference);
    sum += weight;
    float v[kVector];
    Vector::unpack(values[turn], v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) output[i] += weight * v[i];
  }
  // Over the keys of a turn: lanes that hold the same chunk.
#pragma unroll
  for (int offset = kLanes; offset < kWarp; offset *= 2) {
    sum += __shfl_xor_sync(kFullWarp, sum, offset);
#pragma unroll
    for (int i = 0; i < kVector; ++i) output[i] += __shfl_xor_sync(kFullWarp, output[i], offset);
  }
  if (key_in_turn == 0) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) result->output[chunk * kVector + i] = output[i];
    if (chunk == 0) result->softmax = {largest, sum};
  }
}

// True in every thread of the block that arrives last of `expected`.
__device__ bool arrives_last(unsigned* counter, unsigned expected) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == expected - 1;
    if (last) *counter = 0;  // for the next launch
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Blocks: x = split, y = head, z = sequence.
template <int kHeadDim, typename Element>
__global__ void __launch_bounds__(kThreads)
    decode_attention_kernel(PagedAttentionParams p, unsigned* arrivals) {
  __shared__ Partial<kHeadDim> warp_parts[kWarps];
  let_successor_start();
  const AttentionSequence sequence = p.sequences[blockIdx.z];
  const int num_keys = sequence.num_cached + 1;
  const int split = blockIdx.x;
  if (sequence.num_tokens == 0 || split * kSplitKeys >= num_keys) {
    wait_for_predecessor();
    return;
  }

  const int head = blockIdx.y, warp = threadIdx.x / kWarp;
  const std::int64_t token = sequence.first_token;
  const Bf16* query = static_cast<const Bf16*>(p.qkv) + token * p.qkv_stride + head * kHeadDim;
  attend_to_warp_keys<kHeadDim, Element>(
      p, p.page_table + std::int64_t{sequence.row} * p.page_table_stride, query, head,
      split * kSplitKeys + warp * kWarpKeys, num_keys, &warp_parts[warp]);
  __syncthreads();

  const int num_splits = (num_keys + kSplitKeys - 1) / kSplitKeys;
  const int d = threadIdx.x;
  Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_stride + head * kHeadDim;
  const std::int64_t pair = std::int64_t{blockIdx.z} * p.heads.num_heads + head;
  auto* split_parts = static_cast<Partial<kHeadDim>*>(p.scratch) + pair * gridDim.x;
  if (d < kHeadDim) {
    const Partial<1> whole = combine(warp_parts, kWarps, d);
    if (num_splits == 1) {
      out[d] = __float2bfloat16_rn(whole.output[0] / whole.softmax.sum);
    } else {
      split_parts[split].output[d] = whole.output[0];
      if (d == 0) split_parts[split].softmax = whole.softmax;
    }
  }
  if (num_splits == 1 || !arrives_last(&arrivals[pair], num_splits)) return;
  if (d < kHeadDim) {
    const Partial<1> whole = combine(split_parts, num_splits, d);
    out[d] = __float2bfloat16_rn(whole.output[0] / whole.softmax.sum);
  }
}

template <int kHeadDim>
Status launch_for(Stream& stream, const PagedAttentionParams& params, unsigned* arrivals) {
  const LaunchShape shape{.grid = dim3(blocks_for(params.max_context, kSplitKeys),
                                       static_cast<unsigned>(params.heads.num_heads),
                                       static_cast<unsigned>(params.num_sequences)),
                          .block = dim3(kThreads)};
  return launch("decode_attention", stream, shape,
                params.kv.format == KvFormat::kFp8 ? decode_attention_kernel<kHeadDim, E4m3>
                                                   : decode_attention_kernel<kHeadDim, Bf16>,
                params, arrivals);
}

}  // namespace

Status decode_attention(Stream& stream, const PagedAttentionParams& params, unsigned* arrivals) {
  switch (params.heads.head_dim) {
    case 32:
      return launch_for<32>(stream, params, arrivals);
    case 64:
      return launch_for<64>(stream, params, arrivals);
    case 128:
      return launch_for<128>(stream, params, arrivals);
    default:
      return Status(StatusCode::kInvalidArgument,
                    "paged_attention: the head size must be 32, 64 or 128");
  }
}

std::size_t decode_attention_scratch_bytes(int max_sequences, int max_context, int num_heads,
                                           int head_dim) {
  const std::size_t splits = blocks_for(max_context, kSplitKeys);
  const std::size_t part_bytes =
      sizeof(PartialSoftmax) + static_cast<std::size_t>(head_dim) * sizeof(float);
  return static_cast<std::size_t>(max_sequences) * static_cast<std::size_t>(num_heads) * splits *
         part_bytes;
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
