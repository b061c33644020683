// Coordinates that the region heads make, by their bins. (The oracle in reference/ has its own.)
#pragma once

#include "base/host_device.h"

namespace gapless {

// divisor: as in DecodeRegionsParams.
GAPLESS_HOST_DEVICE inline float coordinate_of_bin(int bin, int num_bins, int divisor) {
  return static_cast<float>(static_cast<double>(bin) / (divisor > 0 ? divisor : num_bins - 1));
}

// The bin whose coordinate is x, to the last bit; -1: none.
GAPLESS_HOST_DEVICE inline int bin_of_coordinate(float x, int num_bins, int divisor) {
  const double nearest = static_cast<double>(x) * (divisor > 0 ? divisor : num_bins - 1) + 0.5;
  if (!(nearest >= 0 && nearest < num_bins)) return -1;
  const int bin = static_cast<int>(nearest);
  return coordinate_of_bin(bin, num_bins, divisor) == x ? bin : -1;
}

}  // namespace gapless
