// libpng reports errors by longjmp. The functions that it may jump out of (those with setjmp) hold
// no object with a destructor; everything that owns something lives in their caller.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "image/codecs.h"

namespace gapless::internal {
namespace {

// Deflate cannot expand further than this (258 bytes from two bits).
constexpr std::size_t kMaxDeflateRatio = 1032;

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::byte* data = nullptr;
  std::size_t num_bytes = 0;
  std::size_t position = 0;
  int num_passes = 1;  // 7 when it is interlaced
  const StopCheck* stop = nullptr;
  bool stopped = false;
  bool is_truncated = false;
  char message[128] = "";

  PngReader() = default;
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader->message, sizeof(reader->message), "%s", message);
  png_longjmp(png, 1);
}

// Warnings are about metadata and odd but readable files.
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (reader->num_bytes - reader->position < count) {
    reader->is_truncated = true;
    png_error(png, "truncated");
  }
  std::memcpy(to, reader->data + reader->position, count);
  reader->position += count;
}

// Reads the header and asks for 8-bit RGB whatever the file holds.
bool start(PngReader& reader) {
  png_structp png = reader.png;
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_read_fn(png, &reader, read_bytes);
  png_set_user_limits(png, kMaxImageSide, kMaxImageSide);
  png_set_chunk_malloc_max(png, kMaxPngChunkBytes);
  // Of the metadata only tRNS matters here; text and profiles are skipped, not inflated.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, reader.info);
  png_set_expand(png);    // palette and small greys to 8 bits, tRNS to alpha
  png_set_strip_16(png);  // the high byte of 16-bit samples
  png_set_strip_alpha(png);
  png_set_gray_to_rgb(png);
  reader.num_passes = png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);
  return true;
}

bool read_rows(PngReader& reader, std::uint8_t* to, std::size_t row_bytes, int num_rows) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  for (int i = 0; i < num_rows; ++i) {
    reader.stopped = is_stopped(*reader.stop);
    if (reader.stopped) return false;
    png_read_row(reader.png, to + static_cast<std::size_t>(i) * row_bytes, nullptr);
  }
  return true;
}

bool finish(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png))) return false;
  png_read_end(reader.png, nullptr);
  return true;
}

Status failed(const PngReader& reader) {
  if (reader.stopped) return stopped_status();
  if (reader.is_truncated) return data_loss("PNG: truncated after {} bytes", reader.num_bytes);
  return data_loss("PNG: {}", reader.message);
}

}  // namespace

Status decode_png(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                  int rows_kept, const StopCheck& stop, Raster& raster) {
  PngReader reader;
  reader.stop = &stop;
  reader.data = bytes.data();
  reader.num_bytes = bytes.size();
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) {
    return make_error(StatusCode::kInternal, "PNG: the decoder cannot start: {}", reader.message);
  }
  const png_byte* header = reinterpret_cast<const png_byte*>(bytes.data());
  const auto height = static_cast<std::size_t>(info.height);
  // The fewest bytes that the packed samples of this header can be squeezed into.
  constexpr std::size_t kBitDepthAt = 24;
  const std::size_t least_raster_bytes =
      static_cast<std::size_t>(info.width) * header[kBitDepthAt] / 8 * height;
  if (least_raster_bytes / kMaxDeflateRatio > bytes.size()) {
    return data_loss("PNG: truncated: {} bytes cannot hold {}x{} pixels", bytes.size(), info.width,
                     info.height);
  }
  if (!start(reader)) return failed(reader);

  raster = {info.width, info.height, 3, rows_kept, {}};
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  if (png_get_image_width(reader.png, reader.info) != static_cast<png_uint_32>(info.width) ||
      png_get_image_height(reader.png, reader.info) != static_cast<png_uint_32>(info.height) ||
      row_bytes != raster.row_bytes()) {
    return make_error(StatusCode::kInternal, "PNG: unexpected raster layout");
  }
  raster.reserve();
  const bool tells_rows = on_rows && reader.num_passes == 1;
  for (int pass = 0; pass < reader.num_passes; ++pass) {
    for (int y = 0; y < info.height; y += kStripRows) {
      const int num_rows = std::min(kStripRows, info.height - y);
      if (!read_rows(reader, raster.rows_at(y, num_rows), row_bytes, num_rows)) {
        return failed(reader);
      }
      if (tells_rows) on_rows(raster.pixels.data(), y + num_rows);
    }
  }
  if (!finish(reader)) return failed(reader);
  return ok_status();
}

}  // namespace gapless::internal
