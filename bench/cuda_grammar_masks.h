// Looking for the legal tokens of rows with a grammar, with a vocabulary of Qwen's size.
#pragma once

#include "bench/cuda_bench.h"

namespace gapless::bench {

void bench_grammar_masks(CudaBench& b);

}  // namespace gapless::bench
