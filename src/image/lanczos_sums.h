// The sums of a Lanczos resize: out[i] = clamp(sum over taps t of weight(t) * in[t][i]), on bytes, in fixed
// point. The result does not depend on the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "image/lanczos_taps.h"

namespace gapless {

inline constexpr std::size_t kLanczosChannels = 3;
// Rows that a horizontal pass sums at once.
inline constexpr int kLanczosBlockRows = 16;
// Bytes behind each row of a block that may be written to.
inline constexpr std::size_t kLanczosSpill = 16;

struct LanczosSums {
  // Output row o of a vertical pass. `in`: row taps.first(o), and behind it the others, each row_bytes
  // bytes; out: row_bytes bytes.
  void (*row)(const std::uint8_t* in, std::size_t row_bytes, const LanczosTaps& taps, int o,
              std::uint8_t* out);
  // One block of a horizontal pass: num_rows rows of in_width pixels, at most kLanczosBlockRows, one behind the other. Output
  // rows have taps.out_size() pixels and are out_stride bytes apart, at least their own and kLanczosSpill.
  void (*block)(const std::uint8_t* in, int in_width, int num_rows, const LanczosTaps& taps,
                std::uint8_t* out, std::size_t out_stride);
};

// The fastest that this processor runs. Any thread.
const LanczosSums& lanczos_sums();
// All that it runs, the fastest first; the last one is what every processor runs.
std::span<const LanczosSums* const> all_lanczos_sums();

}  // namespace gapless
