#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "image/codecs.h"
#include "image/raster_memory.h"

namespace gapless::internal {
namespace {

constexpr int kGraphicsControl = 0xF9;
constexpr std::size_t kGraphicsControlBytes = 4;
// Where the four passes of an interlaced picture begin, and their steps.
constexpr std::array<std::pair<int, int>, 4> kPasses = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};

struct Input {
  std::span<const std::byte> bytes;
  std::size_t at = 0;
};

// The library's callback: as many as there are.
int read_bytes(GifFileType* file, GifByteType* to, int size) {
  Input& input = *static_cast<Input*>(file->UserData);
  const std::size_t count = std::min(static_cast<std::size_t>(size), input.bytes.size() - input.at);
  std::memcpy(to, input.bytes.data() + input.at, count);
  input.at += count;
  return static_cast<int>(count);
}

struct Close {
  void operator()(GifFileType* file) const { DGifCloseFile(file, nullptr); }
};
using GifFile = std::unique_ptr<GifFileType, Close>;

Status broken(const GifFileType& file) {
  const char* const why = GifErrorString(file.Error);
  return data_loss("GIF: {}", why == nullptr ? "broken" : why);
}

// RGB of every index that a pixel may have. A palette may be missing or shorter than its pixels'
// range; what it does not have is grey, as in Pillow.
using Palette = std::array<std::array<std::uint8_t, 3>, 256>;

Palette palette_of(const GifFileType& file) {
  Palette palette{};
  for (std::size_t i = 0; i < palette.size(); ++i) palette[i].fill(static_cast<std::uint8_t>(i));
  const ColorMapObject* const map =
      file.Image.ColorMap != nullptr ? file.Image.ColorMap : file.SColorMap;
  if (map == nullptr) return palette;
  for (int i = 0; i < std::min(map->ColorCount, 256); ++i) {
    const GifColorType& colour = map->Colors[i];
    palette[static_cast<std::size_t>(i)] = {colour.Red, colour.Green, colour.Blue};
  }
  return palette;
}

// Reads up to the first picture's pixels. `background` becomes the index of what it leaves free.
Status find_first_picture(GifFileType& file, int& background) {
  while (true) {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(&file, &type) != GIF_OK) return broken(file);
    if (type == IMAGE_DESC_RECORD_TYPE) {
      return DGifGetImageDesc(&file) == GIF_OK ? ok_status() : broken(file);
    }
    if (type == TERMINATE_RECORD_TYPE) return data_loss("GIF: has no picture");
    if (type != EXTENSION_RECORD_TYPE) continue;
    int label = 0;
    GifByteType* block = nullptr;  // its length, then its bytes
    if (DGifGetExtension(&file, &label, &block) != GIF_OK) return broken(file);
    GraphicsControlBlock control{};
    if (label == kGraphicsControl && block != nullptr && block[0] == kGraphicsControlBytes &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK &&
        control.TransparentColor != NO_TRANSPARENT_COLOR) {
      background = control.TransparentColor;
    }
    while (block != nullptr) {
      if (DGifGetExtensionNext(&file, &block) != GIF_OK) return broken(file);
    }
  }
}

// The rows of the picture in the order in which they are stored.
std::vector<int> stored_rows(int height, bool interlaced) {
  std::vector<int> rows;
  rows.reserve(static_cast<std::size_t>(height));
  if (!interlaced) {
    for (int y = 0; y < height; ++y) rows.push_back(y);
    return rows;
  }
  for (const auto& [first, step] : kPasses) {
    for (int y = first; y < height; y += step) rows.push_back(y);
  }
  return rows;
}

}  // namespace

// What Pillow's convert("RGB") makes of the first picture: transparent pixels in their stored colour,
// and what the picture leaves free of the canvas in the transparent colour, or in colour 0.
StatusOr<Raster> decode_gif(std::span<const std::byte> bytes, const ImageInfo& info,
                            const StopCheck& stop) {
  Input input{bytes};
  int error = 0;
  const GifFile file(DGifOpen(&input, read_bytes, &error));
  if (file == nullptr) {
    const char* const why = GifErrorString(error);
    return data_loss("GIF: {}", why == nullptr ? "broken header" : why);
  }
  int background = 0;
  GAPLESS_RETURN_IF_ERROR(find_first_picture(*file, background));
  const GifImageDesc& picture = file->Image;
  if (picture.Left < 0 || picture.Top < 0 || picture.Width < 1 || picture.Height < 1 ||
      picture.Width > info.width - picture.Left || picture.Height > info.height - picture.Top) {
    return data_loss("GIF: the first picture lies outside the canvas");
  }
  const Palette palette = palette_of(*file);
  const auto& free_colour = palette[static_cast<std::size_t>(background & 0xFF)];
  Raster raster{info.width, info.height, 3, {}};
  const std::size_t row_bytes = static_cast<std::size_t>(info.width) * 3;
  reserve_raster(raster.pixels, row_bytes * static_cast<std::size_t>(info.height));
  std::vector<std::uint8_t> free_row;
  free_row.reserve(row_bytes);
  for (int x = 0; x < info.width; ++x) {
    free_row.insert(free_row.end(), free_colour.begin(), free_colour.end());
  }
  for (int y = 0; y < info.height; ++y) {
    if (is_stopped(stop)) return stopped_status();
    raster.pixels.insert(raster.pixels.end(), free_row.begin(), free_row.end());
  }
  std::vector<GifPixelType> indices(static_cast<std::size_t>(picture.Width));
  for (const int y : stored_rows(picture.Height, picture.Interlace)) {
    if (is_stopped(stop)) return stopped_status();
    if (DGifGetLine(file.get(), indices.data(), picture.Width) != GIF_OK) return broken(*file);
    std::uint8_t* to = raster.pixels.data() +
                       static_cast<std::size_t>(picture.Top + y) * row_bytes +
                       static_cast<std::size_t>(picture.Left) * 3;
    for (const GifPixelType index : indices) to = std::copy_n(palette[index].begin(), 3, to);
  }
  return raster;
}

}  // namespace gapless::internal
