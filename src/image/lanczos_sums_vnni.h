// The sums for x86 processors that multiply and add four bytes at once (AVX-512 VNNI).
#pragma once

#include <span>

#include "image/lanczos_sums.h"

namespace gapless {

// nullptr: this processor is not one of them.
const LanczosSums* vnni_lanczos_sums();
// All others that it runs, the fastest first (lanczos_sums.cpp): these take what the former's functions do not.
std::span<const LanczosSums* const> lanczos_sums_without_vnni();

}  // namespace gapless
