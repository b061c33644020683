// Bilinear sampling: pixel centres at halves, edges repeated; no smoothing where a picture gets smaller.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gapless {

// Where a new pixel lies between two old ones.
struct BilinearTap {
  int first = 0;
  int second = 0;
  float share = 0;  // of the second

  float mix(float a, float b) const { return a + share * (b - a); }
};

inline std::vector<BilinearTap> bilinear_taps(int size, int new_size) {
  std::vector<BilinearTap> taps(static_cast<std::size_t>(new_size));
  const float scale = static_cast<float>(size) / static_cast<float>(new_size);
  for (int i = 0; i < new_size; ++i) {
    const float at = std::max(0.0f, (static_cast<float>(i) + 0.5f) * scale - 0.5f);
    const int first = std::min(static_cast<int>(at), size - 1);
    taps[static_cast<std::size_t>(i)] = {first, std::min(first + 1, size - 1),
                                         at - static_cast<float>(first)};
  }
  return taps;
}

// value(x, y) of the four pixels around.
template <typename Value>
float sample_bilinear(const BilinearTap& column, const BilinearTap& line, const Value& value) {
  return line.mix(column.mix(value(column.first, line.first), value(column.second, line.first)),
                  column.mix(value(column.first, line.second), value(column.second, line.second)));
}

}  // namespace gapless
