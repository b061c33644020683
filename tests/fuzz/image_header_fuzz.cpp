// Any bytes: the header is parsed, and where it promises a small picture the picture is decoded,
// upright and composited. Nothing may crash, and a picture that comes out has the size that the
// header promised.
#include <cstdint>
#include <cstdlib>

#include "image/decode_image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gapless;
  constexpr std::int64_t kMaxFuzzPixels = 256 * 256;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);

  const auto info = probe_image(bytes);
  if (!info.ok()) return 0;
  if (info->orientation < 1 || info->orientation > 8) std::abort();

  const auto image = decode_image(bytes, {.max_pixels = kMaxFuzzPixels});
  if (!image.ok()) return 0;
  const bool turned = info->orientation >= 5;
  if (image->width != (turned ? info->height : info->width)) std::abort();
  if (image->height != (turned ? info->width : info->height)) std::abort();
  if (image->rgb.size() !=
      static_cast<std::size_t>(info->width) * static_cast<std::size_t>(info->height) * 3) {
    std::abort();
  }
  return 0;
}
