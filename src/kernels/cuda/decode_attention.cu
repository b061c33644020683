// Attention of one new token per sequence over the paged cache: bound by reading keys and values
// once.
//
// An item of work is kSplitKeys keys of one sequence and kHeadsAtOnce heads, whose keys lie side by
// side in a page. Blocks stay and take items in turn: a copying warp keeps a ring of stages (a
// page's keys and values of those heads: two runs of 8 KB at head size 64; shorter runs cost a
// third of the bandwidth) full through the copy engine, and each of kHeadsAtOnce computing warps
// follows one head. The ring runs on across items, so the memory never waits for a softmax. Whoever
// finishes a sequence and head's last item combines its items.
//
// Row invariance: items start at multiples of kSplitKeys of the sequence, and sums run over pages,
// lanes and items in fixed orders, whichever block takes which.
//
// Cached keys and values are asked for before wait_for_predecessor: of what this kernel reads, the
// kernel just before it, rope_and_cache, writes the queries and the newest key and value alone.
// That kernel lets this one start only when everything before it is complete, so the sequences and
// the page table are there.
#include <algorithm>

#include "base/limits.h"
#include "kernels/cuda/device/async.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
namespace {

constexpr int kHeadsAtOnce = 4;
constexpr int kThreads = (kHeadsAtOnce + 1) * kWarp;
constexpr int kSplitPages = 4;
constexpr int kSplitKeys = kSplitPages * kPageTokens;
constexpr int kBlocksPerMultiprocessor = 2;

// A softmax over part of the keys: the largest scaled score (in powers of two) and the sum of
// powers.
struct PartialSoftmax {
  float largest;
  float sum;
};

template <int kHeadDim>
struct Partial {
  PartialSoftmax softmax;
  float output[kHeadDim];
};

template <int kHeadDim>
struct Shared {
  static constexpr int kPageBytes = kPageTokens * kHeadDim * 2;  // keys, or values, of one head
  static constexpr int kTensorBytes = kHeadsAtOnce * kPageBytes;
  static constexpr int kStageBytes = 2 * kTensorBytes;  // keys, then values
  static constexpr int kBudget = 104 << 10;
  static constexpr int kNumStages = kBudget / kStageBytes < 8 ? kBudget / kStageBytes : 8;

  alignas(128) char stages[kNumStages][kStageBytes];
  std::uint64_t full[kNumStages], empty[kNumStages];
  AttentionSequence sequences[kMaxRows];
  int items_before[kMaxRows + 1];  // in units of all heads
};

// Everything about one item.
struct Item {
  AttentionSequence sequence;
  int index;  // of the sequence
  int first_head, num_heads;
  int split, num_splits;
  int first_key, num_keys;  // this item's keys
  int newest;               // the position whose key this step made

  __device__ int num_stages() const { return (num_keys + kPageTokens - 1) / kPageTokens; }
};

// The items of a launch, in the order in which blocks take them: all heads of a split are
// neighbours, as their keys are in memory.
struct ItemList {
  const AttentionSequence* sequences;  // shared
  const int* items_before;             // shared
  int num_sequences, num_heads;

  __device__ static int splits_of(const AttentionSequence& s) {
    return s.num_tokens == 0 ? 0
                             : (s.num_cached + kSplitKeys) / kSplitKeys;  // of num_cached + 1 keys
  }

  // One warp fills the shared tables.
  __device__ static void build(const PagedAttentionParams& p, AttentionSequence* sequences,
                               int* items_before) {
    const int lane = threadIdx.x % kWarp;
    int before = 0;
    for (int base = 0; base < p.num_sequences; base += kWarp) {
      const int i = base + lane;
      int own = 0;
      if (i < p.num_sequences) {
        sequences[i] = p.sequences[i];
        own = splits_of(sequences[i]);
      }
      int sum = own;
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int lower = __shfl_up_sync(kFullWarp, sum, offset);
        if (lane >= offset) sum += lower;
      }
      if (i < p.num_sequences) items_before[i + 1] = before + sum;
      before += __shfl_sync(kFullWarp, sum, kWarp - 1);
    }
    if (lane == 0) items_before[0] = 0;
  }

  __device__ int head_groups() const { return (num_heads + kHeadsAtOnce - 1) / kHeadsAtOnce; }
  __device__ int size() const { return items_before[num_sequences] * head_groups(); }

  // All lanes of a warp together.
  __device__ Item at(int i) const {
    const int lane = threadIdx.x % kWarp;
    Item item;
    item.first_head = i % head_groups() * kHeadsAtOnce;
    item.num_heads = min(kHeadsAtOnce, num_heads - item.first_head);
    const int split = i / head_groups();
    item.index = 0;
    for (int base = 0; base < num_sequences; base += kWarp) {
      const int s = base + lane;
      item.index +=
          __popc(__ballot_sync(kFullWarp, s < num_sequences && items_before[s + 1] <= split));
    }
    item.split = split - items_before[item.index];
    item.sequence = sequences[item.index];
    item.num_splits = splits_of(item.sequence);
    item.newest = item.sequence.num_cached;
    item.first_key = item.split * kSplitKeys;
    item.num_keys = min(kSplitKeys, item.newest + 1 - item.first_key);
    return item;
  }
};

// The copying warp.
template <int kHeadDim>
__device__ void fill_stages(const PagedAttentionParams& p, const ItemList& items,
                            Shared<kHeadDim>& s) {
  using S = Shared<kHeadDim>;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t page_bytes = std::int64_t{p.num_heads} * S::kPageBytes;
  const int size = items.size();
  // Lane l holds the item's page l.
  auto page_of = [&](const Item& item) -> std::int64_t {
    const std::int64_t at =
        std::int64_t{item.sequence.row} * p.page_table_stride + item.first_key / kPageTokens + lane;
    return lane * kPageTokens < item.num_keys ? p.page_table[at] : 0;
  };
  bool waited = false;
  int step = 0;
  Item item;
  std::int64_t pages = 0;
  if (static_cast<int>(blockIdx.x) < size) {
    item = items.at(blockIdx.x);
    pages = page_of(item);
  }
  for (int i = blockIdx.x; i < size; i += gridDim.x) {
    Item next = item;
    std::int64_t next_pages = 0;
    if (i + static_cast<int>(gridDim.x) < size) {
      next = items.at(i + gridDim.x);
      next_pages = page_of(next);
    }
    const int tensor_bytes = item.num_heads * S::kPageBytes;
    for (int stage = 0; stage < item.num_stages(); ++stage, ++step) {
      const int slot = step % S::kNumStages;
      const std::int64_t page = __shfl_sync(kFullWarp, pages, stage);
      if (step >= S::kNumStages) {
        wait_barrier(shared_address(&s.empty[slot]), (step / S::kNumStages - 1) & 1);
      }
      if (!waited && item.first_key + (stage + 1) * kPageTokens > item.newest) {
        wait_for_predecessor();
        waited = true;
      }
      if (lane == 0) {
        const std::uint32_t full = shared_address(&s.full[slot]);
        const std::uint32_t to = shared_address(s.stages[slot]);
        const std::int64_t from = page * page_bytes + item.first_head * S::kPageBytes;
        arrive_expecting(full, 2 * tensor_bytes);
        copy_bytes_async(to, static_cast<const char*>(p.kv.k) + from, tensor_bytes, full);
        copy_bytes_async(to + S::kTensorBytes, static_cast<const char*>(p.kv.v) + from,
                         tensor_bytes, full);
      }
      __syncwarp();
    }
    item = next;
    pages = next_pages;
  }
  if (!waited) wait_for_predecessor();
}

// A head's running softmax over an item. kLanes lanes share a key, 8 elements each.
template <int kHeadDim>
struct HeadSoftmax {
  static constexpr int kLanes = kHeadDim / kVector;
  static constexpr int kKeysAtOnce = kWarp / kLanes;
  static constexpr int kTurns = kPageTokens / kKeysAtOnce;

  float largest = -INFINITY;
  float sum = 0;
  float output[kVector] = {};

  // The first num_keys keys of a page.
  __device__ __forceinline__ void absorb(const char* page_keys, const char* page_values,
                                         const float (&q)[kVector], int num_keys) {
    const int lane = threadIdx.x % kWarp;
    const int first = lane / kLanes;
    const auto* keys = reinterpret_cast<const uint4*>(page_keys) + lane;
    const auto* values = reinterpret_cast<const uint4*>(page_values) + lane;
    float scores[kTurns];
    float page_largest = -INFINITY;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      float k[kVector];
      unpack(keys[turn * kWarp], k);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) dot += q[i] * k[i];
      dot = warp_sum<kLanes>(dot);
      scores[turn] = first + turn * kKeysAtOnce < num_keys ? dot : -INFINITY;
      page_largest = fmaxf(page_largest, scores[turn]);
    }
#pragma unroll
    for (int offset = kLanes; offset < kWarp; offset *= 2) {
      page_largest = fmaxf(page_largest, __shfl_xor_sync(kFullWarp, page_largest, offset));
    }
    const float before = largest;
    largest = fmaxf(before, page_largest);
    const float keep = exp2f(before - largest);
    sum *= keep;
#pragma unroll
    for (int i = 0; i < kVector; ++i) output[i] *= keep;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const float weight = exp2f(scores[turn] - largest);
      sum += weight;
      // Past the end lies anything, perhaps no number.
      const bool visible = first + turn * kKeysAtOnce < num_keys;
      float v[kVector];
      unpack(visible ? values[turn * kWarp] : uint4{0, 0, 0, 0}, v);
#pragma unroll
      for (int i = 0; i < kVector; ++i) output[i] += weight * v[i];
    }
  }

  // Sums over the lanes that hold the same elements of different keys; the result in all of them.
  __device__ __forceinline__ void add_up_lanes() {
#pragma unroll
    for (int offset = kLanes; offset < kWarp; offset *= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, offset);
#pragma unroll
      for (int i = 0; i < kVector; ++i) output[i] += __shfl_xor_sync(kFullWarp, output[i], offset);
    }
  }
};

// One element of the combination of a head's items, in order.
template <int kHeadDim>
__device__ float combine(const Partial<kHeadDim>* parts, int count, int d) {
  float largest = -INFINITY;
  for (int i = 0; i < count; ++i) largest = fmaxf(largest, parts[i].softmax.largest);
  float sum = 0, output = 0;
  for (int i = 0; i < count; ++i) {
    const float weight = exp2f(parts[i].softmax.largest - largest);
    sum += weight * parts[i].softmax.sum;
    output += weight * parts[i].output[d];
  }
  return output / sum;
}

// One warp: a head's share of an item to the output, or to scratch and, when all items of the
// sequence and head are there, from there to the output.
template <int kHeadDim>
__device__ void finish_item(const PagedAttentionParams& p, const Item& item, int head,
                            int max_splits, HeadSoftmax<kHeadDim>& softmax, unsigned* arrivals) {
  const int lane = threadIdx.x % kWarp;
  softmax.add_up_lanes();
  Bf16* out =
      static_cast<Bf16*>(p.out) + item.sequence.first_token * p.out_stride + head * kHeadDim;
  const bool holds_elements = lane < HeadSoftmax<kHeadDim>::kLanes;
  if (item.num_splits == 1) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) softmax.output[i] /= softmax.sum;
    if (holds_elements) store_vector(out + lane * kVector, softmax.output);
    return;
  }
  const std::int64_t pair = std::int64_t{item.index} * p.num_heads + head;
  auto* parts = static_cast<Partial<kHeadDim>*>(p.scratch) + pair * max_splits;
  if (holds_elements) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      parts[item.split].output[lane * kVector + i] = softmax.output[i];
    }
    if (lane == 0) parts[item.split].softmax = {softmax.largest, softmax.sum};
  }
  __threadfence();
  __syncwarp();
  bool last = false;
  if (lane == 0) {
    last = atomicAdd(&arrivals[pair], 1u) == static_cast<unsigned>(item.num_splits) - 1;
    if (last) arrivals[pair] = 0;  // for the next launch
  }
  if (!__shfl_sync(kFullWarp, last, 0)) return;
  __threadfence();
  for (int d = lane; d < kHeadDim; d += kWarp) {
    out[d] = __float2bfloat16_rn(combine(parts, item.num_splits, d));
  }
}

// A computing warp.
template <int kHeadDim>
__device__ void attend(const PagedAttentionParams& p, const ItemList& items, int max_splits,
                       Shared<kHeadDim>& s, unsigned* arrivals) {
  using S = Shared<kHeadDim>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const float scale = kLog2E * rsqrtf(static_cast<float>(kHeadDim));
  const int size = items.size();
  auto load_query = [&](const Item& item) {
    const int head = item.first_head + min(warp, item.num_heads - 1);
    return *reinterpret_cast<const uint4*>(
        static_cast<const Bf16*>(p.qkv) + item.sequence.first_token * p.qkv_stride +
        head * kHeadDim + lane % HeadSoftmax<kHeadDim>::kLanes * kVector);
  };
  int step = 0;
  uint4 next_query = {};
  if (static_cast<int>(blockIdx.x) < size) next_query = load_query(items.at(blockIdx.x));
  for (int i = blockIdx.x; i < size; i += gridDim.x) {
    const Item item = items.at(i);
    float q[kVector];
    unpack(next_query, q);
    if (i + static_cast<int>(gridDim.x) < size) next_query = load_query(items.at(i + gridDim.x));
#pragma unroll
    for (int j = 0; j < kVector; ++j) q[j] *= scale;
    HeadSoftmax<kHeadDim> softmax;
    for (int stage = 0; stage < item.num_stages(); ++stage, ++step) {
      const int slot = step % S::kNumStages;
      wait_barrier(shared_address(&s.full[slot]), (step / S::kNumStages) & 1);
      const char* keys = s.stages[slot] + warp * S::kPageBytes;
      softmax.absorb(keys, keys + S::kTensorBytes, q, item.num_keys - stage * kPageTokens);
      __syncwarp();
      if (lane == 0) arrive(shared_address(&s.empty[slot]));
    }
    if (warp < item.num_heads) {
      finish_item(p, item, item.first_head + warp, max_splits, softmax, arrivals);
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    decode_attention_kernel(PagedAttentionParams p, int max_splits, unsigned* arrivals) {
  using S = Shared<kHeadDim>;
  extern __shared__ char raw_shared[];
  S& s = *reinterpret_cast<S*>(raw_shared + (128 - shared_address(raw_shared) % 128) % 128);
  let_successor_start();
  const int warp = threadIdx.x / kWarp;
  if (warp == 0) ItemList::build(p, s.sequences, s.items_before);
  if (threadIdx.x == kHeadsAtOnce * kWarp) {
    for (int slot = 0; slot < S::kNumStages; ++slot) {
      init_barrier(shared_address(&s.full[slot]), 1);
      init_barrier(shared_address(&s.empty[slot]), kHeadsAtOnce);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const ItemList items{s.sequences, s.items_before, p.num_sequences, p.num_heads};
  if (warp == kHeadsAtOnce) {
    fill_stages(p, items, s);
  } else {
    wait_for_predecessor();
    attend(p, items, max_splits, s, arrivals);
  }
}

template <int kHeadDim>
Status launch_for(Stream& stream, const PagedAttentionParams& params, unsigned* arrivals,
                  int num_multiprocessors) {
  const unsigned max_splits = blocks_for(params.max_context, kSplitKeys);
  const unsigned max_items = max_splits * blocks_for(params.num_heads, kHeadsAtOnce) *
                             static_cast<unsigned>(params.num_sequences);
  const auto places = static_cast<unsigned>(kBlocksPerMultiprocessor * num_multiprocessors);
  const LaunchShape shape{.grid = dim3(std::min(max_items, places)),
                          .block = dim3(kThreads),
                          .shared_bytes = sizeof(Shared<kHeadDim>) + 128};
  return launch("decode_attention", stream, shape, decode_attention_kernel<kHeadDim>, params,
                static_cast<int>(max_splits), arrivals);
}

}  // namespace

Status decode_attention(Stream& stream, const PagedAttentionParams& params, unsigned* arrivals,
                        int num_multiprocessors) {
  switch (params.head_dim) {
    case 32:
      return launch_for<32>(stream, params, arrivals, num_multiprocessors);
    case 64:
      return launch_for<64>(stream, params, arrivals, num_multiprocessors);
    case 128:
      return launch_for<128>(stream, params, arrivals, num_multiprocessors);
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

}  // namespace gapless::cuda
