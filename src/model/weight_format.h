// Weights in another format than T.
#pragma once

#include "base/status.h"
#include "kernels/kernels.h"
#include "kernels/weight_format.h"
#include "model/model_weights.h"

namespace gapless {

// Rounds the matrices that kFp8 names to 8 bits, in place: embeddings, norms, biases and region
// heads stay.
Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const ModelWeights& weights);

}  // namespace gapless
