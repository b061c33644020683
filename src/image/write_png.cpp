// libpng reports errors by longjmp: write_all, which it may jump out of, holds no object with a
// destructor.
#include "image/write_png.h"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <new>

#include "base/file_bytes.h"

namespace gapless {
namespace {

struct PngWriter {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::vector<std::byte> bytes;
  char message[128] = "";

  PngWriter() = default;
  PngWriter(const PngWriter&) = delete;
  PngWriter& operator=(const PngWriter&) = delete;
  ~PngWriter() { png_destroy_write_struct(&png, &info); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* writer = static_cast<PngWriter*>(png_get_error_ptr(png));
  std::snprintf(writer->message, sizeof(writer->message), "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

bool append(std::vector<std::byte>& bytes, const std::byte* from, std::size_t count) {
  try {
    bytes.insert(bytes.end(), from, from + count);
    return true;
  } catch (const std::bad_alloc&) {
    return false;  // an exception must not pass through libpng
  }
}

void write_bytes(png_structp png, png_bytep from, std::size_t count) {
  auto* writer = static_cast<PngWriter*>(png_get_io_ptr(png));
  if (!append(writer->bytes, reinterpret_cast<const std::byte*>(from), count)) {
    png_error(png, "no memory");
  }
}

bool write_all(PngWriter& writer, const Image& image) {
  png_structp png = writer.png;
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_write_fn(png, &writer, write_bytes, nullptr);
  png_set_IHDR(png, writer.info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, writer.info);
  const std::size_t row_bytes = static_cast<std::size_t>(image.width) * 3;
  for (int y = 0; y < image.height; ++y) {
    png_write_row(png, image.rgb.data() + static_cast<std::size_t>(y) * row_bytes);
  }
  png_write_end(png, writer.info);
  return true;
}

}  // namespace

StatusOr<std::vector<std::byte>> encode_png(const Image& image) {
  if (image.width < 1 || image.height < 1) {
    return invalid_argument("a PNG of {}x{} cannot be written", image.width, image.height);
  }
  PngWriter writer;
  writer.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &writer, on_error, on_warning);
  if (writer.png != nullptr) writer.info = png_create_info_struct(writer.png);
  if (writer.info == nullptr || !write_all(writer, image)) {
    return make_error(StatusCode::kInternal, "writing a PNG: {}", writer.message);
  }
  return std::move(writer.bytes);
}

Status write_png(const std::filesystem::path& path, const Image& image) {
  const auto bytes = encode_png(image);
  if (!bytes.ok()) return bytes.status().with_context(path.string());
  return write_file(path, *bytes);
}

}  // namespace gapless
