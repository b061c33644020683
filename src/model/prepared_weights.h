// A second copy of the text decoder's matrices, in the layout that the backend's decode products
// want, in T or in 8 bits: of the logits' matrix, and of the blocks' where a decode step is one launch
// (decode_path.h). Prefill keeps reading the rows of the first: a copy in T costs as much
// memory again as those matrices take (2.6 GB for Moondream 2 in bfloat16). Where memory is short the blocks share
// memory for their rows, and a prefill restores each block's from the copy.
#pragma once

#include <cstddef>
#include <functional>

#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model_shape.h"
#include "model/text_weights.h"

namespace gapless {

// Bytes of the copy; 0 where the backend has no such layout. Addresses are not looked at.
std::size_t prepared_weights_bytes(const Kernels& kernels, const TextShape& shape,
                                   const TextWeights& text, PreparedFormat format);

// Makes the rows of a block's matrices be there; enqueues.
using FillBlock = std::function<Status(int block)>;

// Makes the copy. fill_block: of weights whose blocks share memory for their rows (DecoderBlock::shares_rows, which is set
// here); called for each block before it is prepared. kFp8: of weights that round_weights_to_fp8 has rounded. The weights must be there
// once `stream` gets there; so is the copy after it.
Status prepare_decode_weights(Device& device, Kernels& kernels, Stream& stream,
                              const TextShape& shape, PreparedFormat format,
                              DecoderWeights& weights, const FillBlock& fill_block = nullptr);

}  // namespace gapless
