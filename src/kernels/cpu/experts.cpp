#include <algorithm>
#include <cstring>
#include <span>

#include "base/thread_pool.h"
#include "device/bump_layout.h"
#include "kernels/cpu/cpu_ops.h"
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
struct Scratch {
  Scratch(void* base, int num_rows, const ExpertSizes& sizes) : layout(base) {
    const auto rows = static_cast<std::size_t>(num_rows);
    const auto experts = static_cast<std::size_t>(sizes.num_experts);
    const std::size_t pairs = rows * static_cast<std::size_t>(sizes.experts_per_token);
    logits = layout.take_array<float>(rows * experts);
    chosen = layout.take_array<ChosenExpert>(pairs);
    place = layout.take_array<std::int32_t>(pairs);
    first = layout.take_array<std::int32_t>(experts + 1);
    rows_in_order = layout.take_array<float>(pairs * static_cast<std::size_t>(sizes.dim));
    inner = layout.take_array<float>(pairs * 2 * static_cast<std::size_t>(sizes.inner));
  }

  BumpLayout layout;
  float* logits;
  ChosenExpert* chosen;  // by pair
  std::int32_t* place;   // of a pair, in the order of experts
  std::int32_t* first;   // place of each expert's first pair, then the number of pairs
  float* rows_in_order;  // [pairs, dim]: x of each pair, then its expert's output
  float* inner;          // [pairs, 2 * inner]
};

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
      std::memcpy(s_.rows_in_order + s_.place[pair] * dim_,
                  row_of(p_.x, pair / ff_.experts_per_token),
                  static_cast<std::size_t>(dim_) * sizeof(float));
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
    multiply(ff_.down, s_.inner, ff_.up.out, s_.rows_in_order, dim_);
    add();
  }

 private:
  const float* row_of(const void* rows, std::int64_t row) const {
    return static_cast<const float*>(rows) + (begin_ + row) * dim_;
  }

  void choose() {
    linear(ops_, {.x = row_of(p_.x, 0),
                  .x_stride = dim_,
                  .weights = ff_.router,
                  .y = s_.logits,
                  .y_stride = ff_.num_experts,
                  .num_rows = static_cast<int>(num_rows_)});
    const auto experts = static_cast<std::size_t>(ff_.num_experts);
    const auto count = static_cast<std::size_t>(ff_.experts_per_token);
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      reference::choose_experts(std::span(s_.logits + row * ff_.num_experts, experts),
                                std::span(s_.chosen + row * ff_.experts_per_token, count));
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
  void multiply(const LinearWeights& first_expert, const float* x, std::int64_t x_stride, float* y,
                std::int64_t y_stride) {
    const std::int64_t num_panels = divide_up(first_expert.out, kLinearPanelColumns);
    const auto one = [&](std::int64_t task) {
      const auto expert = static_cast<int>(task / num_panels);
      const std::int64_t begin = s_.first[expert], count = s_.first[expert + 1] - begin;
      if (count == 0) return;
      const auto column = static_cast<int>(task % num_panels) * kLinearPanelColumns;
      ops_.linear_block({.x = x + begin * x_stride,
                         .x_stride = x_stride,
                         .weights = reference::expert_of(first_expert, expert),
                         .y = y + begin * y_stride,
                         .y_stride = y_stride,
                         .num_rows = static_cast<int>(count)},
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
    const int count = ff_.experts_per_token;
    in_tasks(divide_up(num_rows_, kRows), num_pairs_ * dim_, [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kRows, num_rows_);
      for (std::int64_t row = task * kRows; row < end; ++row) {
        const float* residual = row_of(p_.residual, row);
        float* y = static_cast<float*>(p_.y) + (begin_ + row) * dim_;
        float* sum = s_.rows_in_order + s_.place[row * count] * dim_;
        const float weight = s_.chosen[row * count].weight;
        for (std::int64_t i = 0; i < dim_; ++i) sum[i] *= weight;
        for (int k = 1; k < count; ++k) add_scaled(row * count + k, sum);
        for (std::int64_t i = 0; i < dim_; ++i) y[i] = residual[i] + sum[i];
      }
    });
  }
  void add_scaled(std::int64_t pair, float* sum) const {
    const float* out = s_.rows_in_order + s_.place[pair] * dim_;
    const float weight = s_.chosen[pair].weight;
    for (std::int64_t i = 0; i < dim_; ++i) sum[i] += weight * out[i];
  }

  const VectorOps& ops_;
  const ExpertsParams& p_;
  const FeedForward& ff_;
  const std::int64_t begin_, num_rows_, num_pairs_, dim_;
  const Scratch s_;
};

}  // namespace

std::size_t experts_scratch_bytes(int max_rows, const ExpertSizes& sizes) {
  return Scratch(nullptr, std::min(max_rows, kMaxSortedRows), sizes).layout.peak_bytes();
}

void experts(const VectorOps& ops, const ExpertsParams& params) {
  for (std::int64_t begin = 0; begin < params.num_rows; begin += kMaxSortedRows) {
    const std::int64_t end = std::min<std::int64_t>(begin + kMaxSortedRows, params.num_rows);
    SortedRows(ops, params, begin, end).run();
  }
}

}  // namespace gapless::cpu
