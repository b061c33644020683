// How a model's weights are kept.
#pragma once

namespace gapless {

enum class WeightFormat {
  kNative,  // T
  kFp8,     // matrices of the vision encoder, the projector, the text decoder and lm_head in 8 bits
            // (fp8.h)
};

}  // namespace gapless
