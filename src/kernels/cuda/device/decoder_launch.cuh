// What a launch of decoder_kernel.cuh works on, and the order of its activations in memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/grid_counters.cuh"
#include "kernels/cuda/device/row_product.cuh"
#include "kernels/row_state.h"

namespace gapless {

inline constexpr int kMaxDecoderLayers = 64;
inline constexpr int kDecoderHeadDim = 64;
inline constexpr int kMaxUnits = 64;  // of a context (decoder_attention.cuh): two for each lane
inline constexpr int kDecoderColumnRanks = 4;  // shares of the output product's columns
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

// Counted up during a launch, zero between launches.
struct DecoderCounters {
  GridCounter qkv;        // blocks whose part of q, k and v is written, of the first layer
  GridCounter inner;      // of gelu(fc1)
  GridCounter parts;      // of the attention's units
  GridCounter attention;  // of the attention
  GridCounter sums;       // of the output product's partial sums, of the first layer
  GridCounter norm;       // rows that are normalised
  GridCounter finished;   // blocks that are through
};

struct DecoderLaunch {
  DecoderLayer layers[kMaxDecoderLayers];
  int num_layers;
  int dim, ff_dim, num_heads, rotary_dim;
  float eps;

  int num_rows;
  Bf16* x;  // [num_rows, dim]
  const AttentionSequence* sequences;
  const std::int32_t* page_table;
  int page_table_stride;
  const float* rope_table;

  // Scratch. kRows: decoder_slice_rows(num_rows).
  Bf16* norm;            // [kRows, dim], fragment order
  Bf16* wide;            // [kRows, dim + ff_dim], fragment order: attention, gelu(fc1)
  Bf16* qkv;             // [2, num_rows, 3 dim]; layer l uses the (l % 2)-th (self_announcing.cuh)
  float* sums;           // [2, kDecoderColumnRanks, kRows, dim]; as well
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
};

// Rows that a launch is compiled for: num_rows rounded up.
constexpr int decoder_slice_rows(int num_rows) {
  return num_rows <= 8 ? 8 : num_rows <= 16 ? 16 : num_rows <= 32 ? 32 : 64;
}

// Activations that products read lie in the order in which lanes load them as B fragments: per 128
// columns, per 8 rows, per 16 columns, per lane 4 elements (mma.cuh). So 128 columns are one
// contiguous piece, and a warp's load of a fragment has no bank conflicts.
template <int kRows>
__device__ __forceinline__ int fragment_index(int row, int column) {
  const int block = column / kProductColumns * (kRows / 8) + row / 8;
  const int step = column % kProductColumns / 16, k = column % 16;
  const int lane = row % 8 * 4 + k % 8 / 2;
  return block * (8 * kProductColumns) + step * 128 + lane * 4 + k / 8 * 2 + k % 2;
}

}  // namespace gapless
