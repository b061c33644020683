// The tensors of the Moondream family: the one list from which layout, loading, random weights and 8-bit
// weights are derived.
#pragma once

#include <vector>

#include "model/moondream/model_config.h"
#include "weights/weight_map.h"

namespace gapless {

// Every tensor, in a fixed order: vision, text, region. Paddings are those of model_shape.h.
std::vector<WeightSpec> weight_specs(const ModelConfig& config);

}  // namespace gapless
