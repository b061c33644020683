// probe_image: what a file is, how large its picture is, and which way up.
#include <webp/decode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "image/decode_image.h"
#include "image/exif.h"

namespace gapless {
namespace {

using std::string_view_literals::operator""sv;
using Bytes = std::span<const std::byte>;

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n"sv;

bool has_at(Bytes bytes, std::size_t at, std::string_view text) {
  return at <= bytes.size() && bytes.size() - at >= text.size() &&
         std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

std::uint32_t byte_at(Bytes bytes, std::size_t at) {
  return std::to_integer<std::uint32_t>(bytes[at]);
}
std::uint32_t big_endian_16(Bytes bytes, std::size_t at) {
  return byte_at(bytes, at) << 8 | byte_at(bytes, at + 1);
}
std::uint32_t big_endian_32(Bytes bytes, std::size_t at) {
  return big_endian_16(bytes, at) << 16 | big_endian_16(bytes, at + 2);
}
std::uint32_t little_endian_16(Bytes bytes, std::size_t at) {
  return byte_at(bytes, at) | byte_at(bytes, at + 1) << 8;
}
std::uint32_t little_endian_32(Bytes bytes, std::size_t at) {
  return byte_at(bytes, at) | byte_at(bytes, at + 1) << 8 | byte_at(bytes, at + 2) << 16 |
         byte_at(bytes, at + 3) << 24;
}

// What a file that we do not read looks like; empty when nothing is recognised.
std::string_view known_other_format(Bytes bytes) {
  struct Magic {
    std::size_t at;
    std::string_view text;
    std::string_view name;
  };
  static constexpr std::array kMagics = {
      Magic{0, "BM"sv, "a BMP image"},
      Magic{0, "II*\0"sv, "a TIFF image"},
      Magic{0, "MM\0*"sv, "a TIFF image"},
      Magic{4, "ftypavif"sv, "an AVIF image"},
      Magic{4, "ftypavis"sv, "an AVIF image"},
      Magic{4, "ftyphei"sv, "a HEIC image"},
      Magic{4, "ftyphev"sv, "a HEIC image"},
      Magic{4, "ftypmif1"sv, "a HEIF image"},
      Magic{4, "ftyp"sv, "an MP4 or QuickTime video"},
      Magic{0, "\xff\x0a"sv, "a JPEG XL image"},
      Magic{0, "\0\0\0\x0cJXL "sv, "a JPEG XL image"},
      Magic{0, "\0\0\0\x0cjP  "sv, "a JPEG 2000 image"},
      Magic{0, "\xff\x4f\xff\x51"sv, "a JPEG 2000 image"},
      Magic{0, "\0\0\x01\0"sv, "an ICO image"},
      Magic{0, "8BPS"sv, "a Photoshop file"},
      Magic{0, "qoif"sv, "a QOI image"},
      Magic{0, "%PDF"sv, "a PDF document"},
      Magic{0, "PK\x03\x04"sv, "a ZIP archive"},
      Magic{0, "\x1f\x8b"sv, "gzip data"},
      Magic{0, "<svg"sv, "an SVG image"},
      Magic{0, "<?xml"sv, "an XML or SVG document"},
      Magic{0, "<!DOCTYPE"sv, "an HTML page"},
      Magic{0, "<html"sv, "an HTML page"},
      Magic{0, "data:"sv, "a data URI (its base64 must be decoded first)"},
      Magic{0, "/9j/"sv, "base64 text (it must be decoded first)"},
      Magic{0, "iVBORw0KGgo"sv, "base64 text (it must be decoded first)"},
      Magic{0, "R0lGOD"sv, "base64 text (it must be decoded first)"},
      Magic{0, "UklGR"sv, "base64 text (it must be decoded first)"},
      Magic{0, "RIFF"sv, "a RIFF file other than WebP"},
  };
  const auto found = std::find_if(kMagics.begin(), kMagics.end(), [&](const Magic& magic) {
    return has_at(bytes, magic.at, magic.text);
  });
  return found == kMagics.end() ? std::string_view() : found->name;
}

Status unsupported(Bytes bytes) {
  if (bytes.empty()) return invalid_argument("the image is empty (0 bytes)");
  const std::string_view name = known_other_format(bytes);
  if (!name.empty()) {
    return invalid_argument(
        "unsupported image: looks like {}; JPEG, PNG, WebP and GIF are "
        "accepted",
        name);
  }
  std::string start;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i) {
    start += fmt::format("{}{:02x}", i == 0 ? "" : " ", byte_at(bytes, i));
  }
  return invalid_argument(
      "unsupported image: starts with bytes {}, which no known format does; JPEG, PNG, WebP and "
      "GIF "
      "are accepted",
      start);
}

constexpr bool is_start_of_frame(std::uint32_t marker) {
  // C4, C8 and CC in the same range are other segments (Huffman tables, reserved, conditioning).
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}
constexpr bool stands_alone(std::uint32_t marker) {
  return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);
}

// Coefficients that libjpeg holds of a picture whose components do not come together: 64 of 2 bytes
// for each block of 8x8 samples, whole MCUs.
std::int64_t jpeg_coefficient_bytes(Bytes frame, int width, int height) {
  const std::size_t num_components = byte_at(frame, 5);
  if (frame.size() < 6 + 3 * num_components) return 0;  // broken: the decoder will say so
  std::int64_t max_h = 1, max_v = 1;
  for (std::size_t i = 0; i < num_components; ++i) {
    max_h = std::max<std::int64_t>(max_h, byte_at(frame, 6 + 3 * i + 1) >> 4);
    max_v = std::max<std::int64_t>(max_v, byte_at(frame, 6 + 3 * i + 1) & 15);
  }
  const std::int64_t num_mcus =
      (width + 8 * max_h - 1) / (8 * max_h) * ((height + 8 * max_v - 1) / (8 * max_v));
  std::int64_t num_blocks = 0;
  for (std::size_t i = 0; i < num_components; ++i) {
    const std::uint32_t sampling = byte_at(frame, 6 + 3 * i + 1);
    num_blocks += num_mcus * (sampling >> 4) * (sampling & 15);
  }
  return num_blocks * 128;
}

constexpr bool is_progressive(std::uint32_t frame_marker) {
  return frame_marker % 4 == 2;  // C2, C6, CA, CE
}

// Walks the segments up to the first scan. The size comes from the start of frame, the orientation
// from the first EXIF segment.
StatusOr<ImageInfo> probe_jpeg(Bytes bytes) {
  ImageInfo info{.format = ImageFormat::kJpeg, .comes_by_rows = true};
  bool has_frame = false;
  bool has_exif = false;
  bool in_one_scan = true;
  std::uint32_t num_components = 0;
  std::int64_t coefficient_bytes = 0;
  std::size_t at = 2;
  while (true) {
    while (at < bytes.size() && byte_at(bytes, at) != 0xFF) ++at;
    while (at < bytes.size() && byte_at(bytes, at) == 0xFF) ++at;
    if (at >= bytes.size()) return data_loss("JPEG: truncated before its first scan");
    const std::uint32_t marker = byte_at(bytes, at++);
    if (marker == 0 || stands_alone(marker)) continue;
    if (marker == 0xD9) return data_loss("JPEG: ends without a picture");
    if (bytes.size() - at < 2) return data_loss("JPEG: truncated before its first scan");
    const std::size_t segment_bytes = big_endian_16(bytes, at);
    if (segment_bytes < 2) return data_loss("JPEG: segment {:#04x} has a broken length", marker);
    if (bytes.size() - at < segment_bytes) {
      return data_loss("JPEG: truncated inside segment {:#04x}", marker);
    }
    const Bytes payload = bytes.subspan(at + 2, segment_bytes - 2);
    at += segment_bytes;
    if (marker == 0xDA) {
      in_one_scan = in_one_scan && !payload.empty() && byte_at(payload, 0) == num_components;
      break;
    }
    if (is_start_of_frame(marker) && !has_frame) {
      if (payload.size() < 6) return data_loss("JPEG: the frame header is too short");
      info.height = static_cast<int>(big_endian_16(payload, 1));
      info.width = static_cast<int>(big_endian_16(payload, 3));
      in_one_scan = !is_progressive(marker);
      num_components = byte_at(payload, 5);
      coefficient_bytes = jpeg_coefficient_bytes(payload, info.width, info.height);
      has_frame = true;
    } else if (marker == 0xE1 && !has_exif && has_at(payload, 0, "Exif\0\0"sv)) {
      info.orientation = exif_orientation(payload);
      has_exif = true;
    }
  }
  if (!has_frame) return data_loss("JPEG: has no frame header before its first scan");
  if (!in_one_scan) info.codec_bytes = coefficient_bytes;
  return info;
}

// In the first eXIf chunk, which may stand before or after the pixels.
int png_orientation(Bytes bytes) {
  constexpr std::size_t kChunkFrame = 12;  // length, type, CRC
  std::size_t at = kPngSignature.size();
  while (bytes.size() - at >= kChunkFrame) {
    const std::size_t chunk_bytes = big_endian_32(bytes, at);
    if (bytes.size() - at - kChunkFrame < chunk_bytes) break;
    if (has_at(bytes, at + 4, "eXIf")) return exif_orientation(bytes.subspan(at + 8, chunk_bytes));
    at += kChunkFrame + chunk_bytes;
  }
  return 1;
}

StatusOr<ImageInfo> probe_png(Bytes bytes) {
  constexpr std::size_t kHeaderEnd = 8 + 4 + 4 + 13 + 4;
  if (bytes.size() < kHeaderEnd) return data_loss("PNG: truncated inside its header");
  if (big_endian_32(bytes, 8) != 13 || !has_at(bytes, 12, "IHDR")) {
    return data_loss("PNG: does not start with an IHDR chunk");
  }
  const std::uint32_t width = big_endian_32(bytes, 16);
  const std::uint32_t height = big_endian_32(bytes, 20);
  if (width > 0x7fffffff || height > 0x7fffffff) {
    return data_loss("PNG: header with a size of {}x{}", width, height);
  }
  constexpr std::size_t kInterlaceAt = 28;
  return ImageInfo{.format = ImageFormat::kPng,
                   .width = static_cast<int>(width),
                   .height = static_cast<int>(height),
                   .orientation = png_orientation(bytes),
                   .comes_by_rows = byte_at(bytes, kInterlaceAt) == 0};
}

// The orientation in the first EXIF chunk of the RIFF container.
int webp_orientation(Bytes bytes) {
  std::size_t at = 12;
  while (bytes.size() - at >= 8) {
    const std::size_t chunk_bytes = little_endian_32(bytes, at + 4);
    if (bytes.size() - at - 8 < chunk_bytes) break;
    if (has_at(bytes, at, "EXIF")) return exif_orientation(bytes.subspan(at + 8, chunk_bytes));
    at += 8 + chunk_bytes + chunk_bytes % 2;
    if (at > bytes.size()) break;
  }
  return 1;
}

StatusOr<ImageInfo> probe_webp(Bytes bytes) {
  const std::size_t riff_bytes = std::size_t{little_endian_32(bytes, 4)} + 8;
  if (riff_bytes > bytes.size()) {
    return data_loss("WebP: truncated: {} of {} bytes are there", bytes.size(), riff_bytes);
  }
  WebPBitstreamFeatures features;
  const VP8StatusCode code =
      WebPGetFeatures(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), &features);
  if (code != VP8_STATUS_OK) return data_loss("WebP: broken header");
  constexpr int kLossy = 1;
  const std::int64_t num_pixels = std::int64_t{features.width} * features.height;
  const bool has_alpha = features.has_alpha != 0 || features.has_animation != 0;
  // A lossless picture is held whole, 4 bytes a pixel; so is a plane of transparency, by two of its
  // decoder's buffers. What an animation's frame is made of is not known here.
  const int codec_bytes_per_pixel = features.format != kLossy ? 4 : has_alpha ? 2 : 0;
  return ImageInfo{
      .format = ImageFormat::kWebp,
      .width = features.width,
      .height = features.height,
      .orientation = webp_orientation(bytes.first(riff_bytes)),
      .num_channels = has_alpha ? 4 : 3,
      .codec_bytes = num_pixels * codec_bytes_per_pixel,
      .max_pixels = features.format != kLossy ? kMaxLosslessWebpPixels : kMaxImagePixels};
}

// Behind a block's label: pieces of a length byte and so many bytes, until one of length 0.
StatusOr<std::size_t> end_of_gif_pieces(Bytes bytes, std::size_t at) {
  while (at < bytes.size()) {
    const std::size_t piece_bytes = byte_at(bytes, at++);
    if (piece_bytes == 0) return at;
    if (bytes.size() - at < piece_bytes) break;
    at += piece_bytes;
  }
  return data_loss("GIF: truncated before its first picture");
}

// The canvas, or what the first picture needs of it where that is more.
StatusOr<ImageInfo> probe_gif(Bytes bytes) {
  constexpr std::size_t kHeaderBytes = 6 + 7;
  constexpr std::size_t kPictureHeaderBytes = 10;
  constexpr std::uint32_t kHasPalette = 0x80;
  if (bytes.size() < kHeaderBytes) return data_loss("GIF: truncated inside its header");
  std::uint32_t width = little_endian_16(bytes, 6);
  std::uint32_t height = little_endian_16(bytes, 8);
  const std::uint32_t flags = byte_at(bytes, 10);
  std::size_t at = kHeaderBytes;
  if ((flags & kHasPalette) != 0) at += std::size_t{3} << ((flags & 7) + 1);
  while (at < bytes.size()) {
    const std::uint32_t type = byte_at(bytes, at);
    if (type == ',') {
      if (bytes.size() - at < kPictureHeaderBytes) break;
      width = std::max(width, little_endian_16(bytes, at + 1) + little_endian_16(bytes, at + 5));
      height = std::max(height, little_endian_16(bytes, at + 3) + little_endian_16(bytes, at + 7));
      return ImageInfo{.format = ImageFormat::kGif,
                       .width = static_cast<int>(width),
                       .height = static_cast<int>(height)};
    }
    if (type == ';') return data_loss("GIF: has no picture");
    if (type != '!') return data_loss("GIF: has a block of an unknown kind");
    if (bytes.size() - at < 2) break;
    GAPLESS_ASSIGN_OR_RETURN(at, end_of_gif_pieces(bytes, at + 2));
  }
  return data_loss("GIF: truncated before its first picture");
}

StatusOr<ImageInfo> probe_by_magic(Bytes bytes) {
  if (has_at(bytes, 0, "\xff\xd8\xff"sv)) return probe_jpeg(bytes);
  if (has_at(bytes, 0, kPngSignature)) return probe_png(bytes);
  if (has_at(bytes, 0, "RIFF") && has_at(bytes, 8, "WEBP")) return probe_webp(bytes);
  if (has_at(bytes, 0, "GIF87a") || has_at(bytes, 0, "GIF89a")) return probe_gif(bytes);
  return unsupported(bytes);
}

}  // namespace

StatusOr<ImageInfo> probe_image(Bytes bytes) {
  if (bytes.size() > kMaxImageBytes) {
    return invalid_argument("image file of {} bytes, more than the {} allowed", bytes.size(),
                            kMaxImageBytes);
  }
  GAPLESS_ASSIGN_OR_RETURN(const ImageInfo info, probe_by_magic(bytes));
  if (info.width < 1 || info.height < 1) {
    return data_loss("{} image of {}x{}: a side of zero pixels", image_format_name(info.format),
                     info.width, info.height);
  }
  return info;
}

}  // namespace gapless
