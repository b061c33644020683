// The region heads' logits, which the engine itself reduces to bins on the device.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/model_loader.h"

namespace gapless {

enum class RegionHead { kCoord, kSize };

// Those of one row, through the op table. hidden_dev: [dim] T.
StatusOr<std::vector<float>> region_logits(LoadedModel& loaded, const void* hidden_dev,
                                           RegionHead head);

}  // namespace gapless
