// GAPLESS_KEEP_LOOP, in front of a loop: a CUDA kernel keeps it as it is written. A kernel that runs once in a step meets most of its
// code for the first time, and to fetch an instruction takes longer than to run the turn of a loop whose instructions are there.
#pragma once

#ifdef __CUDA_ARCH__
#define GAPLESS_KEEP_LOOP _Pragma("unroll 1")
#else
#define GAPLESS_KEEP_LOOP
#endif
