// Fills allocated weights: from a checkpoint, or with seeded random values made on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model_weights.h"
#include "weights/model_config.h"
#include "weights/weight_map.h"

namespace gapless {

// Each of the two pinned pieces that loading goes through: large enough that a copy's set-up does
// not show.
inline constexpr std::size_t kWeightPieceBytes = 32u << 20;

// Converts every tensor to `dtype` and copies it into its place, padding included. Returns when all
// of it has arrived. `weights` come from allocate_weights with the same configuration, dtype and
// stream. piece_bytes must hold a row of every padded tensor.
Status load_weights(Device& device, Stream& stream, const WeightSource& source,
                    const ModelConfig& config, DType dtype, const ModelWeights& weights,
                    std::size_t piece_bytes = kWeightPieceBytes);

// The values that write_random_model (weights/random_model.h) puts on disk for this seed, rounded
// to T. Enqueues only.
Status fill_random_weights(Kernels& kernels, Stream& stream, const ModelConfig& config,
                           std::uint64_t seed, const ModelWeights& weights);

}  // namespace gapless
