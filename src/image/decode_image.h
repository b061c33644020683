// Encoded picture bytes (JPEG, PNG, WebP, GIF) to 8-bit RGB.
//
// Bytes come from users: nothing they hold may crash, hang or use unbounded memory. The header is
// parsed and held against limits.h before any raster is allocated; truncated and corrupt files are
// errors, never half a picture. All functions are pure and may be called from any thread.
//
// What is accepted: JPEG (8-bit, baseline or progressive; grey, YCbCr, RGB, CMYK, YCCK), PNG (all
// colour types and depths, interlaced or not; of 16-bit samples the high byte), WebP (lossy,
// lossless, alpha; of an animation the first frame), GIF (of an animation the first frame; its canvas
// grows where that frame does not fit). Transparency is dropped: what is under it shows in
// its stored colour, as Pillow's convert("RGB") has it, which is what Moondream's clients and its
// reference code feed. ICC profiles and gamma are not applied: the
// Moondream reference feeds encoded values. JPEG pixels equal Pillow's (slow integer DCT, fancy
// upsampling, Adobe's inverted CMYK with its plain conversion to RGB).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/limits.h"
#include "base/status.h"
#include "image/decode_helpers.h"
#include "image/image.h"
#include "image/stop_check.h"

namespace gapless {

enum class ImageFormat { kJpeg, kPng, kWebp, kGif };

std::string_view image_format_name(ImageFormat format);  // "JPEG", "PNG", "WebP", "GIF"

enum class ExifOrientation {
  kApply,   // the picture is returned upright; coordinates refer to the upright picture
  kIgnore,  // pixels as stored, as Pillow's Image.open() gives them
};

struct DecodeOptions {
  ExifOrientation exif = ExifOrientation::kApply;
  std::int64_t max_pixels = kMaxImagePixels;  // a smaller bound than limits.h's, never a larger one
  StopCheck stop = {};                        // Cancelled when it says so
  DecodeHelpers* helpers = nullptr;           // closed when decoding ends; nullptr: none
  // false: of a large picture that comes row by row only kRowsKept rows are there at a time (rows_kept).
  bool keeps_all_rows = true;
};

// What the header says, before any bound is applied to its size.
struct ImageInfo {
  ImageFormat format = ImageFormat::kJpeg;
  int width = 0;   // as stored, before orientation; at least 1
  int height = 0;  // as stored, before orientation; at least 1
  // EXIF orientation 1..8 from JPEG's APP1, PNG's eXIf or WebP's EXIF chunk; 1 (upright) where
  // there is none or where it cannot be read.
  int orientation = 1;
  // What decoding takes. The raster has num_channels bytes a pixel (4 of a WebP with transparency); the codec
  // holds codec_bytes beside it for pictures that it cannot decode row by row (progressive JPEG,
  // lossless WebP), 0 for the others.
  int num_channels = 3;
  std::int64_t codec_bytes = 0;
  bool comes_by_rows = false;  // from the top, each final when it comes
  // Of this kind of file: kMaxLosslessWebpPixels where a WebP is not known to be lossy.
  std::int64_t max_pixels = kMaxImagePixels;
};

struct DecodedSize {
  int width = 0;
  int height = 0;
};
// What decode_image makes of it.
DecodedSize decoded_size(const ImageInfo& info, ExifOrientation exif);

// Reads the header only; allocates nothing that grows with the picture. Errors: not one of the
// four formats (the message says what it looks like), a broken header, a side of 0.
StatusOr<ImageInfo> probe_image(std::span<const std::byte> bytes);

// An upper bound of the memory that decode_image takes for this picture with these options, the result and helpers'
// readers included, and of what the result takes.
struct DecodeMemory {
  std::int64_t peak_bytes = 0;
  std::int64_t image_bytes = 0;
};
DecodeMemory decode_memory(const ImageInfo& info, const DecodeOptions& options);

// How many rows are there at a time when decode_image_by_rows makes this picture: 0 for all, or kRowsKept. It is all
// where options.keeps_all_rows, where the picture is small, does not come by rows or is turned, and where helpers share
// the work.
inline constexpr int kRowsKept = 128;
int rows_kept(const ImageInfo& info, const DecodeOptions& options);

// The bounds of limits.h and of the options, as decode_image applies them.
Status check_image_bounds(const ImageInfo& info, const DecodeOptions& options);

// WebP is handed to its library in pieces, and options.stop is asked between them: 1 KiB of a lossy
// file, about 32 rows of a lossless one, but the library waits for an eighth of that first. The
// others ask it for every row. Not with options.keeps_all_rows false.
StatusOr<Image> decode_image(std::span<const std::byte> bytes, const DecodeOptions& options = {});

// Told while a picture is decoded: its first num_rows rows are final, and are at `rgb`, the same
// address each time. Where rows_kept() is not 0, row y lies at y % kRowsKept, and when the call returns nobody may read
// rows before num_rows - kRowsKept / 2 any more: others take their places.
using OnRows = std::function<void(const std::uint8_t* rgb, int num_rows)>;

// The same, for those who read the rows while the rest is decoded: on_rows is called whenever more
// rows are final, from the top, in the end with all of them, by one thread at a time. The rows, or those that are kept,
// stay valid as long as `image`
// is left alone, also when decoding fails, and lie in image.rgb when it does not.
Status decode_image_by_rows(std::span<const std::byte> bytes, const DecodeOptions& options,
                            const OnRows& on_rows, Image& image);

}  // namespace gapless
