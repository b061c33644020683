// The weights of a text decoder, whatever its family.
#pragma once

#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"
#include "model/tensor_layout.h"

namespace gapless {

// D = width, V = vocabulary.
struct TextWeights {
  const void* wte = nullptr;  // [V, D]
  // Without their KV cache (DecoderBlock::kv), which is not a weight. What a block prepares for decode
  // steps is in prepared_weights.h.
  std::vector<DecoderBlock> blocks;
  NormWeights post_ln;    // [D]
  LinearWeights lm_head;  // [V, D]
};

// A text decoder's weights and the memory that they lie in.
struct DecoderWeights {
  TensorLayout layout;
  Buffer buffer;
  Buffer prepared;  // empty until prepare_decode_weights
  Buffer fp8;       // copies in 8 bits; empty without
  Buffer int8;      // empty until make_int8_products
  TextWeights text;
};

}  // namespace gapless
