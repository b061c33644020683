// How a GPU runs a model's decode steps.
#pragma once

#include <string>

#include "base/status.h"
#include "model/model_shape.h"
#include "model/text_weights.h"

namespace gapless {

// Ok where a decode step is one launch (kernels/one_launch_decoder.h); otherwise the reason why it is composed of
// single ops. Addresses are not looked at (describe_text_weights).
Status check_one_launch_decode(const TextShape& shape, const TextWeights& weights,
                               KvFormat kv_format = KvFormat::kNative);

// The same in lines for a person.
std::string describe_decode_path(const TextShape& shape, const TextWeights& weights,
                                 KvFormat kv_format = KvFormat::kNative);

}  // namespace gapless
