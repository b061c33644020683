// Attention of packed sequences of new tokens over the paged cache.
#include <algorithm>

#include "kernels/cuda/device/flash_attention.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
inline namespace GAPLESS_PATH {
namespace {

// One block per multiprocessor, of as many groups as registers allow.
template <int kHeadDim>
using Shape = FlashShapeOfPath<kHeadDim, FlashShape<kHeadDim, kHeadDim <= 64 ? 4 : 2, 64>>;

// One tile of queries of one sequence and head. Query i has position num_cached + first_query + i.
template <int kHeadDim, typename Element>
struct PagedProblem {
  const Bf16* queries;  // the sequence's first new token
  Bf16* out;
  std::int64_t query_stride, out_stride;
  const Element* keys_;  // page 0 of this head
  const std::int32_t* pages;
  std::int64_t page_size;  // elements
  int first_query, tile_queries;
  int num_queries, num_cached, prefix_len, num_keys_;

  __device__ bool has_query(int i) const { return i < tile_queries; }
  __device__ const Bf16* query(int i) const { return queries + (first_query + i) * query_stride; }
  __device__ Bf16* output(int i) const { return out + (first_query + i) * out_stride; }
  __device__ int num_visible(int i) const {
    const int position = num_cached + first_query + i;
    return position < prefix_len ? min(prefix_len, num_cached + num_queries) : position + 1;
  }
  __device__ int num_keys() const { return num_keys_; }
  __device__ std::int64_t offset(int t) const {
    return __ldg(pages + t / kPageTokens) * page_size + t % kPageTokens * kHeadDim;
  }
  __device__ const Element* keys() const { return keys_; }
  __device__ const Element* values() const {
    return keys_ + KvLayout{.num_heads = 1, .head_dim = kHeadDim}.part_size();
  }
};

// Tiles of queries of all heads and sequences, found on the device: a captured launch fits every
// pack of its size, however long each sequence is.
template <int kHeadDim, typename Element>
struct PagedWork {
  using Problem = PagedProblem<kHeadDim, Element>;
  const PagedAttentionParams& p;
  const int& tile_queries_;
  // A thread keeps these where it has registers enough, and counts again elsewhere. (Both are counted in one loop: by calls of count()
  // heads of 64 and 32 had up to 40 bytes in memory on 9.0a.)
  int num_full_ = 0, num_problems_ = 0;

  __device__ PagedWork(const PagedAttentionParams& params, const int& tile_queries)
      : p(params), tile_queries_(tile_queries) {
    if constexpr (kHasRegisterExchange) {
      for (int s = 0; s < p.num_sequences; ++s) {
        num_full_ += tiles(s, true) * p.heads.num_heads;
        num_problems_ += tiles(s, false) * p.heads.num_heads;
      }
      num_problems_ += num_full_;
    }
  }
  __device__ int count(bool full) const {
    int count = 0;
    for (int s = 0; s < p.num_sequences; ++s) count += tiles(s, full);
    return count * p.heads.num_heads;
  }
  // Full ones; or the last one, if it is not full.
  __device__ int tiles(int sequence, bool full) const {
    const int num_tokens = p.sequences[sequence].num_tokens;
    return full ? num_tokens / tile_queries_ : int{num_tokens % tile_queries_ > 0};
  }
  __device__ int num_full() const { return kHasRegisterExchange ? num_full_ : count(true); }
  __device__ int num_problems() const {
    return kHasRegisterExchange ? num_problems_ : count(true) + count(false);
  }
  // Those of full tiles come first: blocks that have one less get more of the others.
  __device__ Problem problem(int index) const {
    const int num_full_ones = num_full();
    const bool full = index < num_full_ones;
    if (!full) index -= num_full_ones;
    int s = 0;
    for (; index >= tiles(s, full) * p.heads.num_heads; ++s)
      index -= tiles(s, full) * p.heads.num_heads;
    const AttentionSequence& sequence = p.sequences[s];
    const int num_tiles = tiles(s, full);
    const int head = index / num_tiles;
    const int tile = full ? index % num_tiles : tiles(s, true);
    const int first_query = tile * tile_queries_;
    const std::int64_t in_row = std::int64_t{head} * kHeadDim;
    const KvLayout layout{.num_heads = p.heads.num_kv_heads, .head_dim = kHeadDim};
    const std::int64_t first_token = sequence.first_token;
    Problem problem{
        .queries = static_cast<const Bf16*>(p.qkv) + first_token * p.qkv_stride + in_row,
        .out = static_cast<Bf16*>(p.out) + first_token * p.out_stride + in_row,
        .query_stride = p.qkv_stride,
        .out_stride = p.out_stride,
        .keys_ = static_cast<const Element*>(p.kv.pages) +
                 layout.in_page(KvPart::kKeys, head / p.heads.group_size(), 0),
        .pages = p.page_table + std::int64_t{sequence.row} * p.page_table_stride,
        .page_size = layout.page_size(),
        .first_query = first_query,
        .tile_queries = min(tile_queries_, sequence.num_tokens - first_query),
        .num_queries = sequence.num_tokens,
        .num_cached = sequence.num_cached,
        .prefix_len = sequence.prefix_len,
        .num_keys_ = 0};
    // A later query sees at least as much as an earlier one.
    problem.num_keys_ = problem.num_visible(problem.tile_queries - 1);
    return problem;
  }
};

template <int kHeadDim, typename Element>
using Shared = FlashShared<Shape<kHeadDim>, PagedProblem<kHeadDim, Element>>;

template <int kHeadDim, typename Element>
__global__ void __launch_bounds__(kFlashThreads<Shape<kHeadDim>>, 1)
    prefill_attention_kernel(PagedAttentionParams p, int tile_queries) {
  extern __shared__ __align__(1024) char raw_shared[];
  let_successor_start();
  // The sequences are there: rope_and_cache waited before it let this kernel start.
  const PagedWork<kHeadDim, Element> work(p, tile_queries);
  flash_attention(work, *reinterpret_cast<Shared<kHeadDim, Element>*>(raw_shared));
}

template <int kHeadDim>
Status launch_for(Stream& stream, const PagedAttentionParams& params, int num_multiprocessors) {
  // At most: every sequence may end with a tile that is not full.
  const auto problems = [&](int groups) {
    return (blocks_for(params.num_tokens, groups * kGroupQueries) +
            static_cast<unsigned>(std::max(params.num_sequences, 1) - 1)) *
           static_cast<unsigned>(params.heads.num_heads);
  };
  // A tile is as small as it can be with a block for each: then its groups share the multiprocessor with fewer others. Where
  // even the largest are too many, they are the largest. A query's bits do not depend on its tile (flash_attention.cuh).
  int groups = 1;
  while (groups < Shape<kHeadDim>::kGroups &&
         problems(groups) > static_cast<unsigned>(num_multiprocessors)) {
    ++groups;
  }
  const LaunchShape shape{
      .grid = dim3(std::min(problems(groups), static_cast<unsigned>(num_multiprocessors))),
      .block = dim3(kFlashThreads<Shape<kHeadDim>>),
      .shared_bytes = sizeof(Shared<kHeadDim, Bf16>),
      .registers = FlashRegisters<Shape<kHeadDim>>::kExchanged};
  return launch("prefill_attention", stream, shape,
                params.kv.format == KvFormat::kFp8 ? prefill_attention_kernel<kHeadDim, E4m3>
                                                   : prefill_attention_kernel<kHeadDim, Bf16>,
                params, groups * kGroupQueries);
}

}  // namespace

Status prefill_attention(Stream& stream, const PagedAttentionParams& params,
                         int num_multiprocessors) {
  switch (params.heads.head_dim) {
    case 32:
      return launch_for<32>(stream, params, num_multiprocessors);
    case 64:
      return launch_for<64>(stream, params, num_multiprocessors);
    case 128:
      return launch_for<128>(stream, params, num_multiprocessors);
    default:
      return Status(StatusCode::kInvalidArgument,
                    "paged_attention: the head size must be 32, 64 or 128");
  }
}

}  // namespace GAPLESS_PATH
}  // namespace gapless::cuda
