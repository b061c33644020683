// Weights in another format than T.
#pragma once

#include "base/status.h"
#include "kernels/kernels.h"
#include "kernels/prepared_format.h"
#include "model/model_weights.h"

namespace gapless {

enum class WeightFormat {
  kNative,  // T
  kFp8,     // matrices of the vision encoder, the projector, the text decoder and lm_head in 8 bits
            // (fp8.h)
  kW8A8,    // kFp8, and products in 8 bits where they are faster: rows of activations are rounded
            // too, each with a scale of its own, in the vision encoder and in prefills
};

// How decode steps of a model in this format read its matrices.
constexpr PreparedFormat prepared_format(WeightFormat format) {
  return format == WeightFormat::kNative ? PreparedFormat::kNative : PreparedFormat::kFp8;
}

// Rounds the matrices that kFp8 names to 8 bits, in place: embeddings, norms, biases and region
// heads stay.
Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const ModelWeights& weights);

// kW8A8: gives the matrices of those products what LinearWeights::fp8 asks for. Call after
// round_weights_to_fp8, so that decode steps work on the same numbers.
Status make_fp8_products(Device& device, Kernels& kernels, Stream& stream, ModelWeights& weights);

}  // namespace gapless
