#include "image/test_images.h"

#include <gif_lib.h>
#include <png.h>
#include <webp/encode.h>

#include <array>
#include <cstdlib>
#include <memory>

// jpeglib.h needs stdio before it.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include "base/check.h"
#include "base/file_bytes.h"

namespace gapless::testing {
namespace {

std::size_t area(int width, int height) {
  return static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
}

void append(FileBytes& to, std::string_view text) {
  for (const char c : text) to.push_back(static_cast<std::byte>(c));
}
void append(FileBytes& to, const FileBytes& from) {
  to.insert(to.end(), from.begin(), from.end());
}
void append_big_endian(FileBytes& to, std::uint32_t value, int num_bytes) {
  for (int i = num_bytes - 1; i >= 0; --i) to.push_back(static_cast<std::byte>(value >> (8 * i)));
}
void append_little_endian(FileBytes& to, std::uint32_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) to.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void append_riff_chunk(FileBytes& to, std::string_view name, const FileBytes& payload) {
  append(to, name);
  append_little_endian(to, static_cast<std::uint32_t>(payload.size()), 4);
  append(to, payload);
  if (payload.size() % 2 != 0) to.push_back(std::byte{0});
}

FileBytes riff(const FileBytes& chunks) {
  FileBytes file;
  append(file, "RIFF");
  append_little_endian(file, static_cast<std::uint32_t>(chunks.size() + 4), 4);
  append(file, "WEBP");
  append(file, chunks);
  return file;
}

FileBytes chunks_of(const FileBytes& webp) {
  return {webp.begin() + 12, webp.end()};
}

FileBytes vp8x_payload(std::uint32_t flags, int width, int height) {
  FileBytes payload;
  append_little_endian(payload, flags, 4);
  append_little_endian(payload, static_cast<std::uint32_t>(width - 1), 3);
  append_little_endian(payload, static_cast<std::uint32_t>(height - 1), 3);
  return payload;
}

// For each of the first `num_terms` AC terms a scan of its upper bits and one of its lowest bit.
std::vector<jpeg_scan_info> refining_scans(int num_terms) {
  std::vector<jpeg_scan_info> scans;
  scans.push_back({.comps_in_scan = 1, .component_index = {0}, .Ss = 0, .Se = 0, .Ah = 0, .Al = 0});
  for (int k = 1; k <= 63; ++k) {
    const bool refined = k <= num_terms;
    scans.push_back({1, {0}, k, k, 0, refined ? 1 : 0});
    if (refined) scans.push_back({1, {0}, k, k, 1, 0});
  }
  return scans;
}

void append_png_bytes(png_structp png, png_bytep from, std::size_t count) {
  auto* to = static_cast<FileBytes*>(png_get_io_ptr(png));
  const auto* begin = reinterpret_cast<const std::byte*>(from);
  to->insert(to->end(), begin, begin + count);
}

void write_png_metadata(png_structp png, png_infop info, const PngSpec& spec) {
  if (!spec.palette.empty()) {
    std::vector<png_color> palette;
    for (std::size_t i = 0; i + 2 < spec.palette.size(); i += 3) {
      palette.push_back({spec.palette[i], spec.palette[i + 1], spec.palette[i + 2]});
    }
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  }
  if (!spec.palette_alpha.empty()) {
    png_set_tRNS(png, info, spec.palette_alpha.data(), static_cast<int>(spec.palette_alpha.size()),
                 nullptr);
  }
  if (!spec.transparent_key.empty()) {
    png_color_16 key{};
    key.gray = spec.transparent_key[0];
    if (spec.transparent_key.size() == 3) {
      key.red = spec.transparent_key[0];
      key.green = spec.transparent_key[1];
      key.blue = spec.transparent_key[2];
    }
    png_set_tRNS(png, info, nullptr, 0, &key);
  }
}

void write_exif_chunk(png_structp png, const FileBytes& block) {
  png_write_chunk(png, reinterpret_cast<png_const_bytep>("eXIf"),
                  reinterpret_cast<png_const_bytep>(block.data()), block.size());
}

}  // namespace

Image pattern_image(int width, int height) {
  Image image{width, height, {}};
  for (std::uint32_t y = 0; y < static_cast<std::uint32_t>(height); ++y) {
    for (std::uint32_t x = 0; x < static_cast<std::uint32_t>(width); ++x) {
      for (std::uint32_t c = 0; c < 3; ++c) {
        std::uint32_t h = (x * 73856093u) ^ (y * 19349663u) ^ (c * 83492791u);
        h = (h ^ (h >> 13)) * 0x5bd1e995u;
        h ^= h >> 15;
        const bool noisy = ((x / 8 + y / 8) & 1u) == 1;
        image.rgb.push_back(static_cast<std::uint8_t>(noisy ? h : 3 * x + 5 * y + 40 * c));
      }
    }
  }
  return image;
}

std::uint64_t fnv1a(std::span<const std::uint8_t> bytes) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : bytes) value = (value ^ byte) * 0x100000001b3u;
  return value;
}

FileBytes testdata_file(std::string_view name) {
  const auto text =
      read_file(std::string(GAPLESS_SOURCE_DIR "/src/image/testdata/").append(name), 1u << 20);
  FileBytes bytes;
  append(bytes, text.value());
  return bytes;
}

FileBytes exif_block(int orientation, bool big_endian, int type) {
  FileBytes block;
  const auto number = [&](int value, int num_bytes) {
    const auto bits = static_cast<std::uint32_t>(value);
    big_endian ? append_big_endian(block, bits, num_bytes)
               : append_little_endian(block, bits, num_bytes);
  };
  append(block, big_endian ? "MM" : "II");
  number(42, 2);
  number(8, 4);       // the first directory
  number(2, 2);       // its entries
  number(0x0100, 2);  // an entry before the one that counts: image width
  number(4, 2);
  number(1, 4);
  number(6, 4);
  number(0x0112, 2);
  number(type, 2);
  number(1, 4);
  number(orientation, type == 3 ? 2 : 4);
  if (type == 3) number(0, 2);
  number(0, 4);  // no next directory
  return block;
}

FileBytes make_jpeg(int width, int height, std::span<const std::uint8_t> samples,
                    const JpegSpec& spec) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long out_bytes = 0;
  jpeg_mem_dest(&info, &out, &out_bytes);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = spec.num_components;
  info.in_color_space = spec.num_components == 1   ? JCS_GRAYSCALE
                        : spec.num_components == 3 ? JCS_RGB
                                                   : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (spec.ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  jpeg_set_quality(&info, spec.quality, TRUE);
  info.arith_code = spec.arithmetic ? TRUE : FALSE;
  if (spec.num_components == 3) {
    info.comp_info[0].h_samp_factor = spec.luma_columns;
    info.comp_info[0].v_samp_factor = spec.luma_rows;
  }
  info.restart_in_rows = spec.restart_rows;
  const auto scans = refining_scans(spec.num_refined_scans);
  if (spec.num_refined_scans > 0) {
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = area(width, spec.num_components);
  GAPLESS_CHECK(samples.size() == row_bytes * static_cast<std::size_t>(height));
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(samples.data() + y * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(out);
  FileBytes file(begin, begin + out_bytes);
  std::free(out);
  return file;
}

FileBytes with_jpeg_exif(const FileBytes& jpeg, const FileBytes& block) {
  FileBytes file(jpeg.begin(), jpeg.begin() + 2);
  append_big_endian(file, 0xffe1, 2);
  append_big_endian(file, static_cast<std::uint32_t>(block.size() + 8), 2);
  append(file, std::string_view("Exif\0\0", 6));
  append(file, block);
  file.insert(file.end(), jpeg.begin() + 2, jpeg.end());
  return file;
}

FileBytes make_png(int width, int height, std::span<const std::uint8_t> rows, const PngSpec& spec) {
  FileBytes file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(png, &file, append_png_bytes, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               spec.bit_depth, spec.colour_type,
               spec.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  write_png_metadata(png, info, spec);
  png_write_info(png, info);
  if (!spec.exif.empty() && !spec.exif_after_pixels) write_exif_chunk(png, spec.exif);
  const std::size_t row_bytes = png_get_rowbytes(png, info);
  GAPLESS_CHECK(rows.size() == row_bytes * static_cast<std::size_t>(height));
  std::vector<png_bytep> row_pointers;
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    row_pointers.push_back(const_cast<png_bytep>(rows.data() + y * row_bytes));
  }
  png_write_image(png, row_pointers.data());
  if (!spec.exif.empty() && spec.exif_after_pixels) write_exif_chunk(png, spec.exif);
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

FileBytes lossless_webp_header_only(std::uint32_t width, std::uint32_t height) {
  FileBytes payload;
  append_little_endian(payload, 0x2f, 1);
  // 14 bits each, no transparency.
  append_little_endian(payload, (width - 1) | (height - 1) << 14, 4);
  append_little_endian(payload, 0, 4);
  FileBytes chunk;
  append_riff_chunk(chunk, "VP8L", payload);
  return riff(chunk);
}

FileBytes png_header_only(std::uint32_t width, std::uint32_t height) {
  FileBytes file;
  append(file, "\x89PNG\r\n\x1a\n");
  append_big_endian(file, 13, 4);
  append(file, "IHDR");
  append_big_endian(file, width, 4);
  append_big_endian(file, height, 4);
  for (const int value : {8, 2, 0, 0, 0})
    append_big_endian(file, static_cast<std::uint32_t>(value), 1);
  append_big_endian(file, 0, 4);  // a wrong CRC: bounds come before it is looked at
  append_big_endian(file, 0, 4);
  append(file, "IEND\xae\x42\x60\x82");
  return file;
}

namespace {

using GifColours = std::unique_ptr<ColorMapObject, decltype(&GifFreeMapObject)>;

GifColours gif_colours(std::span<const std::uint8_t> rgb) {
  if (rgb.empty()) return {nullptr, GifFreeMapObject};
  std::vector<GifColorType> colours;
  for (std::size_t i = 0; i < rgb.size(); i += 3) {
    colours.push_back({rgb[i], rgb[i + 1], rgb[i + 2]});
  }
  return {GifMakeMapObject(static_cast<int>(colours.size()), colours.data()), GifFreeMapObject};
}

int append_to_file(GifFileType* gif, const GifByteType* bytes, int size) {
  auto& file = *static_cast<FileBytes*>(gif->UserData);
  const auto* begin = reinterpret_cast<const std::byte*>(bytes);
  file.insert(file.end(), begin, begin + size);
  return size;
}

void put_gif_picture(GifFileType* gif, int width, int height, std::span<const std::uint8_t> indices,
                     const GifSpec& spec) {
  const GifColours local = gif_colours(spec.local_palette);
  GAPLESS_CHECK(EGifPutImageDesc(gif, spec.left, spec.top, width, height, spec.interlaced,
                                 local.get()) == GIF_OK);
  // The encoder takes rows in the order in which they are stored.
  const int firsts[] = {0, 4, 2, 1}, steps[] = {8, 8, 4, 2};
  for (int pass = 0; pass < (spec.interlaced ? 4 : 1); ++pass) {
    const int step = spec.interlaced ? steps[pass] : 1;
    for (int y = spec.interlaced ? firsts[pass] : 0; y < height; y += step) {
      std::vector<GifPixelType> row(indices.begin() + y * width, indices.begin() + (y + 1) * width);
      GAPLESS_CHECK(EGifPutLine(gif, row.data(), width) == GIF_OK);
    }
  }
}

}  // namespace

FileBytes make_gif(int width, int height, std::span<const std::uint8_t> indices,
                   const GifSpec& spec) {
  GAPLESS_CHECK(indices.size() == area(width, height));
  FileBytes file;
  int error = 0;
  GifFileType* const gif = EGifOpen(&file, append_to_file, &error);
  GAPLESS_CHECK(gif != nullptr);
  EGifSetGifVersion(gif, true);
  const GifColours colours = gif_colours(spec.palette);
  const int canvas_width = spec.canvas_width > 0 ? spec.canvas_width : width;
  const int canvas_height = spec.canvas_height > 0 ? spec.canvas_height : height;
  GAPLESS_CHECK(EGifPutScreenDesc(gif, canvas_width, canvas_height, 8, 0, colours.get()) == GIF_OK);
  if (spec.comment) GAPLESS_CHECK(EGifPutComment(gif, std::string(600, 'c').c_str()) == GIF_OK);
  if (spec.transparent >= 0) {
    const GifByteType control[] = {1, 0, 0, static_cast<GifByteType>(spec.transparent)};
    GAPLESS_CHECK(EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, 4, control) == GIF_OK);
  }
  put_gif_picture(gif, width, height, indices, spec);
  if (!spec.second_picture.empty()) {
    put_gif_picture(gif, width, height, spec.second_picture, spec);
  }
  GAPLESS_CHECK(EGifCloseFile(gif, &error) == GIF_OK);
  return file;
}

FileBytes make_webp(int width, int height, std::span<const std::uint8_t> samples, int channels) {
  GAPLESS_CHECK(samples.size() == area(width, height) * static_cast<std::size_t>(channels));
  std::uint8_t* out = nullptr;
  const std::size_t out_bytes =
      channels == 4 ? WebPEncodeLosslessRGBA(samples.data(), width, height, 4 * width, &out)
                    : WebPEncodeLosslessRGB(samples.data(), width, height, 3 * width, &out);
  const auto* begin = reinterpret_cast<const std::byte*>(out);
  FileBytes file(begin, begin + out_bytes);
  WebPFree(out);
  return file;
}

FileBytes make_lossy_webp(int width, int height, std::span<const std::uint8_t> rgb, float quality) {
  GAPLESS_CHECK(rgb.size() == area(width, height) * 3);
  std::uint8_t* out = nullptr;
  const std::size_t out_bytes = WebPEncodeRGB(rgb.data(), width, height, 3 * width, quality, &out);
  const auto* begin = reinterpret_cast<const std::byte*>(out);
  FileBytes file(begin, begin + out_bytes);
  WebPFree(out);
  return file;
}

FileBytes with_webp_exif(const FileBytes& webp, int width, int height, const FileBytes& block) {
  constexpr std::uint32_t kHasExif = 0x08;
  FileBytes chunks;
  append_riff_chunk(chunks, "VP8X", vp8x_payload(kHasExif, width, height));
  append(chunks, chunks_of(webp));
  append_riff_chunk(chunks, "EXIF", block);
  return riff(chunks);
}

FileBytes webp_animation(const FileBytes& frame, int width, int height, int x, int y,
                         int canvas_width, int canvas_height) {
  constexpr std::uint32_t kAnimatedWithAlpha = 0x12;
  FileBytes chunks;
  append_riff_chunk(chunks, "VP8X", vp8x_payload(kAnimatedWithAlpha, canvas_width, canvas_height));
  append_riff_chunk(chunks, "ANIM", FileBytes(6));
  FileBytes payload;
  append_little_endian(payload, static_cast<std::uint32_t>(x / 2), 3);
  append_little_endian(payload, static_cast<std::uint32_t>(y / 2), 3);
  append_little_endian(payload, static_cast<std::uint32_t>(width - 1), 3);
  append_little_endian(payload, static_cast<std::uint32_t>(height - 1), 3);
  append_little_endian(payload, 100, 3);  // milliseconds
  append_little_endian(payload, 0, 1);
  append(payload, chunks_of(frame));
  append_riff_chunk(chunks, "ANMF", payload);
  return riff(chunks);
}

Image stored_for(const Image& upright, int orientation) {
  enum Side { kTop, kRight, kBottom, kLeft };
  struct Edges {
    Side row0, col0;
  };
  static constexpr std::array<Edges, 8> kEdges = {{{kTop, kLeft},
                                                   {kTop, kRight},
                                                   {kBottom, kRight},
                                                   {kBottom, kLeft},
                                                   {kLeft, kTop},
                                                   {kRight, kTop},
                                                   {kRight, kBottom},
                                                   {kLeft, kBottom}}};
  const Edges edges = kEdges.at(static_cast<std::size_t>(orientation - 1));
  const bool turned = edges.row0 == kLeft || edges.row0 == kRight;
  const int w = upright.width;
  const int h = upright.height;
  Image stored{turned ? h : w, turned ? w : h, {}};
  for (int row = 0; row < stored.height; ++row) {
    for (int col = 0; col < stored.width; ++col) {
      int x = 0;
      int y = 0;
      for (const auto& [side, distance] :
           {std::pair{edges.row0, row}, std::pair{edges.col0, col}}) {
        if (side == kTop) y = distance;
        if (side == kBottom) y = h - 1 - distance;
        if (side == kLeft) x = distance;
        if (side == kRight) x = w - 1 - distance;
      }
      for (int c = 0; c < 3; ++c) {
        stored.rgb.push_back(upright.rgb[static_cast<std::size_t>((y * w + x) * 3 + c)]);
      }
    }
  }
  return stored;
}

}  // namespace gapless::testing
