// Weights in another format than T. Which matrices take part is said in the family's list of tensors (Fp8Use).
#pragma once

#include "base/status.h"
#include "kernels/kernels.h"
#include "kernels/prepared_format.h"
#include "model/tensor_layout.h"

namespace gapless {

enum class WeightFormat {
  kNative,  // T
  kFp8,     // matrices of the vision encoder, the projector, the text decoder and lm_head in 8 bits
            // (fp8.h)
  kW8A8,    // kFp8, and products in 8 bits where they are faster: rows of activations are rounded
            // too, each with a scale of its own, in the vision encoder and in prefills
  kInt8,  // the same matrices in whole numbers of 8 bits, and all their products too (kernels/int8_layout.h); on the
          // CPU alone
};

// How decode steps of a model in this format read its matrices.
constexpr PreparedFormat prepared_format(WeightFormat format) {
  const bool is_fp8 = format == WeightFormat::kFp8 || format == WeightFormat::kW8A8;
  return is_fp8 ? PreparedFormat::kFp8 : PreparedFormat::kNative;
}

// Rounds the matrices that take part to 8 bits, in place.
Status round_weights_to_fp8(Kernels& kernels, Stream& stream, const TensorLayout& layout,
                            void* weights_dev);

// kW8A8: writes the copies in 8 bits that LinearWeights::fp8 asks for. Call after
// round_weights_to_fp8, so that decode steps work on the same numbers.
Status fill_fp8_copies(Kernels& kernels, Stream& stream, const TensorLayout& layout,
                       const void* weights_dev, const Fp8Layout& copies, void* copies_dev);

}  // namespace gapless
