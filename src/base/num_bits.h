// How many bits of a word are set, on the host and in CUDA kernels.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace gapless {

GAPLESS_HOST_DEVICE inline int num_bits(std::uint32_t word) {
#ifdef __CUDA_ARCH__
  return __popc(word);
#else
  return std::popcount(word);
#endif
}
GAPLESS_HOST_DEVICE inline int num_bits(std::uint64_t word) {
#ifdef __CUDA_ARCH__
  return __popcll(word);
#else
  return std::popcount(word);
#endif
}

}  // namespace gapless
