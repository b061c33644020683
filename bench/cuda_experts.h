// The ops that only Moondream 3 has, at its shape: experts, and heads scaled by token and position.
#pragma once

#include "bench/cuda_bench.h"

namespace gapless::bench {

void bench_experts(CudaBench& b);

}  // namespace gapless::bench
