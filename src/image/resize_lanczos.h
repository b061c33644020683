// Lanczos resize of 8-bit RGB, bit-equal to Pillow's Image.resize((w, h), Image.LANCZOS).
//
// Pillow's resampling, restated: per axis with scale s = in/out, f = max(1, s) and the centre
// c = (o + 0.5) s of output o, the taps x run over [floor(c - 3f + 0.5), floor(c + 3f + 0.5)) cut
// to the image, with weights L((x - c + 0.5) / f), L(t) = sinc(t) sinc(t/3) on [-3, 3), normalised
// to sum 1 and rounded to 22-bit fixed point. Each pass adds 1/2, shifts and clamps to 0..255, so
// the intermediate is 8-bit. A pass whose size does not change is skipped.
//
// The order of the passes shows in the rounding: horizontal first, except where the vertical pass
// removes more than twice as many rows as the horizontal one removes columns. The exception is
// Pillow 13.0's, read from its compiled module and checked on its results. Pillow 11.3 to 12.2 go
// horizontally first even so, and differ from us in the rounding of such shapes.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "image/image.h"

namespace gapless {

// Both sizes at least 1 (checked: sizes come from select_tiling, not from a user).
// The work is shared with `pool`, if there is one; the result is the same.
Image resize_lanczos(const Image& image, int out_width, int out_height, ThreadPool* pool = nullptr);

// The same into the caller's memory: out_rgb holds out_width * out_height * 3 bytes, packed, and
// does not overlap the image.
void resize_lanczos_into(const Image& image, int out_width, int out_height, std::uint8_t* out_rgb,
                         ThreadPool* pool = nullptr);

}  // namespace gapless
