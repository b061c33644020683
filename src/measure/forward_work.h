// The multiplications and additions that an encode or a prefill cannot do without, for the rate
// beside a measured time. Padding is not counted; of attention, only what a query sees.
#pragma once

#include "model/model_shape.h"
#include "model/moondream/model_config.h"

namespace gapless {

// num_images images of crops_per_image crops: the encoder, and a projection per image.
double encode_flop(const ModelConfig& config, int num_images, int crops_per_image);

// num_sequences prompts of num_tokens tokens each, the first prefix_len of which see each other,
// and the logits of their last tokens.
double prefill_flop(const ModelConfig& config, int num_sequences, int num_tokens, int prefix_len);

// The same of a text model, whose layers are alike and whose tokens see what is before them. A feed-forward
// whose width needs padding counts with it; those of published models need none.
double text_prefill_flop(const TextShape& shape, int num_sequences, int num_tokens);

}  // namespace gapless
