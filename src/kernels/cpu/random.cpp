#include <algorithm>

#include "base/random_weights.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"

namespace gapless::cpu {

void fill_random(const FillRandomParams& params) {
  const RandomTensorSpec spec{.seed = params.seed,
                              .tensor_hash = params.tensor_hash,
                              .mean = params.mean,
                              .stddev = params.stddev};
  ThreadPool::shared().parallel_for(params.num_rows, [&](std::int64_t r) {
    float* row = static_cast<float*>(params.out) + r * params.row_stride;
    // Four values come from one draw; a row may begin and end inside one.
    const std::int64_t begin = r * params.row_size, end = begin + params.row_size;
    for (std::int64_t block = begin / 4; block * 4 < end; ++block) {
      float values[4];
      random_values_of_block(spec, static_cast<std::uint64_t>(block), values);
      const std::int64_t from = std::max(block * 4, begin), to = std::min(block * 4 + 4, end);
      std::copy(values + (from - block * 4), values + (to - block * 4), row + (from - begin));
    }
    std::fill(row + params.row_size, row + params.row_stride, 0.0f);
  });
}

}  // namespace gapless::cpu
