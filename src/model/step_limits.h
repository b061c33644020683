// Bounds of a model's steps on a device, chosen at start-up.
#pragma once

#include <cstddef>
#include <optional>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model_shape.h"
#include "step/step_model.h"

namespace gapless {

// Call after the weights are on the device: the KV cache gets a share of the memory that is left, or
// `kv_cache_bytes` of it. Without a number the CPU's is as large as suits the machine, or, for whoever starts many
// models in one process, small (kSmallCpuKvBytes). ResourceExhausted when not even one sequence of max_context fits; the error says
// which context would.
StatusOr<StepLimits> choose_step_limits(Device& device, const Kernels& kernels,
                                        const ModelShape& shape, KvFormat kv_format,
                                        std::optional<std::size_t> kv_cache_bytes = std::nullopt,
                                        bool sized_to_machine = true);

}  // namespace gapless
