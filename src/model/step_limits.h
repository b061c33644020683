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

// How much room for a step's activations. kSmall is for cards whose memory is nearly full of weights: fewer rows,
// shorter prefills, fewer crops at once.
enum class StepSizing { kUsual, kSmall };

struct LimitWishes {
  std::optional<int> max_rows =
      std::nullopt;  // sequences that run at once; unset: what suits the sizing
  StepSizing sizing = StepSizing::kUsual;
  // Of keys and values; unset: a share of the memory that is left.
  std::optional<std::size_t> kv_cache_bytes = std::nullopt;
  // Where that is unset, on a CPU: as large as suits the machine, or, for whoever starts many models in one process,
  // small (kSmallCpuKvBytes).
  bool sized_to_machine = true;
  // Left for what is allocated later (the loop's slots, grammars, graphs) and for others; unset: what suits the device.
  std::optional<std::size_t> reserve_bytes = std::nullopt;
};

// Call after the weights are on the device. ResourceExhausted when not even one sequence of max_context fits; the error
// says which context would.
StatusOr<StepLimits> choose_step_limits(Device& device, const Kernels& kernels,
                                        const ModelShape& shape, KvFormat kv_format,
                                        const LimitWishes& wishes = {});

}  // namespace gapless
