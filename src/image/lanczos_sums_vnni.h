// The sums for x86 processors that multiply and add four bytes at once (AVX-512 VNNI).
#pragma once

#include "image/lanczos_sums.h"

namespace gapless {

// nullptr: this processor is not one of them.
const LanczosSums* vnni_lanczos_sums();

}  // namespace gapless
