// Pictures for the tests of this folder: patterns, files made with the codecs' own encoders, and
// containers put together by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/image.h"

namespace gapless::testing {

using FileBytes = std::vector<std::byte>;

// The pattern of tools/image_goldens.py.
Image pattern_image(int width, int height);
// 64-bit FNV-1a.
std::uint64_t fnv1a(std::span<const std::uint8_t> bytes);
// A file of src/image/testdata.
FileBytes testdata_file(std::string_view name);

// A TIFF block of one directory with one orientation entry; `type` 3 = SHORT, 4 = LONG.
FileBytes exif_block(int orientation, bool big_endian = false, int type = 3);

struct JpegSpec {
  int num_components = 3;  // of the samples: 1 grey, 3 RGB, 4 CMYK
  bool ycck = false;       // of 4: stored as YCCK
  int quality = 95;
  int num_refined_scans = 0;  // grey only: progressive, two scans for each of this many AC terms
  bool arithmetic = false;
  int luma_columns = 2, luma_rows = 2;  // of RGB: samples of luma for one of each chroma
  int restart_rows = 0;                 // of blocks, between restart markers
};
FileBytes make_jpeg(int width, int height, std::span<const std::uint8_t> samples,
                    const JpegSpec& spec = {});
// The same file with an APP1 segment "Exif\0\0" + block after its start marker.
FileBytes with_jpeg_exif(const FileBytes& jpeg, const FileBytes& block);

struct PngSpec {
  int bit_depth = 8;
  int colour_type = 2;  // 0 grey, 2 RGB, 3 palette, 4 grey + alpha, 6 RGBA
  bool interlaced = false;
  std::vector<std::uint8_t> palette;           // RGB triples
  std::vector<std::uint8_t> palette_alpha;     // tRNS of a palette
  std::vector<std::uint16_t> transparent_key;  // tRNS of grey (1 value) or RGB (3)
  FileBytes exif;                              // an eXIf chunk before the pixels
  bool exif_after_pixels = false;
};
// `rows` holds the packed rows as PNG stores them before filtering (16-bit samples big endian).
FileBytes make_png(int width, int height, std::span<const std::uint8_t> rows,
                   const PngSpec& spec = {});
// A signature and an IHDR with any size and nothing behind it but an IEND.
FileBytes png_header_only(std::uint32_t width, std::uint32_t height);
// The header of a lossless WebP of any size up to 16384 x 16384, and hardly anything behind it.
FileBytes lossless_webp_header_only(std::uint32_t width, std::uint32_t height);

// Lossless, so pixels survive exactly. channels 3 or 4.
FileBytes make_webp(int width, int height, std::span<const std::uint8_t> samples, int channels);
// Lossy, so pixels survive about.
FileBytes make_lossy_webp(int width, int height, std::span<const std::uint8_t> rgb, float quality);
// Wraps a still WebP in an extended container with an EXIF chunk.
FileBytes with_webp_exif(const FileBytes& webp, int width, int height, const FileBytes& block);
// An animation of one frame at (x, y), both even, on a larger canvas.
FileBytes webp_animation(const FileBytes& frame, int width, int height, int x, int y,
                         int canvas_width, int canvas_height);

struct GifSpec {
  std::vector<std::uint8_t> palette;        // RGB triples, a power of two of them; empty: none
  std::vector<std::uint8_t> local_palette;  // of the picture alone
  int transparent = -1;                     // the index, in a graphics control block
  bool interlaced = false;
  int left = 0, top = 0;                       // of the picture on the canvas
  int canvas_width = 0, canvas_height = 0;     // 0: the picture's size
  bool comment = false;                        // a block before the picture
  std::vector<std::uint8_t> second_picture{};  // indices of another frame of the same size
};
FileBytes make_gif(int width, int height, std::span<const std::uint8_t> indices,
                   const GifSpec& spec = {});

// What a camera held the other way would store: the raster whose EXIF orientation is `orientation`
// and whose upright picture is `upright`. Written from the standard's words ("0th row is the visual
// right side, ..."), not from the decoder's formulas.
Image stored_for(const Image& upright, int orientation);

}  // namespace gapless::testing
