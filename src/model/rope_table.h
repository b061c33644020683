// The table of rotary position embeddings.
#pragma once

#include <vector>

namespace gapless {

// How a model that was trained with one context stretches its frequencies to a longer one. Formulas as in
// transformers' modeling_rope_utils.
struct RopeScaling {
  enum class Kind {
    kNone,
    kLinear,  // all frequencies divided by `factor`
    kLlama3,  // low frequencies divided, high ones kept, a linear blend between (Llama 3.1)
    kYarn,    // the same idea over dims, and cos and sin are scaled (arXiv 2309.00071)
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;   // kLlama3: wavelengths above original_context / this are divided
  double high_freq_factor = 4;  // and those below original_context / this kept
  int original_context = 0;     // kLlama3, kYarn: of the training
  double beta_fast = 32;        // kYarn: turns within original_context above which dims are kept
  double beta_slow = 1;         // and below which they are divided
  double mscale = 0;            // kYarn: of the scale of cos and sin; 0: not said
  double mscale_all_dim = 0;
  double attention_factor = 0;  // kYarn: the scale of cos and sin; 0: follows from the others
  bool truncate = true;         // kYarn: the blend begins and ends at whole dims

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// [max_context, rotary_dim/2, 2]: cos and sin of position * theta^(-2j / rotary_dim), j = 0 ..
// rotary_dim/2 - 1, with the frequencies scaled. Frequencies and angles are rounded to float32 on the way, as
// the published models do, because at position 2000 an angle's rounding already moves its cosine by 1e-4.
std::vector<float> make_rope_table(int max_context, int rotary_dim, double theta,
                                   const RopeScaling& scaling = {});

}  // namespace gapless
