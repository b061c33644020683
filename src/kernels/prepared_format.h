// How prepared weights (PrepareLinearParams) lie.
#pragma once

namespace gapless {

enum class PreparedFormat {
  kNative,  // T
  kFp8,     // e4m3, and a power of two for each row (fp8.h)
};

}  // namespace gapless
