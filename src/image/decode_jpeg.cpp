// libjpeg reports errors by longjmp. The functions that it may jump out of (those with setjmp) hold
// no object with a destructor; everything that owns something lives in their caller.
#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <optional>
#include <utility>

// jpeglib.h needs stdio before it, jerror.h needs jpeglib.h.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "image/codecs.h"
#include "image/row_bands.h"

namespace gapless::internal {
namespace {

// Pictures that helpers are worth their start for, and whose whole raster may be touched on the word of
// their header.
constexpr std::int64_t kMinBandedPixels = 1 << 17;
constexpr std::int64_t kMaxBandedPixels = 1 << 24;

// The coefficients of one component of a picture in several scans, which libjpeg holds all at once.
struct Coefficients {
  jvirt_barray_ptr blocks = nullptr;  // nullptr: there are none, or their memory has been seen
  std::size_t num_bytes = 0;
};

struct JpegReader {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX] = "";
  const StopCheck* stop = nullptr;
  bool created = false;
  bool stopped = false;
  // libjpeg's own, which are called by those that take their places.
  decltype(jpeg_memory_mgr::request_virt_barray) request_blocks = nullptr;
  decltype(jpeg_memory_mgr::access_virt_barray) access_blocks = nullptr;
  Coefficients coefficients[MAX_COMPONENTS];

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

// libjpeg takes the memory of coefficients by malloc and says where it is when it begins to fill it: in time for huge
// pages, of which a cancelled picture's hundreds of megabytes are given back sooner.
jvirt_barray_ptr request_coefficients(j_common_ptr info, int pool_id, boolean pre_zero,
                                      JDIMENSION blocks_per_row, JDIMENSION num_rows,
                                      JDIMENSION max_access) {
  JpegReader& reader = reader_of(info);
  const jvirt_barray_ptr blocks =
      reader.request_blocks(info, pool_id, pre_zero, blocks_per_row, num_rows, max_access);
  for (Coefficients& free : reader.coefficients) {
    if (free.blocks != nullptr) continue;
    free = {blocks, sizeof(JBLOCK) * blocks_per_row * num_rows};
    break;
  }
  return blocks;
}

JBLOCKARRAY access_coefficients(j_common_ptr info, jvirt_barray_ptr blocks, JDIMENSION first_row,
                                JDIMENSION num_rows, boolean writable) {
  JpegReader& reader = reader_of(info);
  const JBLOCKARRAY rows = reader.access_blocks(info, blocks, first_row, num_rows, writable);
  for (Coefficients& mine : reader.coefficients) {
    if (mine.blocks != blocks || first_row != 0) continue;
    prefer_huge_pages(rows[0], mine.num_bytes);
    mine.blocks = nullptr;
  }
  return rows;
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
  jpeg_memory_mgr& memory = *reader.info.mem;
  memory.max_memory_to_use = kMaxJpegWorkBytes;
  reader.request_blocks = std::exchange(memory.request_virt_barray, request_coefficients);
  reader.access_blocks = std::exchange(memory.access_virt_barray, access_coefficients);
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

// Past rows that another thread decodes: their bits are read, their pixels are not made.
bool skip_rows(JpegReader& reader, int num_rows) {
  if (setjmp(reader.on_error)) return false;
  jpeg_skip_scanlines(&reader.info, static_cast<JDIMENSION>(num_rows));
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

// Ready to read rows.
Status open(JpegReader& reader, std::span<const std::byte> bytes, const ImageInfo& info,
            const StopCheck& stop) {
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
  reader.info.out_color_space = num_components == 4 ? JCS_CMYK : JCS_RGB;
  return start(reader) ? ok_status() : failed(reader);
}

// Decodes bands as long as there are some, going past those of others.
void decode_bands(JpegReader& reader, RowBands& bands, std::size_t row_bytes, std::uint8_t* rgb) {
  int row = 0;
  while (const std::optional<int> band = bands.claim()) {
    if (const int others = bands.first_row(*band) - row; others > 0 && !skip_rows(reader, others)) {
      return bands.fail(*band, failed(reader));
    }
    for (row = bands.first_row(*band); row < bands.end_row(*band);) {
      if (bands.failed()) return;
      const int count = std::min(kStripRows, bands.end_row(*band) - row);
      std::uint8_t* const to = rgb + static_cast<std::size_t>(row) * row_bytes;
      if (!read_rows(reader, to, row_bytes, count)) return bands.fail(*band, failed(reader));
      row += count;
      // The last rows count when the file's end has been seen.
      if (row == bands.end_row(*band) && bands.is_last(*band) && !finish(reader)) {
        return bands.fail(*band, failed(reader));
      }
      bands.publish(*band, row);
    }
  }
}

Status decode_with_helpers(JpegReader& reader, std::span<const std::byte> bytes,
                           const ImageInfo& info, const OnRows& on_rows, const StopCheck& stop,
                           DecodeHelpers& helpers, Raster& raster) {
  const std::size_t row_bytes = static_cast<std::size_t>(info.width) * 3;
  const std::size_t num_bytes = row_bytes * static_cast<std::size_t>(info.height);
  raster.reserve();
  raster.pixels.resize(num_bytes);
  std::uint8_t* const rgb = raster.pixels.data();
  RowBands bands(info.height, helpers.count() + 1, kStripRows, rgb, on_rows);
  const std::function<void()> work = [&] {
    JpegReader own;
    // The first reader got as far with the same bytes.
    if (open(own, bytes, info, stop).ok()) decode_bands(own, bands, row_bytes, rgb);
  };
  helpers.offer(work);
  decode_bands(reader, bands, row_bytes, rgb);
  helpers.close();
  return bands.status();
}

}  // namespace

bool jpeg_decodes_in_bands(const ImageInfo& info, const DecodeHelpers* helpers) {
  const std::int64_t num_pixels = std::int64_t{info.width} * info.height;
  return helpers != nullptr && helpers->count() > 0 && info.format == ImageFormat::kJpeg &&
         info.codec_bytes == 0 && num_pixels >= kMinBandedPixels && num_pixels <= kMaxBandedPixels;
}

Status decode_jpeg(std::span<const std::byte> bytes, const ImageInfo& info, const OnRows& on_rows,
                   int rows_kept, const StopCheck& stop, DecodeHelpers* helpers, Raster& raster) {
  JpegReader reader;
  GAPLESS_RETURN_IF_ERROR(open(reader, bytes, info, stop));
  const auto width = static_cast<std::size_t>(info.width);
  raster = {info.width, info.height, 3, rows_kept, {}};
  const bool is_cmyk = reader.info.num_components == 4;
  if (jpeg_decodes_in_bands(info, helpers) && !is_cmyk) {
    return decode_with_helpers(reader, bytes, info, on_rows, stop, *helpers, raster);
  }
  if (helpers != nullptr) helpers->close();
  raster.reserve();
  std::vector<std::uint8_t> cmyk_strip(is_cmyk ? width * 4 * kStripRows : 0);
  for (int y = 0; y < info.height; y += kStripRows) {
    const int num_rows = std::min(kStripRows, info.height - y);
    const std::size_t num_pixels = width * static_cast<std::size_t>(num_rows);
    std::uint8_t* const rgb = raster.rows_at(y, num_rows);
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
