#include <algorithm>
#include <cstring>
#include <span>

#include "base/thread_pool.h"
#include "device/bump_layout.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dense_ops.h"
#include "kernels/reference/reference_ops.h"

namespace gapless::cpu {
namespace {

using reference::ChosenExpert;

// Rows that are sorted by their experts at once: enough that each chosen expert's weights serve many rows,
// few enough that their copies stay small.
constexpr int kMaxSortedRows = 1024;
// Where the arrays of `rows` rows lie in scratch. A pair is a row and one of its experts; pair
// number row * experts_per_token + i is the row's i-th choice.
template <typename T>
struct Scratch {
  Scratch(void* base, int num_rows, const ExpertSizes& sizes) : layout(base) {
    const auto rows = static_cast<std::size_t>(num_rows);
    const auto experts = static_cast<std::size_t>(sizes.num_experts);
    const std::size_t pairs = rows * static_cast<std::size_t>(sizes.experts_per_token);
    logits = layout.take_array<float>(rows * experts);
    chosen = layout.take_array<ChosenExpert>(pairs);
    place = layout.take_array<std::int32_t>(pairs);
    first = layout.take_array<std::int32_t>(experts + 1);
    rows_in_order = layout.take_array<T>(pairs * static_cast<std::size_t>(sizes.dim));
    inner = layout.take_array<T>(pairs * 2 * static_cast<std::size_t>(sizes.inner));
    inner_scales = layout.take_array<float>(pairs);
  }

  BumpLayout layout;
  float* logits;
  ChosenExpert* chosen;  // by pair
  std::int32_t* place;   // of a pair, in the order of experts
  std::int32_t* first;   // place of each expert's first pair, then the number of pairs
  T* rows_in_order;      // [pairs, dim]: x of each pair, then its expert's output
  T* inner;              // [pairs, 2 * inner]
  float* inner_scales;   // of `inner` in 8 bits
};

template <typename T>
class SortedRows {
 public:
  SortedRows(const VectorOps& ops, const ExpertsParams& params, std::int64_t begin,
             std::int64_t end)
      : ops_(ops),
        p_(params),
        ff_(params.ff),
        begin_(begin),
        num_rows_(end - begin),
        num_pairs_(num_rows_ * ff_.experts_per_token),
        dim_(ff_.up.in),
        s_(params.scratch, static_cast<int>(num_rows_), expert_sizes(ff_)) {}

  void run() {
    choose();
    sort();
    each_pair(dim_, [this](std::int64_t pair) {
      const std::int64_t row = pair / ff_.experts_per_token;
      std::memcpy(s_.rows_in_order + s_.place[pair] * dim_,
                  is_fp8() ? fp8_row(row) : row_of(p_.x, row),
                  static_cast<std::size_t>(dim_) * sizeof(T));
    });
    multiply(ff_.up, s_.rows_in_order, dim_, s_.inner, ff_.up.out);
    gate(ops_, {.x = s_.inner,
                .x_stride = ff_.up.out,
                .y = s_.inner,
                .y_stride = ff_.up.out,
                .num_rows = static_cast<int>(num_pairs_),
                .dim = ff_.inner(),
                .activation = ff_.activation,
                .up_offset = ff_.up_offset});
    if (is_fp8()) {
      rows_to_fp8(ops_.dtype, {.x = s_.inner,
                               .x_stride = ff_.up.out,
                               .y = s_.inner,
                               .y_stride = ff_.up.out,
                               .scales = s_.inner_scales,
                               .num_rows = static_cast<int>(num_pairs_),
                               .dim = ff_.inner()});
    }
    multiply(ff_.down, s_.inner, ff_.up.out, s_.rows_in_order, dim_);
    add();
  }

 private:
  const T* row_of(const void* rows, std::int64_t row) const {
    return static_cast<const T*>(rows) + (begin_ + row) * dim_;
  }

  // Rows in 8 bits have their scales multiplied in (fp8_rows.cpp), weights too.
  bool is_fp8() const { return p_.x_fp8 != nullptr; }
  const T* fp8_row(std::int64_t row) const {
    return static_cast<const T*>(p_.x_fp8) + (begin_ + row) * p_.x_fp8_stride;
  }

  void read_logits() {
    const std::int64_t count = num_rows_ * ff_.num_experts;
    if (p_.logits != nullptr) {
      const T* const from = static_cast<const T*>(p_.logits) + begin_ * ff_.num_experts;
      for (std::int64_t i = 0; i < count; ++i) s_.logits[i] = to_float(from[i]);
      return;
    }
    linear(ops_, {.x = row_of(p_.x, 0),
                  .x_stride = dim_,
                  .weights = ff_.router,
                  .y = s_.logits,
                  .y_stride = ff_.num_experts,
                  .y_dtype = DType::kF32,
                  .num_rows = static_cast<int>(num_rows_),
                  .decode = true});
    for (std::int64_t i = 0; i < count; ++i) s_.logits[i] = round_to(ops_.dtype, s_.logits[i]);
  }

  void choose() {
    read_logits();
    const auto experts = static_cast<std::size_t>(ff_.num_experts);
    const auto count = static_cast<std::size_t>(ff_.experts_per_token);
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      reference::choose_experts(std::span(s_.logits + row * ff_.num_experts, experts),
                                std::span(s_.chosen + row * ff_.experts_per_token, count),
                                ops_.dtype);
    }
  }

  // Gives every pair its place. A pair's result does not depend on it (dot_tile.h).
  void sort() {
    std::fill_n(s_.first, ff_.num_experts + 1, 0);
    for (std::int64_t pair = 0; pair < num_pairs_; ++pair) ++s_.first[s_.chosen[pair].expert + 1];
    for (int e = 0; e < ff_.num_experts; ++e) s_.first[e + 1] += s_.first[e];
    for (std::int64_t pair = 0; pair < num_pairs_; ++pair) {
      s_.place[pair] = s_.first[s_.chosen[pair].expert]++;
    }
    // first[e] now is where e ends.
    for (int e = ff_.num_experts; e > 0; --e) s_.first[e] = s_.first[e - 1];
    s_.first[0] = 0;
  }

  // Each expert's product of its own rows, as tasks of a few columns.
  void multiply(const LinearWeights& first_expert, const T* x, std::int64_t x_stride, T* y,
                std::int64_t y_stride) {
    const std::int64_t num_panels = divide_up(first_expert.out, kLinearPanelColumns);
    const auto one = [&](std::int64_t task) {
      const auto expert = static_cast<int>(task / num_panels);
      const std::int64_t begin = s_.first[expert], count = s_.first[expert + 1] - begin;
      if (count == 0) return;
      const auto column = static_cast<int>(task % num_panels) * kLinearPanelColumns;
      ops_.linear_block({.x = x + begin * x_stride,
                         .x_stride = x_stride,
                         .weights = expert_of(first_expert, expert),
                         .y = y + begin * y_stride,
                         .y_stride = y_stride,
                         .y_dtype = ops_.dtype,
                         .num_rows = static_cast<int>(count),
                         .decode = true},
                        {.row_begin = 0,
                         .row_end = count,
                         .column_begin = column,
                         .column_end = std::min(column + kLinearPanelColumns, first_expert.out)});
    };
    in_tasks(num_panels * ff_.num_experts, num_pairs_ * first_expert.in * first_expert.out, one);
  }

  template <typename Task>
  static void in_tasks(std::int64_t num_tasks, std::int64_t products, const Task& task) {
    if (products >= kMinParallelProducts) return ThreadPool::shared().parallel_for(num_tasks, task);
    for (std::int64_t i = 0; i < num_tasks; ++i) task(i);
  }

  template <typename Pair>
  void each_pair(std::int64_t elements, const Pair& work) const {
    constexpr std::int64_t kPairs = 64;
    in_tasks(divide_up(num_pairs_, kPairs), num_pairs_ * elements, [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kPairs, num_pairs_);
      for (std::int64_t pair = task * kPairs; pair < end; ++pair) work(pair);
    });
  }

  // y = residual + the weighted sum over each row's experts, in the order in which they were chosen.
  void add() const {
    constexpr std::int64_t kRows = 16;
    in_tasks(divide_up(num_rows_, kRows), num_pairs_ * dim_, [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kRows, num_rows_);
      for (std::int64_t row = task * kRows; row < end; ++row) {
        for (std::int64_t at = 0; at < dim_; at += kChunk) {
          add_chunk(row, at, std::min(kChunk, dim_ - at));
        }
      }
    });
  }

  static constexpr std::int64_t kChunk = 256;

  // Elements [at, at + size) of one row.
  void add_chunk(std::int64_t row, std::int64_t at, std::int64_t size) const {
    float sum[kChunk] = {};
    for (int k = 0; k < ff_.experts_per_token; ++k) {
      const std::int64_t pair = row * ff_.experts_per_token + k;
      const T* out = s_.rows_in_order + s_.place[pair] * dim_ + at;
      const float weight = s_.chosen[pair].weight;
      for (std::int64_t i = 0; i < size; ++i) sum[i] += weight * to_float(out[i]);
    }
    const T* residual = row_of(p_.residual, row) + at;
    T* y = static_cast<T*>(p_.y) + (begin_ + row) * dim_ + at;
    for (std::int64_t i = 0; i < size; ++i) y[i] = rounded<T>(to_float(residual[i]) + sum[i]);
  }

  LinearWeights expert_of(const LinearWeights& first, int index) const {
    LinearWeights weights = first;
    weights.weight = static_cast<const T*>(is_fp8() ? first.fp8 : first.weight) +
                     static_cast<std::int64_t>(index) * first.in * first.out;
    return weights;
  }

  const VectorOps& ops_;
  const ExpertsParams& p_;
  const FeedForward& ff_;
  const std::int64_t begin_, num_rows_, num_pairs_, dim_;
  const Scratch<T> s_;
};

}  // namespace

std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) {
  return Scratch<float>(nullptr, std::min(max_rows, kMaxSortedRows), sizes).layout.peak_bytes();
}

void experts(const VectorOps& ops, const ExpertsParams& params) {
  for (std::int64_t begin = 0; begin < params.num_rows; begin += kMaxSortedRows) {
    const std::int64_t end = std::min<std::int64_t>(begin + kMaxSortedRows, params.num_rows);
    with_element(ops.dtype, [&]<typename T>() { SortedRows<T>(ops, params, begin, end).run(); });
  }
}

}  // namespace gapless::cpu
