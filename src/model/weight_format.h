// How a model's weights are kept.
#pragma once

#include "base/status.h"
#include "kernels/kernels.h"
#include "model/model_weights.h"

namespace gapless {

enum class WeightFormat {
  kNative,  // T
  kFp8,     // matrices of the vision encoder, the projector, the text decoder and lm_head in 8 bits
            // (fp8.h)
};

// Rounds the matrices that kFp8 names to 8 bits, in place: embeddings, norms, biases and region
// heads stay.
Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const ModelWeights& weights);

}  // namespace gapless
