// Pictures for load: made from a seed, so that every run sends the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gapless {

struct PictureSize {
  int width = 0;
  int height = 0;
};

// "800x600". InvalidArgument: not of that form, or beyond the bounds of limits.h.
StatusOr<PictureSize> parse_picture_size(std::string_view text);

enum class PictureFormat {
  kJpeg,  // as a photograph: with grain, so that it has a photograph's size (quality 85)
  kPng,   // as a screenshot: flat areas
};
// "jpeg" or "png".
StatusOr<PictureFormat> parse_picture_format(std::string_view text);

// `count` files of coloured rectangles on a gradient, no two with the same pixels. The sizes take
// turns. Drawn on all cores.
StatusOr<std::vector<std::string>> make_pictures(int count, const std::vector<PictureSize>& sizes,
                                                 std::uint64_t seed, PictureFormat format);

}  // namespace gapless
