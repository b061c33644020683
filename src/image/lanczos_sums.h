// The sums of a Lanczos resize: out[i] = clamp(sum over taps t of weight(t) * in[t][i]), on bytes, in fixed
// point. The result does not depend on the processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image/lanczos_taps.h"

namespace gapless {

// Neighbouring bytes that are summed at once.
inline constexpr int kLanczosLanes = 48;

struct LanczosSums {
  // Output row o of a vertical pass. `in`: row taps.first(o), and behind it the others, each row_bytes
  // bytes; out: row_bytes bytes.
  void (*row)(const std::uint8_t* in, std::size_t row_bytes, const LanczosTaps& taps, int o,
              std::uint8_t* out);
  // One block of a horizontal pass: columns is [in_size][kLanczosLanes], out_columns
  // [out_size][kLanczosLanes].
  void (*columns)(const std::uint8_t* columns, const LanczosTaps& taps, std::uint8_t* out_columns);
};

// The fastest that this processor runs. Any thread.
const LanczosSums& lanczos_sums();
// What every processor runs.
const LanczosSums& portable_lanczos_sums();

}  // namespace gapless
