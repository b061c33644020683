#include "model/rope_table.h"

#include <cmath>

namespace gapless {

std::vector<float> make_rope_table(int max_context, int rotary_dim, double theta) {
  const int num_pairs = rotary_dim / 2;
  std::vector<float> inverse_frequencies;
  inverse_frequencies.reserve(static_cast<std::size_t>(num_pairs));
  for (int j = 0; j < num_pairs; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
    const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    inverse_frequencies.push_back(1.0f / power);
  }
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(max_context) * static_cast<std::size_t>(rotary_dim));
  for (int position = 0; position < max_context; ++position) {
    for (const float inverse_frequency : inverse_frequencies) {
      const float angle = static_cast<float>(position) * inverse_frequency;
      table.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      table.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
  return table;
}

}  // namespace gapless
