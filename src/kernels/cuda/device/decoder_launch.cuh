// What a launch of decoder_kernel.cuh works on.
#pragma once

#include <cstdint>

#include "kernels/cuda/decoder_schedule.h"
#include "kernels/cuda/decoder_work.h"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "step/row_state.h"

namespace gapless {

inline constexpr int kMaxDecoderLayers = 64;
inline constexpr int kDecoderHeadDim = 64;
inline constexpr int kMaxUnits = 64;  // of a context (decoder_attention.cuh): two for each lane
inline constexpr int kMaxDecoderDim = kProductThreads * kVector;  // a LayerNorm in one go

struct DecoderLayer {
  const char* input_weights;   // prepared [qkv | fc1]: [3D + F, D]
  const char* output_weights;  // prepared [proj | fc2]: [D, D + F]
  const Bf16* gamma;
  const Bf16* beta;
  const Bf16* qkv_bias;
  const Bf16* fc1_bias;
  const Bf16* proj_bias;
  const Bf16* fc2_bias;
  void* keys;  // of the cache
  void* values;
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
  const std::int32_t* rows;  // and their states: DecoderBlocksParams
  const RowState* row_states;
  const std::int32_t* page_table;
  int page_table_stride;
  const float* rope_table;

  // Scratch. kRows: decoder_slice_rows(num_rows). Where [2, ...], turn t uses the (t % 2)-th:
  // values announce themselves (copies_of).
  Bf16* norm;            // [2, kRows, dim] as activations.cuh orders them; [kRows, dim] from 9 rows
  Bf16* wide;            // [2, kRows, dim + ff_dim], as well: attention, gelu(fc1)
  Bf16* qkv;             // [2, num_rows, 3 dim]
  float* sums;           // [2, kDecoderColumnRanks, kRows, dim]
  float2* part_softmax;  // [num_rows, num_heads, kMaxUnits]: largest, sum
  float* part_outputs;   // [num_rows, num_heads, kMaxUnits, kDecoderHeadDim]
  DecoderCounters* counters;

  // logits = LN(x) W^T + b, unless head_weights is nullptr.
  const char* head_weights;
  const Bf16* head_gamma;
  const Bf16* head_beta;
  const Bf16* head_bias;
  float* logits;  // [num_rows, vocab]
  int vocab;
  int ring_bytes;  // of shared memory (DecoderLayout)
};

// Rows that a launch is compiled for: num_rows rounded up.
constexpr int decoder_slice_rows(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : num_rows <= 32 ? 32 : 64;
}

}  // namespace gapless
