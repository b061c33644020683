// What a launch of decoder_kernel.cuh works on.
#pragma once

#include <cstdint>

#include "kernels/cuda/decoder_schedule.h"
#include "kernels/cuda/decoder_work.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/kernels.h"
#include "kernels/needed_logits.h"
#include "kernels/shared_prefix.h"
#include "step/row_state.h"

namespace gapless {

inline constexpr int kMaxDecoderLayers = 64;
// Units of a context (decoder_attention.cuh): two for each lane. Of a sequential decoder the launch says how
// many there may be.
inline constexpr int kMaxUnits = 64;
template <typename S>
inline constexpr int kMaxDecoderDim = S::kNormVectors* kProductThreads* kVector;

// What a schedule's models lack is nullptr.
struct DecoderLayer {
  const char* input_weights;   // prepared [qkv | fc1]: [qkv_width + up_width, D]
  const char* output_weights;  // prepared [proj | fc2]: [D, q_width + F]
  const Bf16* gamma;
  const Bf16* beta;
  const Bf16* qkv_bias;
  const Bf16* fc1_bias;
  const Bf16* proj_bias;
  const Bf16* fc2_bias;
  void* pages;  // KvLayer::pages
  // In it, the first head's values of page 0: kernels that compute this themselves keep more variables in local memory.
  void* values;
};

// What sequential decoders have besides.
struct SequentialLayer {
  const Bf16* ff_gamma;
  const Bf16* q_gamma;  // [head_dim], of each head; nullptr: heads are not normalised
  const Bf16* k_gamma;
};
struct SequentialLaunch {
  SequentialLayer layers[kMaxDecoderLayers];
  int num_kv_heads;
  int max_units;   // of a context
  Bf16* ff_norm;   // as DecoderLaunch::norm
  float* ff_sums;  // as DecoderLaunch::sums
};

// What decoders with experts have besides.
inline constexpr int kMaxExpertLayers = 28;
struct ExpertLayer {
  // Prepared, those of all experts below each other: gates and ups alternate, [num_experts * 2 * inner, D]; [num_experts * D,
  // inner].
  const char* up_weights;
  const char* down_weights;
  const Bf16* router;          // [num_experts, D], in any format of the other weights
  const Bf16* router_bias;     // [num_experts] or nullptr
  const Bf16* scale_products;  // HeadScales::products: [2 * num_heads, 3 * D]
  const Bf16* alpha;           // [num_heads]
};
struct ExpertsLaunch {
  ExpertLayer layers[kMaxExpertLayers];
  int first_with_experts;  // layers before it, one at least, have a dense feed-forward, all others have experts
  int num_experts, experts_per_token;
  int inner;      // of an expert; those of a token together are as wide as a dense feed-forward
  int max_units;  // of a context
  bool bf16_positions;
  float* ff_sums;       // [2, kRouteChoices, kRows, dim]: one number for each of a row's experts
  int parts_per_block;  // scale_parts_per_block()
  float* scale_parts;   // [2, parts_per_block of each block, num_rows, 2 * num_heads]
  float* logit_parts;   // [2, D / 128, kRows, num_experts]: of 128 columns each (decoder_route.cuh)
  std::uint32_t* choices;  // [2, num_rows, kRouteChoices]: bfloat16 weight << 16 | expert
  ChosenExperts* chosen;   // DecoderBlocksParams
};

// Counted up during a launch, zero between launches. Who waits for turn t of a value waits until
// everyone who counts it has counted t + 1 times; so nobody may count turn t + 1 before everyone has
// counted turn t (schedule_fault). Which turns are counted, and by whom: decoder_schedule.h.
struct DecoderCounters {
  GridCounter values[kNumValues];
  GridCounter finished;  // blocks that are through
};

struct DecoderLaunch {
  DecoderLayer layers[kMaxDecoderLayers];
  int num_layers;
  int dim, ff_dim, num_heads, rotary_dim;
  float eps;

  int num_rows;
  Bf16* x;  // [num_rows, dim]
  const AttentionSequence* sequences;
  const SharedPrefix* shared_prefixes;  // DecoderBlocksParams
  const std::int32_t* rows;             // and their states: DecoderBlocksParams
  const RowState* row_states;
  const std::int32_t* page_table;
  int page_table_stride;
  const float* rope_table;

  // Scratch. kRows: decoder_slice_rows(num_rows). Where [2, ...], turn t uses the (t % 2)-th:
  // values announce themselves (copies_of).
  Bf16* norm;            // [2, kRows, dim] as activations.cuh orders them; [kRows, dim] from 9 rows
  Bf16* wide;            // [2, kRows, q_width + ff_dim], as well: attention, what goes into fc2
  Bf16* qkv;             // [2, num_rows, qkv_width]
  float* sums;           // [2, kDecoderColumnRanks, kRows, dim]
  float2* part_softmax;  // [num_rows, num_heads, units]: largest, sum
  float* part_outputs;   // [num_rows, num_heads, units, head_dim]
  DecoderCounters* counters;

  // logits = norm(x) W^T + b, unless head_weights is nullptr.
  const char* head_weights;
  const Bf16* head_gamma;
  const Bf16* head_beta;
  const Bf16* head_bias;
  float* logits;  // [num_rows, vocab]
  int vocab;
  const StepLogits* needed_logits;  // as in DecoderHead
  int ring_bytes;                   // of shared memory (DecoderLayout)
  // What the other lists have besides lies in the same place.
  union {
    SequentialLaunch sequential;
    ExpertsLaunch experts;
  };
};
static_assert(sizeof(ExpertsLaunch) <= sizeof(SequentialLaunch));

// Heads in the cache.
template <typename S>
__host__ __device__ inline int key_heads(const DecoderLaunch& p) {
  return S::kIsSequential ? p.sequential.num_kv_heads : p.num_heads;
}

template <typename S>
__host__ __device__ inline DecoderSizes sizes_of(int dim, int ff_dim, int vocab, int num_heads,
                                                 int num_kv_heads) {
  if constexpr (S::kIsSequential) {
    return {.dim = dim,
            .qkv_width = (num_heads + 2 * num_kv_heads) * S::kHeadDim,
            .q_width = num_heads * S::kHeadDim,
            .up_width = 2 * ff_dim,
            .ff_dim = ff_dim,
            .vocab = vocab,
            .first_ff_dim = first_part_of_inner(ff_dim)};
  } else {
    return {.dim = dim,
            .qkv_width = 3 * dim,
            .q_width = dim,
            .up_width = ff_dim,
            .ff_dim = ff_dim,
            .vocab = vocab};
  }
}
template <typename S>
__host__ __device__ inline DecoderSizes sizes_of(const DecoderLaunch& p) {
  return sizes_of<S>(p.dim, p.ff_dim, p.vocab, p.num_heads, key_heads<S>(p));
}

// Units of a context, at most.
template <typename S>
__host__ __device__ inline int max_units_of(const DecoderLaunch& p) {
  if constexpr (S::kIsSequential) return p.sequential.max_units;
  if constexpr (S::kHasExperts) return p.experts.max_units;
  return kMaxUnits;
}

// Rows that a launch is compiled for: num_rows rounded up.
constexpr int decoder_slice_rows(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : num_rows <= 32 ? 32 : num_rows <= 64 ? 64 : 128;
}

}  // namespace gapless
