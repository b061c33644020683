#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_index.h"

namespace gapless::cpu {
namespace {

// Queries of one task; a multiple of every tile_rows.
constexpr std::int64_t kQueriesPerTask = 36;

}  // namespace

void vision_attention(const VectorOps& ops, const VisionAttentionParams& params) {
  const std::int64_t seq_len = params.seq_len, head_dim = params.head_dim;
  const std::int64_t width = params.num_heads * head_dim, stride = 3 * width;
  const std::int64_t tasks_per_head = divide_up(seq_len, kQueriesPerTask);
  int num_visible[kMaxTileRows];
  std::fill_n(num_visible, kMaxTileRows, params.seq_len);

  const std::int64_t num_heads_in_all = std::int64_t{params.num_crops} * params.num_heads;
  ThreadPool::shared().parallel_for(num_heads_in_all * tasks_per_head, [&](std::int64_t task) {
    const std::int64_t crop = task / tasks_per_head / params.num_heads;
    const std::int64_t head = task / tasks_per_head % params.num_heads;
    const std::int64_t first = task % tasks_per_head * kQueriesPerTask;
    const std::int64_t last = std::min(first + kQueriesPerTask, seq_len);
    const float* q =
        static_cast<const float*>(params.qkv) + crop * seq_len * stride + head * head_dim;
    float* out = static_cast<float*>(params.out) + crop * seq_len * width + head * head_dim;
    for (std::int64_t i = first; i < last; i += ops.tile_rows) {
      ops.attend({.q = q + i * stride,
                  .q_stride = stride,
                  .out = out + i * width,
                  .out_stride = width,
                  .num_visible = num_visible,
                  .num_queries = static_cast<int>(std::min<std::int64_t>(ops.tile_rows, last - i)),
                  .head_dim = params.head_dim,
                  .k = q + width,
                  .v = q + 2 * width,
                  .key_stride = stride,
                  .page_stride = kPageTokens * stride});
    }
  });
}

namespace {

// Queries [first, last) of one head of one sequence.
void attend_to_pages(const VectorOps& ops, const PagedAttentionParams& params,
                     const AttentionSequence& sequence, std::int64_t head, std::int64_t first,
                     std::int64_t last) {
  const AttentionHeads& heads = params.heads;
  const std::int64_t offset = head * heads.head_dim;
  const std::int64_t head_in_page =
      kv_index(0, head / heads.group_size(), heads.num_kv_heads, heads.head_dim);
  const int context = sequence.num_cached + sequence.num_tokens;
  for (std::int64_t i = first; i < last; i += ops.tile_rows) {
    const auto num_queries = static_cast<int>(std::min<std::int64_t>(ops.tile_rows, last - i));
    int num_visible[kMaxTileRows];
    for (int j = 0; j < num_queries; ++j) {
      const int position = sequence.num_cached + static_cast<int>(i) + j;
      num_visible[j] =
          position < sequence.prefix_len ? std::min(sequence.prefix_len, context) : position + 1;
    }
    const std::int64_t token = sequence.first_token + i;
    ops.attend(
        {.q = static_cast<const float*>(params.qkv) + token * params.qkv_stride + offset,
         .q_stride = params.qkv_stride,
         .out = static_cast<float*>(params.out) + token * params.out_stride + offset,
         .out_stride = params.out_stride,
         .num_visible = num_visible,
         .num_queries = num_queries,
         .head_dim = heads.head_dim,
         .k = params.kv.k,
         .v = params.kv.v,
         .format = params.kv.format,
         .first = head_in_page,
         .key_stride = heads.head_dim,
         .page_stride = kv_index(kPageTokens, 0, heads.num_kv_heads, heads.head_dim),
         .page_table = params.page_table + std::int64_t{sequence.row} * params.page_table_stride});
  }
}

}  // namespace

void paged_attention(const VectorOps& ops, const PagedAttentionParams& params) {
  // Tasks are laid out for the longest sequence; those past the end of a shorter one are empty.
  const std::int64_t tasks_per_head = divide_up(params.max_new_tokens, kQueriesPerTask);
  const std::int64_t num_tasks = params.num_sequences * params.heads.num_heads * tasks_per_head;
  ThreadPool::shared().parallel_for(num_tasks, [&](std::int64_t task) {
    const AttentionSequence& sequence =
        params.sequences[task / tasks_per_head / params.heads.num_heads];
    const std::int64_t head = task / tasks_per_head % params.heads.num_heads;
    const std::int64_t first = task % tasks_per_head * kQueriesPerTask;
    const std::int64_t last = std::min<std::int64_t>(first + kQueriesPerTask, sequence.num_tokens);
    attend_to_pages(ops, params, sequence, head, first, last);
  });
}

namespace {

// (x[j], x[j + half]) turned by the angle of pair j; `table` is [half, 2]: cos, sin.
void rotate(const float* from, const float* table, int half, float* to) {
  for (int j = 0; j < half; ++j) {
    const float a = from[j], b = from[j + half];
    to[j] = a * table[2 * j] - b * table[2 * j + 1];
    to[j + half] = a * table[2 * j + 1] + b * table[2 * j];
  }
}

}  // namespace

void rope_and_cache(const VectorOps& ops, const RopeAndCacheParams& params) {
  const AttentionHeads& heads = params.heads;
  const int head_dim = heads.head_dim, half = params.rotary_dim / 2;
  // From one place to another, or in place.
  auto turn = [&](const float* from, const NormWeights& norm, const float* table, float* to) {
    if (norm.gamma != nullptr) {
      ops.norm_rows({.x = from, .weights = norm, .y = to, .num_rows = 1, .dim = head_dim}, 0, 1);
    } else if (from != to) {
      std::copy_n(from, head_dim, to);
    }
    rotate(to, table, half, to);
  };
  constexpr std::int64_t kTokensPerTask = 32;
  const std::int64_t num_tokens = params.num_tokens;
  ThreadPool::shared().parallel_for(divide_up(num_tokens, kTokensPerTask), [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kTokensPerTask, num_tokens);
    for (std::int64_t t = task * kTokensPerTask; t < end; ++t) {
      const float* table = params.rope_table + std::int64_t{params.positions[t]} * 2 * half;
      float* q = static_cast<float*>(params.qkv) + t * params.qkv_stride;
      const float *k = q + heads.q_width(), *v = k + heads.kv_width();
      for (int h = 0; h < heads.num_heads; ++h) {
        turn(q + h * head_dim, params.q_norm, table, q + h * head_dim);
      }
      for (int h = 0; h < heads.num_kv_heads; ++h) {
        const std::int64_t at = kv_index(params.cache_slots[t], h, heads.num_kv_heads, head_dim);
        float key[kMaxHeadDim];
        turn(k + h * head_dim, params.k_norm, table, key);
        store_kv(params.kv.format, params.kv.k, at, key, head_dim);
        store_kv(params.kv.format, params.kv.v, at, v + h * head_dim, head_dim);
      }
    }
  });
}

}  // namespace gapless::cpu
