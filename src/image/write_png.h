// RGB pictures to PNG bytes and files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "base/status.h"
#include "image/image.h"

namespace gapless {

StatusOr<std::vector<std::byte>> encode_png(const Image& image);

// The error names the path.
Status write_png(const std::filesystem::path& path, const Image& image);

}  // namespace gapless
