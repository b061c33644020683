// Matrices packed for products in 8-bit whole numbers (WeightFormat::kInt8).
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/text_weights.h"

namespace gapless {

// Groups of matrices; those of different groups may share memory before they are packed.
using Int8Groups = std::vector<std::vector<LinearWeights*>>;

// A group for each block of the text decoder, then one of its head. Experts stay as they are.
Int8Groups int8_groups(TextWeights& text);

// Makes the rows of a group's matrices be there; enqueues.
using FillGroup = std::function<Status(int group)>;

// OK where the kernels have such products; otherwise invalid argument, with what there is instead.
Status check_int8_products(const Kernels& kernels);

// Packs the matrices into memory of `weights`, so that products read it (LinearWeights::int8) and nobody reads what they were
// packed from. `fill_group`: nullptr where all weights are there; otherwise puts group i where its matrices lie; called
// for one group after the other, before it is packed.
Status make_int8_products(Device& device, Kernels& kernels, Stream& stream, DecoderWeights& weights,
                          const Int8Groups& groups, const FillGroup& fill_group);

}  // namespace gapless
