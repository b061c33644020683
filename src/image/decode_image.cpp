#include "image/decode_image.h"

#include <algorithm>
#include <new>
#include <utility>

#include "image/codecs.h"
#include "image/exif.h"

namespace gapless {
namespace {

using internal::Raster;

StatusOr<Raster> decode_raster(std::span<const std::byte> bytes, const ImageInfo& info) {
  switch (info.format) {
    case ImageFormat::kJpeg:
      return internal::decode_jpeg(bytes, info);
    case ImageFormat::kPng:
      return internal::decode_png(bytes, info);
    case ImageFormat::kWebp:
      return internal::decode_webp(bytes, info);
  }
  return make_error(StatusCode::kInternal, "no decoder for this format");
}

// RGBA to RGB within the same memory: the write position never passes the read position.
std::vector<std::uint8_t> drop_alpha(std::vector<std::uint8_t> pixels) {
  const std::size_t num_pixels = pixels.size() / 4;
  const std::uint8_t* from = pixels.data();
  std::uint8_t* to = pixels.data();
  for (std::size_t i = 0; i < num_pixels; ++i, from += 4, to += 3) std::copy(from, from + 3, to);
  pixels.resize(num_pixels * 3);
  return pixels;
}

StatusOr<Image> decode_within_bounds(std::span<const std::byte> bytes, const ImageInfo& info,
                                     const DecodeOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(Raster raster, decode_raster(bytes, info));
  Image image{raster.width, raster.height, std::move(raster.pixels)};
  if (raster.num_channels == 4) image.rgb = drop_alpha(std::move(image.rgb));
  if (options.exif == ExifOrientation::kIgnore) return image;
  return apply_orientation(std::move(image), info.orientation);
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
