#include "image/decode_image.h"

#include <algorithm>
#include <new>
#include <utility>

#include "image/codecs.h"
#include "image/exif.h"

namespace gapless {
namespace {

using internal::Raster;

// Pixels between two looks at the stop check, where there are no rows.
constexpr std::size_t kPixelsPerCheck = std::size_t{1} << 16;

// Buffers of rows, tables and the codec itself.
constexpr std::int64_t kCodecRows = 64;
constexpr std::int64_t kCodecBytes = 1 << 20;

StatusOr<Raster> decode_raster(std::span<const std::byte> bytes, const ImageInfo& info,
                               const StopCheck& stop) {
  switch (info.format) {
    case ImageFormat::kJpeg:
      return internal::decode_jpeg(bytes, info, stop);
    case ImageFormat::kPng:
      return internal::decode_png(bytes, info, stop);
    case ImageFormat::kWebp:
      return internal::decode_webp(bytes, info, stop);
  }
  return make_error(StatusCode::kInternal, "no decoder for this format");
}

// round((colour * alpha + 255 * (255 - alpha)) / 255), exactly.
std::uint8_t over_white(unsigned colour, unsigned alpha) {
  const unsigned sum = colour * alpha + 255 * (255 - alpha) + 128;
  return static_cast<std::uint8_t>((sum + (sum >> 8)) >> 8);
}

// RGBA to RGB within the same memory: the write position never passes the read position. False:
// stopped.
bool remove_alpha(std::vector<std::uint8_t>& pixels, AlphaMode mode, const StopCheck& stop) {
  const std::size_t num_pixels = pixels.size() / 4;
  const std::uint8_t* from = pixels.data();
  std::uint8_t* to = pixels.data();
  for (std::size_t i = 0; i < num_pixels; ++i, from += 4, to += 3) {
    if (i % kPixelsPerCheck == 0 && is_stopped(stop)) return false;
    const unsigned alpha = mode == AlphaMode::kDrop ? 255 : from[3];
    for (int c = 0; c < 3; ++c) to[c] = over_white(from[c], alpha);
  }
  pixels.resize(num_pixels * 3);
  return true;
}

StatusOr<Image> decode_within_bounds(std::span<const std::byte> bytes, const ImageInfo& info,
                                     const DecodeOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(Raster raster, decode_raster(bytes, info, options.stop));
  Image image{raster.width, raster.height, std::move(raster.pixels)};
  if (raster.num_channels == 4 && !remove_alpha(image.rgb, options.alpha, options.stop)) {
    return stopped_status();
  }
  if (options.exif == ExifOrientation::kIgnore) return image;
  return apply_orientation(std::move(image), info.orientation, options.stop);
}

}  // namespace

std::string_view image_format_name(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return "JPEG";
    case ImageFormat::kPng:
      return "PNG";
    case ImageFormat::kWebp:
      return "WebP";
  }
  return "unknown";
}

DecodeMemory decode_memory(const ImageInfo& info, const DecodeOptions& options) {
  const std::int64_t num_pixels = std::int64_t{info.width} * info.height;
  const std::int64_t raster_bytes = num_pixels * info.num_channels;
  const std::int64_t codec_bytes =
      info.codec_bytes + kCodecRows * info.width * info.num_channels + kCodecBytes;
  DecodeMemory memory{raster_bytes + codec_bytes, raster_bytes};
  if (options.exif == ExifOrientation::kApply && info.orientation != 1) {
    memory.image_bytes = num_pixels * 3;  // turned into a raster of its own
    memory.peak_bytes = std::max(memory.peak_bytes, raster_bytes + memory.image_bytes);
  }
  return memory;
}

Status check_image_bounds(const ImageInfo& info, const DecodeOptions& options) {
  if (info.width > kMaxImageSide || info.height > kMaxImageSide) {
    return invalid_argument("{} image of {}x{}: a side may have at most {} pixels",
                            image_format_name(info.format), info.width, info.height, kMaxImageSide);
  }
  const std::int64_t num_pixels = std::int64_t{info.width} * info.height;
  const std::int64_t max_pixels = std::min(options.max_pixels, kMaxImagePixels);
  if (num_pixels > max_pixels) {
    return invalid_argument("{} image of {}x{}: {} pixels, more than the {} allowed",
                            image_format_name(info.format), info.width, info.height, num_pixels,
                            max_pixels);
  }
  return ok_status();
}

StatusOr<Image> decode_image(std::span<const std::byte> bytes, const DecodeOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const ImageInfo info, probe_image(bytes));
  GAPLESS_RETURN_IF_ERROR(check_image_bounds(info, options));
  try {
    return decode_within_bounds(bytes, info, options);
  } catch (const std::bad_alloc&) {
    return make_error(StatusCode::kResourceExhausted, "no memory for a {} image of {}x{}",
                      image_format_name(info.format), info.width, info.height);
  }
}

}  // namespace gapless
