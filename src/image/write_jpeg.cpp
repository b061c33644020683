// libjpeg reports errors by longjmp: write_all, which it may jump out of, holds no object with a
// destructor.
#include "image/write_jpeg.h"

#include <csetjmp>
#include <cstdlib>

// jpeglib.h needs stdio before it.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on

namespace gapless {
namespace {

struct JpegWriter {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX] = "";
  unsigned char* bytes = nullptr;
  unsigned long num_bytes = 0;
  bool created = false;

  JpegWriter() = default;
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;
  ~JpegWriter() {
    if (created) jpeg_destroy_compress(&info);
    std::free(bytes);
  }
};

[[noreturn]] void jump_with_message(j_common_ptr info) {
  auto* writer = static_cast<JpegWriter*>(info->client_data);
  info->err->format_message(info, writer->message);
  std::longjmp(writer->on_error, 1);
}

bool write_all(JpegWriter& writer, const Image& image, int quality) {
  jpeg_compress_struct& info = writer.info;
  info.err = jpeg_std_error(&writer.errors);
  writer.errors.error_exit = jump_with_message;
  info.client_data = &writer;
  if (setjmp(writer.on_error)) return false;
  jpeg_create_compress(&info);
  writer.created = true;
  jpeg_mem_dest(&info, &writer.bytes, &writer.num_bytes);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = static_cast<std::size_t>(image.width) * 3;
  while (info.next_scanline < info.image_height) {
    // libjpeg only reads it.
    JSAMPROW row = const_cast<JSAMPROW>(image.rgb.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

StatusOr<std::vector<std::byte>> encode_jpeg(const Image& image, int quality) {
  if (image.width < 1 || image.height < 1) {
    return invalid_argument("a JPEG of {}x{} cannot be written", image.width, image.height);
  }
  JpegWriter writer;
  if (!write_all(writer, image, quality)) {
    return make_error(StatusCode::kInternal, "writing a JPEG: {}", writer.message);
  }
  const auto* const begin = reinterpret_cast<const std::byte*>(writer.bytes);
  return std::vector<std::byte>(begin, begin + writer.num_bytes);
}

}  // namespace gapless
