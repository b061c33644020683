// The table of rotary position embeddings.
#pragma once

#include <vector>

namespace gapless {

// [max_context, rotary_dim/2, 2]: cos and sin of position * theta^(-2j / rotary_dim), j = 0 ..
// rotary_dim/2 - 1. Frequencies and angles are rounded to float32 on the way, as the published
// model does, because at position 2000 an angle's rounding already moves its cosine by 1e-4.
std::vector<float> make_rope_table(int max_context, int rotary_dim, double theta);

}  // namespace gapless
