#include "image/decode_image.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
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

bool is_turned(const ImageInfo& info, const DecodeOptions& options) {
  return options.exif == ExifOrientation::kApply && info.orientation != 1;
}

Status decode_raster(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                     const DecodeOptions& options, Raster& raster) {
  const StopCheck& stop = options.stop;
  const int kept = rows_kept(info, options);
  if (info.format != ImageFormat::kJpeg && options.helpers != nullptr) options.helpers->close();
  switch (info.format) {
    case ImageFormat::kJpeg:
      return internal::decode_jpeg(bytes, info, on_rows, kept, stop, options.helpers, raster);
    case ImageFormat::kPng:
      return internal::decode_png(bytes, info, on_rows, kept, stop, raster);
    case ImageFormat::kWebp: {
      GAPLESS_ASSIGN_OR_RETURN(raster, internal::decode_webp(bytes, info, stop));
      return ok_status();
    }
    case ImageFormat::kGif: {
      GAPLESS_ASSIGN_OR_RETURN(raster, internal::decode_gif(bytes, info, stop));
      return ok_status();
    }
  }
  return make_error(StatusCode::kInternal, "no decoder for this format");
}

// RGBA to RGB within the same memory: the write position never passes the read position. False:
// stopped.
bool drop_alpha(Pixels& pixels, const StopCheck& stop) {
  const std::size_t num_pixels = pixels.size() / 4;
  const std::uint8_t* from = pixels.data();
  std::uint8_t* to = pixels.data();
  for (std::size_t i = 0; i < num_pixels; ++i, from += 4, to += 3) {
    if (i % kPixelsPerCheck == 0 && is_stopped(stop)) return false;
    std::copy(from, from + 3, to);
  }
  pixels.resize(num_pixels * 3);
  return true;
}

Status decode_within_bounds(std::span<const std::byte> bytes, const ImageInfo& info,
                            const DecodeOptions& options, const OnRows& on_rows, Image& image) {
  const bool turns = is_turned(info, options);
  Raster raster;
  const Status decoded = decode_raster(bytes, info, turns ? nullptr : on_rows, options, raster);
  image = {raster.width, raster.height, std::move(raster.pixels)};
  GAPLESS_RETURN_IF_ERROR(decoded);
  if (raster.num_channels == 4 && !drop_alpha(image.rgb, options.stop)) return stopped_status();
  if (turns) {
    GAPLESS_ASSIGN_OR_RETURN(image,
                             apply_orientation(std::move(image), info.orientation, options.stop));
  }
  // Where the rows were told as they came this says nothing new.
  if (on_rows) on_rows(image.rgb.data(), image.height);
  return ok_status();
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
    case ImageFormat::kGif:
      return "GIF";
  }
  return "unknown";
}

DecodedSize decoded_size(const ImageInfo& info, ExifOrientation exif) {
  const bool swaps = exif == ExifOrientation::kApply && info.orientation >= 5;
  if (swaps) return {info.height, info.width};
  return {info.width, info.height};
}

DecodeMemory decode_memory(const ImageInfo& info, const DecodeOptions& options) {
  const std::int64_t num_pixels = std::int64_t{info.width} * info.height;
  const int kept = rows_kept(info, options);
  const std::int64_t raster_bytes =
      std::int64_t{info.width} * (kept > 0 ? kept : info.height) * info.num_channels;
  const bool is_shared = internal::jpeg_decodes_in_bands(info, options.helpers);
  const int num_readers = is_shared ? 1 + options.helpers->count() : 1;
  const std::int64_t codec_bytes =
      info.codec_bytes + num_readers * kCodecRows * info.width * info.num_channels + kCodecBytes;
  DecodeMemory memory{raster_bytes + codec_bytes, raster_bytes};
  if (is_turned(info, options)) {
    memory.image_bytes = num_pixels * 3;  // turned into a raster of its own
    memory.peak_bytes = std::max(memory.peak_bytes, raster_bytes + memory.image_bytes);
  }
  return memory;
}

int rows_kept(const ImageInfo& info, const DecodeOptions& options) {
  const std::int64_t raster_bytes = std::int64_t{info.width} * info.height * 3;
  const bool keeps_all = options.keeps_all_rows || !info.comes_by_rows ||
                         is_turned(info, options) || info.height <= kRowsKept ||
                         raster_bytes < static_cast<std::int64_t>(kMinHugeRasterBytes) ||
                         internal::jpeg_decodes_in_bands(info, options.helpers);
  return keeps_all ? 0 : kRowsKept;
}

Status check_image_bounds(const ImageInfo& info, const DecodeOptions& options) {
  if (info.width > kMaxImageSide || info.height > kMaxImageSide) {
    return invalid_argument("{} image of {}x{}: a side may have at most {} pixels",
                            image_format_name(info.format), info.width, info.height, kMaxImageSide);
  }
  const std::int64_t num_pixels = std::int64_t{info.width} * info.height;
  if (num_pixels > info.max_pixels && num_pixels <= kMaxImagePixels) {
    return invalid_argument(
        "lossless or animated WebP image of {}x{}: {} pixels, more than the {} allowed of this "
        "kind; a lossy WebP, a JPEG or a PNG may have {}",
        info.width, info.height, num_pixels, info.max_pixels, kMaxImagePixels);
  }
  const std::int64_t max_pixels = std::min(options.max_pixels, kMaxImagePixels);
  if (num_pixels > max_pixels) {
    return invalid_argument("{} image of {}x{}: {} pixels, more than the {} allowed",
                            image_format_name(info.format), info.width, info.height, num_pixels,
                            max_pixels);
  }
  return ok_status();
}

Status decode_image_by_rows(std::span<const std::byte> bytes, const DecodeOptions& options,
                            const OnRows& on_rows, Image& image) {
  // Whatever becomes of it.
  struct Closing {
    DecodeHelpers* helpers;
    ~Closing() {
      if (helpers != nullptr) helpers->close();
    }
  } const closing{options.helpers};
  GAPLESS_ASSIGN_OR_RETURN(const ImageInfo info, probe_image(bytes));
  GAPLESS_RETURN_IF_ERROR(check_image_bounds(info, options));
  try {
    return decode_within_bounds(bytes, info, options, on_rows, image);
  } catch (const std::bad_alloc&) {
    return make_error(StatusCode::kResourceExhausted, "no memory for a {} image of {}x{}",
                      image_format_name(info.format), info.width, info.height);
  }
}

StatusOr<Image> decode_image(std::span<const std::byte> bytes, const DecodeOptions& options) {
  GAPLESS_CHECK(options.keeps_all_rows);
  Image image;
  GAPLESS_RETURN_IF_ERROR(decode_image_by_rows(bytes, options, nullptr, image));
  return image;
}

}  // namespace gapless
