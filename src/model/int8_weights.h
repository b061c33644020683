// Matrices packed for products in 8-bit whole numbers (WeightFormat::kInt8).
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/text_weights.h"

namespace gapless {

// OK where the kernels have such products; otherwise invalid argument, with what there is instead.
Status check_int8_products(const Kernels& kernels);

// Packs the matrices of the text decoder's blocks, its head and `others` into memory of `weights`, so that products read
// it (LinearWeights::int8). Experts stay as they are. `fill_block`: nullptr where all weights are there; otherwise puts
// block i's matrices where they lie, which is where every block's lie: called for one block after the other, before it is packed.
Status make_int8_products(Device& device, Kernels& kernels, Stream& stream, DecoderWeights& weights,
                          const std::vector<LinearWeights*>& others,
                          const std::function<Status(int)>& fill_block);

}  // namespace gapless
