// Fills allocated weights: from a checkpoint, or with seeded random values made on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/staged_upload.h"
#include "model/tensor_layout.h"
#include "weights/weight_map.h"

namespace gapless {

// Each of the two pinned pieces that loading goes through: large enough that a copy's set-up does
// not show.
inline constexpr std::size_t kWeightPieceBytes = 32u << 20;

// Converts every tensor to `dtype` and copies it into its place, padding included. Returns when all
// of it has arrived. `layout` and `weights_dev` are of an allocation of the same dtype, whose bytes are
// zero; the source was opened with the same list. piece_bytes must hold a row of every padded tensor.
Status load_weights(Device& device, Stream& stream, const WeightSource& source,
                    const TensorLayout& layout, DType dtype, void* weights_dev,
                    std::size_t piece_bytes = kWeightPieceBytes);
// The same through an upload that is there already, for who loads part after part.
Status load_weights(StagedUpload& upload, const WeightSource& source, const TensorLayout& layout,
                    DType dtype, void* weights_dev);

// The values that write_random_weights (weights/random_tensors.h) puts on disk for this list and seed,
// rounded to T. Enqueues only. `layout`: of some or all of them.
Status fill_random_weights(Kernels& kernels, Stream& stream, std::span<const WeightSpec> specs,
                           std::uint64_t seed, const TensorLayout& layout, void* weights_dev);

}  // namespace gapless
