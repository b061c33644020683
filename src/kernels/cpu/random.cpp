#include <algorithm>

#include "base/random_weights.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/element.h"

namespace gapless::cpu {

namespace {

template <typename T>
void fill_random_as(const FillRandomParams& params) {
  const RandomTensorSpec spec{.seed = params.seed,
                              .tensor_hash = params.tensor_hash,
                              .mean = params.mean,
                              .stddev = params.stddev};
  ThreadPool::shared().parallel_for(params.num_rows, [&](std::int64_t r) {
    T* row = static_cast<T*>(params.out) + r * params.row_stride;
    // Four values come from one draw; a row may begin and end inside one.
    const std::int64_t begin = (params.first_row + r) * params.row_size;
    const std::int64_t end = begin + params.row_size;
    for (std::int64_t block = begin / 4; block * 4 < end; ++block) {
      float values[4];
      random_values_of_block(spec, static_cast<std::uint64_t>(block), values);
      const std::int64_t from = std::max(block * 4, begin), to = std::min(block * 4 + 4, end);
      for (std::int64_t i = from; i < to; ++i) {
        row[i - begin] = rounded<T>(values[i - block * 4]);
      }
    }
    std::fill(row + params.row_size, row + params.row_stride, T{});
  });
}

}  // namespace

void fill_random(DType dtype, const FillRandomParams& params) {
  with_element(dtype, [&]<typename T>() { fill_random_as<T>(params); });
}

}  // namespace gapless::cpu
