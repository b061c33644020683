// Bounds of a model's steps on a device, chosen at start-up.
#pragma once

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model_shape.h"
#include "step/step_model.h"

namespace gapless {

// Call after the weights are on the device: the KV cache gets a share of the memory that is left.
// ResourceExhausted when not even one sequence of max_context fits; the error says which
// context would.
StatusOr<StepLimits> choose_step_limits(Device& device, const Kernels& kernels,
                                        const ModelShape& shape, KvFormat kv_format);

}  // namespace gapless
