// How a GPU runs a model's decode steps.
#pragma once

#include <string>

#include "base/status.h"
#include "model/model_shape.h"
#include "model/model_weights.h"

namespace gapless {

// Ok where a decode step is one launch (kernels/one_launch_decoder.h); otherwise the reason why it is composed of
// single ops. The weights may be those of a WeightLayout: their contents are not looked at.
Status check_one_launch_decode(const TextShape& shape, const TextWeights& weights);

// The same of a configuration, as a line for a person.
std::string describe_decode_path(const ModelConfig& config);

}  // namespace gapless
