#pragma once

namespace gapless {

// 0 where there is nothing to divide by.
constexpr double ratio(double value, double count) {
  return count > 0 ? value / count : 0;
}

}  // namespace gapless
