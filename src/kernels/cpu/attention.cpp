#include <algorithm>
#include <cstddef>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_index.h"

namespace gapless::cpu {
namespace {

// Queries of one task: few enough that all tasks have about as many.
constexpr std::int64_t kTileUnit = 12;      // of a VectorOps
constexpr std::int64_t kTaskQueries = 264;  // three tasks a head of a crop
std::int64_t queries_per_task(std::int64_t num_queries) {
  const std::int64_t num_tasks = divide_up(num_queries, kTaskQueries);
  return divide_up(divide_up(num_queries, num_tasks), kTileUnit) * kTileUnit;
}
static_assert(kTaskQueries <= kMaxTileQueries && kTaskQueries % kTileUnit == 0);

// Element `at` of an array of T.
const void* element_at(const VectorOps& ops, const void* from, std::int64_t at) {
  return static_cast<const std::byte*>(from) + at * static_cast<int>(dtype_bytes(ops.dtype));
}
void* element_at(const VectorOps& ops, void* from, std::int64_t at) {
  return static_cast<std::byte*>(from) + at * static_cast<int>(dtype_bytes(ops.dtype));
}

}  // namespace

void vision_attention(const VectorOps& ops, const VisionAttentionParams& params) {
  const std::int64_t seq_len = params.seq_len, head_dim = params.head_dim;
  const std::int64_t width = params.num_heads * head_dim, stride = 3 * width;
  const std::int64_t queries = queries_per_task(seq_len);
  const std::int64_t tasks_per_head = divide_up(seq_len, queries);
  int num_visible[kMaxTileQueries];
  std::fill_n(num_visible, kMaxTileQueries, params.seq_len);

  const std::int64_t num_heads_in_all = std::int64_t{params.num_crops} * params.num_heads;
  ThreadPool::shared().parallel_for(num_heads_in_all * tasks_per_head, [&](std::int64_t task) {
    const std::int64_t crop = task / tasks_per_head / params.num_heads;
    const std::int64_t head = task / tasks_per_head % params.num_heads;
    const std::int64_t first = task % tasks_per_head * queries;
    const std::int64_t last = std::min(first + queries, seq_len);
    const std::int64_t q = (crop * seq_len + first) * stride + head * head_dim;
    ops.attend(
        {.q = element_at(ops, params.qkv, q),
         .q_stride = stride,
         .out = element_at(ops, params.out, (crop * seq_len + first) * width + head * head_dim),
         .out_stride = width,
         .num_visible = num_visible,
         .num_queries = static_cast<int>(last - first),
         .head_dim = params.head_dim,
         .k = params.qkv,
         .v = element_at(ops, params.qkv, width),
         .first = crop * seq_len * stride + width + head * head_dim,
         .key_stride = stride,
         .page_stride = kPageTokens * stride});
  });
}

namespace {

// Queries [first, last) of one head of one sequence.
void attend_to_pages(const VectorOps& ops, const PagedAttentionParams& params,
                     const AttentionSequence& sequence, std::int64_t head, std::int64_t first,
                     std::int64_t last) {
  const AttentionHeads& heads = params.heads;
  const std::int64_t offset = head * heads.head_dim;
  const KvLayout layout = heads.kv_layout();
  const auto in_page = [&](KvPart part) {
    const int at = layout.in_page(part, static_cast<int>(head) / heads.group_size(), 0);
    return static_cast<const std::byte*>(params.kv.pages) +
           std::int64_t{at} * static_cast<int>(kv_element_bytes(params.kv.format, ops.dtype));
  };
  const int context = sequence.num_cached + sequence.num_tokens;
  if (first >= last) return;
  int num_visible[kMaxTileQueries];
  for (std::int64_t i = first; i < last; ++i) {
    const int position = sequence.num_cached + static_cast<int>(i);
    num_visible[i - first] =
        position < sequence.prefix_len ? std::min(sequence.prefix_len, context) : position + 1;
  }
  const std::int64_t token = sequence.first_token + first;
  ops.attend(
      {.q = element_at(ops, params.qkv, token * params.qkv_stride + offset),
       .q_stride = params.qkv_stride,
       .out = element_at(ops, params.out, token * params.out_stride + offset),
       .out_stride = params.out_stride,
       .num_visible = num_visible,
       .num_queries = static_cast<int>(last - first),
       .head_dim = heads.head_dim,
       .decode = params.max_new_tokens == 1,
       .k = in_page(KvPart::kKeys),
       .v = in_page(KvPart::kValues),
       .format = params.kv.format,
       .key_stride = heads.head_dim,
       .page_stride = layout.page_size(),
       .page_table = params.page_table + std::int64_t{sequence.row} * params.page_table_stride});
}

}  // namespace

void paged_attention(const VectorOps& ops, const PagedAttentionParams& params) {
  // Tasks are laid out for the longest sequence; those past the end of a shorter one are empty.
  const std::int64_t queries = queries_per_task(params.max_new_tokens);
  const std::int64_t tasks_per_head = divide_up(params.max_new_tokens, queries);
  const std::int64_t num_tasks = params.num_sequences * params.heads.num_heads * tasks_per_head;
  ThreadPool::shared().parallel_for(num_tasks, [&](std::int64_t task) {
    const AttentionSequence& sequence =
        params.sequences[task / tasks_per_head / params.heads.num_heads];
    const std::int64_t head = task / tasks_per_head % params.heads.num_heads;
    const std::int64_t first = task % tasks_per_head * queries;
    const std::int64_t last = std::min<std::int64_t>(first + queries, sequence.num_tokens);
    attend_to_pages(ops, params, sequence, head, first, last);
  });
}

namespace {

template <typename T>
void rope_and_cache_rows(const VectorOps& ops, const RopeAndCacheParams& params, std::int64_t begin,
                         std::int64_t end) {
  const AttentionHeads& heads = params.heads;
  const KvLayout layout = heads.kv_layout();
  const int head_dim = heads.head_dim, half = params.rotary_dim / 2;
  const VectorOps& f32_ops = vector_ops(DType::kF32);
  float gammas[2][kMaxHeadDim], head[kMaxHeadDim], cosines[kMaxHeadDim / 2], sines[kMaxHeadDim / 2];
  const auto norm_of = [&](const NormWeights& weights, float* gamma) {
    NormWeights norm = weights;
    if (norm.gamma == nullptr) return norm;
    for (int i = 0; i < head_dim; ++i) gamma[i] = to_float(static_cast<const T*>(norm.gamma)[i]);
    norm.gamma = gamma;
    return norm;
  };
  const NormWeights q_norm = norm_of(params.q_norm, gammas[0]),
                    k_norm = norm_of(params.k_norm, gammas[1]);
  // A head of type T, normalised and turned, rounded to T once. `to` may be `from`.
  const auto turn = [&](const T* from, const NormWeights& norm, T* to) {
    if (norm.gamma == nullptr) {
      ops.rotate_head(from, cosines, sines, half, to);
      if (to != from) std::copy(from + 2 * half, from + head_dim, to + 2 * half);
      return;
    }
    for (int i = 0; i < head_dim; ++i) head[i] = to_float(from[i]);
    f32_ops.norm_rows({.x = head, .weights = norm, .y = head, .num_rows = 1, .dim = head_dim}, 0,
                      1);
    f32_ops.rotate_head(head, cosines, sines, half, head);
    for (int i = 0; i < head_dim; ++i) to[i] = rounded<T>(head[i]);
  };
  const auto store = [&](const T* from, std::int64_t at) {
    if (params.kv.format == KvFormat::kNative) {
      std::copy_n(from, head_dim, static_cast<T*>(params.kv.pages) + at);
      return;
    }
    for (int i = 0; i < head_dim; ++i) head[i] = to_float(from[i]);
    store_kv(params.kv.format, params.kv.pages, at, head, head_dim);
  };
  for (std::int64_t t = begin; t < end; ++t) {
    const float* table = params.rope_table + std::int64_t{params.positions[t]} * 2 * half;
    for (int j = 0; j < half; ++j) cosines[j] = table[2 * j], sines[j] = table[2 * j + 1];
    T* q = static_cast<T*>(params.qkv) + t * params.qkv_stride;
    const T *k = q + heads.q_width(), *v = k + heads.kv_width();
    for (int h = 0; h < heads.num_heads; ++h) {
      turn(q + h * head_dim, q_norm, q + h * head_dim);
    }
    const std::int32_t slot = params.cache_slots[t];
    if (KvLayout::is_trash(slot)) continue;  // tokens of other tasks may have the same
    for (int h = 0; h < heads.num_kv_heads; ++h) {
      T turned[kMaxHeadDim];
      turn(k + h * head_dim, k_norm, turned);
      store(turned, layout.at(KvPart::kKeys, slot, h));
      store(v + h * head_dim, layout.at(KvPart::kValues, slot, h));
    }
  }
}

}  // namespace

void rope_and_cache(const VectorOps& ops, const RopeAndCacheParams& params) {
  constexpr std::int64_t kTokensPerTask = 8;
  const std::int64_t num_tokens = params.num_tokens;
  ThreadPool::shared().parallel_for(divide_up(num_tokens, kTokensPerTask), [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kTokensPerTask, num_tokens);
    with_element(ops.dtype, [&]<typename T>() {
      rope_and_cache_rows<T>(ops, params, task * kTokensPerTask, end);
    });
  });
}

}  // namespace gapless::cpu
