// The kernels around products and attention, at the shapes of Moondream 2.
#pragma once

#include "bench/cuda_bench.h"

namespace gapless::bench {

void bench_small_kernels(CudaBench& b);

}  // namespace gapless::bench
