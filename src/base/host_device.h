// Marks inline functions that both the host and CUDA kernels call. Empty for host compilers.
#pragma once

#ifdef __CUDACC__
#define GAPLESS_HOST_DEVICE __host__ __device__
#else
#define GAPLESS_HOST_DEVICE
#endif
