// GAPLESS_KEEP_LOOP, in front of a loop: a CUDA kernel keeps it as it is written, where unrolling would only make the kernel larger.
// The walk of a grammar has two thirds of the instructions that it has without it.
#pragma once

#ifdef __CUDA_ARCH__
#define GAPLESS_KEEP_LOOP _Pragma("unroll 1")
#else
#define GAPLESS_KEEP_LOOP
#endif
