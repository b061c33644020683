// Attention of packed sequences of new tokens over the paged cache.
#include "kernels/cuda/device/flash_attention.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launchers.h"

namespace gapless::cuda {
namespace {

// One tile of queries of one sequence and head. Query i has position num_cached + first_query + i.
template <int kHeadDim>
struct PagedProblem {
  const Bf16* queries;  // the sequence's first new token
  Bf16* out;
  std::int64_t query_stride, out_stride;
  const Bf16* keys;  // page 0 of this head
  const Bf16* values;
  const std::int32_t* pages;
  std::int64_t page_stride;  // elements
  int first_query, num_queries, num_cached, prefix_len, num_keys_;

  __device__ bool has_query(int i) const { return first_query + i < num_queries; }
  __device__ const Bf16* query(int i) const { return queries + (first_query + i) * query_stride; }
  __device__ Bf16* output(int i) const { return out + (first_query + i) * out_stride; }
  __device__ int num_visible(int i) const {
    if (!has_query(i)) return 0;
    const int position = num_cached + first_query + i;
    return position < prefix_len ? min(prefix_len, num_cached + num_queries) : position + 1;
  }
  __device__ int num_keys() const { return num_keys_; }
  __device__ std::int64_t offset(int t) const {
    return pages[t / kPageTokens] * page_stride + t % kPageTokens * kHeadDim;
  }
  __device__ const Bf16* key(int t) const { return keys + offset(t); }
  __device__ const Bf16* value(int t) const { return values + offset(t); }
};

struct QueryTile {
  int sequence = 0;
  int first_query = 0;
};

// The block's tile, of those of all sequences counted from the last, which sees the most keys, to the
// first. The grid has a bound of their number, which does not depend on how long each sequence
// is: a captured launch fits every pack of its size. False: one block too many.
__device__ bool find_tile(const PagedAttentionParams& p, int block, QueryTile& tile) {
  for (int s = p.num_sequences - 1; s >= 0; --s) {
    const int tiles = (p.sequences[s].num_tokens + kFlashQueries - 1) / kFlashQueries;
    if (block < tiles) {
      tile = {s, (tiles - 1 - block) * kFlashQueries};
      return true;
    }
    block -= tiles;
  }
  return false;
}

int max_tiles(const PagedAttentionParams& params) {
  return static_cast<int>(blocks_for(params.num_tokens, kFlashQueries)) + params.num_sequences - 1;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kFlashThreads, 2)
    prefill_attention_kernel(PagedAttentionParams p) {
  extern __shared__ __align__(16) char raw_shared[];
  let_successor_start();
  wait_for_predecessor();
  QueryTile tile;
  if (!find_tile(p, blockIdx.y, tile)) return;
  const AttentionSequence sequence = p.sequences[tile.sequence];
  const int first_query = tile.first_query;

  const int head = blockIdx.x;
  const std::int64_t in_row = std::int64_t{head} * kHeadDim;
  const std::int64_t head_start = std::int64_t{head} * kPageTokens * kHeadDim;
  const std::int64_t first_token = sequence.first_token;
  PagedProblem<kHeadDim> problem{
      .queries = static_cast<const Bf16*>(p.qkv) + first_token * p.qkv_stride + in_row,
      .out = static_cast<Bf16*>(p.out) + first_token * p.out_stride + in_row,
      .query_stride = p.qkv_stride,
      .out_stride = p.out_stride,
      .keys = static_cast<const Bf16*>(p.kv.k) + head_start,
      .values = static_cast<const Bf16*>(p.kv.v) + head_start,
      .pages = p.page_table + std::int64_t{sequence.row} * p.page_table_stride,
      .page_stride = std::int64_t{p.num_heads} * kPageTokens * kHeadDim,
      .first_query = first_query,
      .num_queries = sequence.num_tokens,
      .num_cached = sequence.num_cached,
      .prefix_len = sequence.prefix_len,
      .num_keys_ = 0};
  // A later query sees at least as much as an earlier one.
  problem.num_keys_ =
      problem.num_visible(min(kFlashQueries, sequence.num_tokens - first_query) - 1);
  flash_attention<kHeadDim>(problem, *reinterpret_cast<FlashShared<kHeadDim>*>(raw_shared));
}

template <int kHeadDim>
Status launch_for(Stream& stream, const PagedAttentionParams& params) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(params.num_heads),
                                       static_cast<unsigned>(max_tiles(params))),
                          .block = dim3(kFlashThreads),
                          .shared_bytes = sizeof(FlashShared<kHeadDim>)};
  return launch("prefill_attention", stream, shape, prefill_attention_kernel<kHeadDim>, params);
}

}  // namespace

Status prefill_attention(Stream& stream, const PagedAttentionParams& params) {
  switch (params.head_dim) {
    case 32:
      return launch_for<32>(stream, params);
    case 64:
      return launch_for<64>(stream, params);
    case 128:
      return launch_for<128>(stream, params);
    default:
      return Status(StatusCode::kInvalidArgument,
                    "paged_attention: the head size must be 32, 64 or 128");
  }
}

}  // namespace gapless::cuda
