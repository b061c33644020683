// The uniform number of one sampled token, the same on every backend.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/philox.h"

namespace gapless {

// In [0, 1), a multiple of 2^-24: 24 high bits of word 0 of Philox4x32-10 with the seed as its key
// and the counter (num_generated, 0, 0, 0).
GAPLESS_HOST_DEVICE inline float sampling_uniform(std::uint64_t seed, std::int32_t num_generated) {
  const std::uint64_t counter = static_cast<std::uint32_t>(num_generated);
  return static_cast<float>(philox4x32(seed, counter, 0).words[0] >> 8) * (1.0f / 16777216.0f);
}

}  // namespace gapless
