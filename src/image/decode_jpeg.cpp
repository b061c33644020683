// libjpeg reports errors by longjmp. The functions that it may jump out of (those with setjmp) hold
// no object with a destructor; everything that owns something lives in their caller.
#include <algorithm>
#include <csetjmp>
#include <cstring>

// jpeglib.h needs stdio before it, jerror.h needs jpeglib.h.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "image/codecs.h"

namespace gapless::internal {
namespace {

// Rows decoded per call. The raster grows with them, so a header that promises a large picture
// over a few bytes of data does not touch memory for all of it.
constexpr int kStripRows = 32;

struct JpegReader {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX] = "";
  const StopCheck* stop = nullptr;
  bool created = false;
  bool stopped = false;

  JpegReader() = default;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() {
    if (created) jpeg_destroy_decompress(&info);
  }
};

JpegReader& reader_of(j_common_ptr info) {
  return *static_cast<JpegReader*>(info->client_data);
}

[[noreturn]] void jump_with_message(j_common_ptr info) {
  JpegReader& reader = reader_of(info);
  info->err->format_message(info, reader.message);
  std::longjmp(reader.on_error, 1);
}

// libjpeg only warns about damaged data and paints grey; to us the picture is lost. What it can
// get over without losing pixels (stray bytes between segments, odd version numbers) passes.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_BOGUS_PROGRESSION:
      return;
    default:
      jump_with_message(info);
  }
}

// Called for every row of blocks, also while the scans of a progressive file are collected. Each of
// them costs a pass over the whole picture, however few bytes it has.
void on_progress(j_common_ptr info) {
  JpegReader& reader = reader_of(info);
  if (is_stopped(*reader.stop)) {
    reader.stopped = true;
    std::longjmp(reader.on_error, 1);
  }
  const int scan = reinterpret_cast<j_decompress_ptr>(info)->input_scan_number;
  if (scan <= kMaxJpegScans) return;
  std::snprintf(reader.message, sizeof(reader.message), "more than %d scans", kMaxJpegScans);
  std::longjmp(reader.on_error, 1);
}

bool read_header(JpegReader& reader, const unsigned char* data, unsigned long num_bytes) {
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = jump_with_message;
  reader.errors.emit_message = on_message;
  reader.info.client_data = &reader;
  if (setjmp(reader.on_error)) return false;
  jpeg_create_decompress(&reader.info);
  reader.created = true;
  reader.progress.progress_monitor = on_progress;
  reader.info.progress = &reader.progress;
  reader.info.mem->max_memory_to_use = kMaxJpegWorkBytes;
  jpeg_mem_src(&reader.info, data, num_bytes);
  jpeg_read_header(&reader.info, TRUE);
  return true;
}

bool start(JpegReader& reader) {
  if (setjmp(reader.on_error)) return false;
  reader.info.dct_method = JDCT_ISLOW;
  reader.info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&reader.info);
  return true;
}

bool read_rows(JpegReader& reader, std::uint8_t* to, std::size_t row_bytes, int num_rows) {
  if (setjmp(reader.on_error)) return false;
  for (int i = 0; i < num_rows; ++i) {
    reader.stopped = is_stopped(*reader.stop);
    if (reader.stopped) return false;
    JSAMPROW row = to + static_cast<std::size_t>(i) * row_bytes;
    jpeg_read_scanlines(&reader.info, &row, 1);
  }
  return true;
}

// Reads on to the end marker: a file without one is truncated.
bool finish(JpegReader& reader) {
  if (setjmp(reader.on_error)) return false;
  jpeg_finish_decompress(&reader.info);
  return true;
}

// round(a * b / 255), exactly.
unsigned multiply_255(unsigned a, unsigned b) {
  const unsigned product = a * b + 128;
  return (product + (product >> 8)) >> 8;
}

// CMYK as Adobe writes it into JPEG, inverted (255 = no ink). Pillow assumes that of every
// four-component file, and so do we.
void adobe_cmyk_to_rgb(const std::uint8_t* cmyk, std::size_t num_pixels, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < num_pixels; ++i, cmyk += 4, rgb += 3) {
    const unsigned white = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned ink = 255u - cmyk[c];
      rgb[c] = static_cast<std::uint8_t>(white - multiply_255(ink, white));
    }
  }
}

Status failed(const JpegReader& reader) {
  if (reader.stopped) return stopped_status();
  switch (reader.errors.msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
      return data_loss("JPEG: truncated or corrupt: {}", reader.message);
    default:
      return data_loss("JPEG: {}", reader.message);
  }
}

}  // namespace

Status decode_jpeg(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                   const StopCheck& stop, Raster& raster) {
  JpegReader reader;
  reader.stop = &stop;
  if (!read_header(reader, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) {
    return failed(reader);
  }
  if (reader.info.image_width != static_cast<JDIMENSION>(info.width) ||
      reader.info.image_height != static_cast<JDIMENSION>(info.height)) {
    return data_loss("JPEG: more than one frame header");
  }
  const int num_components = reader.info.num_components;
  if (num_components != 1 && num_components != 3 && num_components != 4) {
    return data_loss("JPEG: {} colour components; 1, 3 and 4 are known", num_components);
  }
  const bool is_cmyk = num_components == 4;
  reader.info.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  if (!start(reader)) return failed(reader);

  const auto width = static_cast<std::size_t>(info.width);
  raster = {info.width, info.height, 3, {}};
  raster.pixels.reserve(width * static_cast<std::size_t>(info.height) * 3);
  std::vector<std::uint8_t> cmyk_strip(is_cmyk ? width * 4 * kStripRows : 0);
  for (int y = 0; y < info.height; y += kStripRows) {
    const int num_rows = std::min(kStripRows, info.height - y);
    const std::size_t num_pixels = width * static_cast<std::size_t>(num_rows);
    const std::size_t at = raster.pixels.size();
    raster.pixels.resize(at + num_pixels * 3);
    std::uint8_t* rgb = raster.pixels.data() + at;
    if (!is_cmyk) {
      if (!read_rows(reader, rgb, width * 3, num_rows)) return failed(reader);
    } else {
      if (!read_rows(reader, cmyk_strip.data(), width * 4, num_rows)) return failed(reader);
      adobe_cmyk_to_rgb(cmyk_strip.data(), num_pixels, rgb);
    }
    if (on_rows) on_rows(raster.pixels.data(), y + num_rows);
  }
  if (!finish(reader)) return failed(reader);
  return ok_status();
}

}  // namespace gapless::internal
