#pragma once

#include <chrono>
#include <cstdint>

namespace gapless {

// Since 1970, as clients are told.
inline double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
inline std::int64_t whole_unix_now_s() {
  return static_cast<std::int64_t>(unix_now_s());
}

}  // namespace gapless
