// Which of the masks of a step a row samples under.
#pragma once

#include "base/host_device.h"
#include "kernels/kernels.h"

namespace gapless {

// Of the i-th row of a launch; nullptr: none.
GAPLESS_HOST_DEVICE inline const std::uint32_t* mask_of(const SampleParams& params,
                                                        const RowState& row, std::int64_t i) {
  if ((row.flags & kRowHostMask) != 0) return params.host_masks + i * params.host_mask_stride;
  if (row.grammar != kNoGrammar) return params.grammar_masks + i * params.host_mask_stride;
  return nullptr;
}

}  // namespace gapless
