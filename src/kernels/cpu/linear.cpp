#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/linear_tasks.h"
#include "kernels/cpu/parallel.h"
#include "kernels/int8_layout.h"
#include "kernels/needed_logits.h"

namespace gapless::cpu {
namespace {

// As kMinParallelProducts, of elements.
constexpr std::int64_t kMinParallelElements = 20'000;

// The columns that a product computes.
class WantedColumns {
 public:
  // All, or the units with the needed ones: blocks begin where kernels' tiles and panels do.
  explicit WantedColumns(const LinearParams& params) {
    const int out = params.weights.out;
    if (params.needed == nullptr || params.needed->all != 0) {
      ranges_[num_ranges_++] = {0, out};
      return;
    }
    for (const std::int32_t column : params.needed->tokens) {
      if (column >= 0 && column < out) add(column / kColumnUnit * kColumnUnit, out);
    }
  }

  std::span<const ColumnRange> ranges() const {
    return {ranges_, static_cast<std::size_t>(num_ranges_)};
  }

 private:
  void add(std::int64_t begin, int out) {
    const auto first = static_cast<int>(begin);
    for (const ColumnRange& range : ranges()) {
      if (range.begin == first) return;
    }
    ranges_[num_ranges_++] = {first, std::min(first + static_cast<int>(kColumnUnit), out)};
  }

  ColumnRange ranges_[StepLogits::kMaxTokens];
  int num_ranges_ = 0;
};

// block(LinearBlock) for all of rows [row_begin, row_end) and these columns, on several threads where that pays.
template <typename Block>
void over_blocks(const VectorOps& ops, const ColumnRange& columns, int in, std::int64_t row_begin,
                 std::int64_t row_end, int row_unit, int max_rows, const Block& block) {
  const std::int64_t num_rows = row_end - row_begin;
  const int num_columns = columns.end - columns.begin;
  if (num_rows * num_columns * in < kMinParallelProducts) {
    block(LinearBlock{row_begin, row_end, columns.begin, columns.end});
    return;
  }
  const LinearTasks tasks({.num_rows = num_rows,
                           .num_columns = num_columns,
                           .row_unit = row_unit,
                           .max_rows = max_rows,
                           .max_columns = ops.linear_columns,
                           .num_threads = ThreadPool::shared().num_threads()});
  ThreadPool::shared().parallel_for(tasks.count(), [&](std::int64_t task) {
    const LinearPart part = tasks.part(task);
    if (part.rows == 0 || part.columns == 0) return;
    const std::int64_t row = row_begin + part.row, column = columns.begin + part.column;
    block(LinearBlock{.row_begin = row,
                      .row_end = row + part.rows,
                      .column_begin = static_cast<int>(column),
                      .column_end = static_cast<int>(column + part.columns)});
  });
}

// rows(begin, end) over all rows, on several threads where that pays.
template <typename Rows>
void over_rows(std::int64_t num_rows, int dim, const Rows& rows) {
  if (num_rows * dim < kMinParallelElements) {
    rows(0, num_rows);
    return;
  }
  constexpr std::int64_t kRows = 8;
  ThreadPool::shared().parallel_for(divide_up(num_rows, kRows), [&](std::int64_t task) {
    rows(task * kRows, std::min((task + 1) * kRows, num_rows));
  });
}

// So many rows become bytes before they are multiplied.
constexpr std::int64_t kInt8Rows = 1536;
static_assert(kInt8Rows % Int8Rows::kTile == 0);
// A task reads all its rows for each panel of columns: more of them leave its cache in between.
constexpr int kInt8TaskRows = 144;

void int8_linear(const VectorOps& ops, const LinearParams& params, const WantedColumns& wanted) {
  // Of the stream's thread: ops have no memory of their own.
  static thread_local std::vector<std::uint8_t> bytes;
  static thread_local std::vector<float> scales;
  Int8Rows rows;
  rows.num_steps = static_cast<int>(divide_up(params.weights.in, kInt8Step));
  const auto most_tiles = static_cast<std::size_t>(
      divide_up(std::min<std::int64_t>(params.num_rows, kInt8Rows), Int8Rows::kTile));
  const std::size_t tile_bytes = std::size_t{Int8Rows::kTile} * kInt8Step * rows.num_steps;
  bytes.resize(std::max(bytes.size(), most_tiles * tile_bytes));
  scales.resize(std::max(scales.size(), most_tiles * Int8Rows::kTile));
  rows.bytes = bytes.data();
  rows.scales = scales.data();
  for (std::int64_t begin = 0; begin < params.num_rows; begin += kInt8Rows) {
    const std::int64_t end = std::min<std::int64_t>(begin + kInt8Rows, params.num_rows);
    rows.first_row = begin;
    over_rows(end - begin, params.weights.in, [&](std::int64_t first, std::int64_t last) {
      ops.round_rows_to_int8(params, begin + first, begin + last, rows);
    });
    for (const ColumnRange& columns : wanted.ranges()) {
      over_blocks(ops, columns, params.weights.in, begin, end, Int8Rows::kTile, kInt8TaskRows,
                  [&](const LinearBlock& block) { ops.int8_block(params, rows, block); });
    }
  }
}

// Row c of `weights`, into its column of a panel.
template <typename T>
void pack_int8_row(const LinearWeights& weights, std::int64_t c, const Int8Layout& layout,
                   void* packed) {
  const T* row = static_cast<const T*>(weights.weight) + c * layout.in;
  float largest = 0;
  for (std::int64_t k = 0; k < layout.in; ++k) {
    largest = std::max(largest, std::fabs(to_float(row[k])));
  }
  const float factor = largest > 0x1p-100f ? 127 / largest : 0;
  auto* to = const_cast<std::int8_t*>(layout.panel(packed, c)) + c % kInt8Columns * kInt8Step;
  std::int32_t sum = 0;
  for (std::int64_t k = 0; k < layout.in; ++k) {
    const float whole = std::nearbyint(to_float(row[k]) * factor);
    sum += static_cast<std::int32_t>(whole);
    to[k / kInt8Step * kInt8Columns * kInt8Step + k % kInt8Step] = static_cast<std::int8_t>(whole);
  }
  const_cast<float*>(layout.scales(packed))[c] = largest * (1.0f / 127);
  const_cast<std::int32_t*>(layout.sums(packed))[c] = sum;
}

}  // namespace

void linear(const VectorOps& ops, const LinearParams& params) {
  const WantedColumns wanted(params);
  if (wanted.ranges().empty()) return;
  if (params.weights.int8 != nullptr) return int8_linear(ops, params, wanted);
  for (const ColumnRange& columns : wanted.ranges()) {
    over_blocks(ops, columns, params.weights.in, 0, params.num_rows, ops.linear_row_unit,
                ops.linear_rows,
                [&](const LinearBlock& block) { ops.linear_block(params, block); });
  }
}

void pack_int8(DType dtype, const PackInt8Params& params) {
  const Int8Layout layout{params.weights.in, params.weights.out};
  std::memset(params.packed, 0, layout.bytes());
  with_element(dtype, [&]<typename T>() {
    ThreadPool::shared().parallel_for(layout.out, [&](std::int64_t c) {
      pack_int8_row<T>(params.weights, c, layout, params.packed);
    });
  });
}

void norm(const VectorOps& ops, const NormParams& params) {
  over_rows(params.num_rows, params.dim,
            [&](std::int64_t begin, std::int64_t end) { ops.norm_rows(params, begin, end); });
}

void gate(const VectorOps& ops, const GateParams& params) {
  over_rows(params.num_rows, params.dim,
            [&](std::int64_t begin, std::int64_t end) { ops.gate_rows(params, begin, end); });
}

}  // namespace gapless::cpu
