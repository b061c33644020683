// The parts of the CPU kernels that are written once over simd_*.h and an element type, and compiled
// once per instruction set. The best set that the machine has is chosen once per process.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace gapless::cpu {

// Rows and columns of one piece of a matrix product.
struct LinearBlock {
  std::int64_t row_begin = 0, row_end = 0;
  int column_begin = 0, column_end = 0;
};

// Usual VectorOps::linear_rows and linear_columns.
inline constexpr int kLinearPanelColumns = 96;
inline constexpr int kLinearPanelRows = 192;

inline constexpr int kMaxHeadDim = 256;
// Queries of an AttentionTile: a multiple of every simd_*.h's kPackedRows.
inline constexpr int kMaxTileQueries = 384;

// A few queries of one head that see the same keys, each a prefix of them. Key j lies at element
// first + page(j / kPageTokens) * page_stride + (j % kPageTokens) * key_stride of k, in the cache
// or in the qkv of a crop.
struct AttentionTile {
  const void* q = nullptr;  // [num_queries, head_dim] T
  std::int64_t q_stride = 0;
  void* out = nullptr;  // [num_queries, head_dim] T
  std::int64_t out_stride = 0;
  const int* num_visible = nullptr;  // [num_queries], each >= 1
  int num_queries = 0;               // 1 .. kMaxTileQueries
  int head_dim = 0;                  // 1 .. kMaxHeadDim
  // Of a decode step, which may be computed in another way than one of many rows (LinearParams::decode).
  bool decode = false;

  const void* k = nullptr;
  const void* v = nullptr;
  KvFormat format = KvFormat::kNative;
  std::int64_t first = 0;
  std::int64_t key_stride = 0;
  std::int64_t page_stride = 0;              // between page numbers
  const std::int32_t* page_table = nullptr;  // nullptr: page number p is p itself
};

// Rows of a product's x in 8-bit whole numbers (kernels/int8_layout.h), twelve side by side.
struct Int8Rows {
  static constexpr int kTile = 12;

  std::uint8_t* bytes = nullptr;  // [num_rows / 12][num_steps][12][4]
  int num_steps = 0;              // of four numbers
  float* scales = nullptr;
  std::int64_t first_row = 0;  // of x, whose bytes and scale these begin with
};

struct VectorOps {
  const char* name;  // "avx512", "avx2", "portable"
  DType dtype;       // T
  // What a LinearBlock best has at most (any number is right): the columns' weights are packed once for the
  // rows, and both stay in the cache.
  int linear_rows, linear_columns;
  int linear_row_unit;  // of a block, but for the last
  void (*linear_block)(const LinearParams& params, const LinearBlock& block);
  // Rows [begin, end) of params.x, and the product of rows that this has made. Its rows begin where
  // twelve of them do, its columns where a panel does.
  void (*round_rows_to_int8)(const LinearParams& params, std::int64_t begin, std::int64_t end,
                             const Int8Rows& rows);
  void (*int8_block)(const LinearParams& params, const Int8Rows& rows, const LinearBlock& block);
  void (*norm_rows)(const NormParams& params, std::int64_t row_begin, std::int64_t row_end);
  void (*gate_rows)(const GateParams& params, std::int64_t row_begin, std::int64_t row_end);
  // Pairs (from[j], from[j + half]) turned by the angles of these cosines and sines. `to` may be `from`. T both.
  void (*rotate_head)(const void* from, const float* cosines, const float* sines, int half,
                      void* to);
  void (*attend)(const AttentionTile& tile);
  // In place.
  void (*exp)(float* values, std::int64_t count);  // for the tests of vector_math.h
  void (*gelu_tanh)(float* values, std::int64_t count);
  void (*gelu_erf)(float* values, std::int64_t count);
};

// For elements of this type: the best that this machine can run, or the one that GAPLESS_CPU_SIMD names
// if the machine has it.
const VectorOps& vector_ops(DType dtype);
// All that this machine can run, best first, each for float32 and then for bfloat16.
std::span<const VectorOps* const> available_vector_ops();

}  // namespace gapless::cpu
