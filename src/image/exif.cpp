#include "image/exif.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "image/raster_memory.h"

namespace gapless {
namespace {

constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint32_t kTypeShort = 3;
constexpr std::size_t kEntryBytes = 12;

// Bounds-checked integers in the block's own byte order; 0 beyond the end.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> block, bool big_endian)
      : block_(block), big_endian_(big_endian) {}

  std::uint32_t u16(std::size_t at) const { return read(at, 2); }
  std::uint32_t u32(std::size_t at) const { return read(at, 4); }
  std::size_t size() const { return block_.size(); }

 private:
  std::uint32_t read(std::size_t at, std::size_t count) const {
    if (at > block_.size() || block_.size() - at < count) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t from = big_endian_ ? at + i : at + count - 1 - i;
      value = (value << 8) | std::to_integer<std::uint32_t>(block_[from]);
    }
    return value;
  }

  std::span<const std::byte> block_;
  bool big_endian_;
};

bool starts_with(std::span<const std::byte> block, std::string_view lead) {
  return block.size() >= lead.size() && std::memcmp(block.data(), lead.data(), lead.size()) == 0;
}

}  // namespace

int exif_orientation(std::span<const std::byte> block) {
  using std::string_view_literals::operator""sv;
  if (starts_with(block, "Exif\0\0"sv)) block = block.subspan(6);
  const bool big_endian = starts_with(block, "MM\0*"sv);
  if (!big_endian && !starts_with(block, "II*\0"sv)) return 1;

  const TiffReader tiff(block, big_endian);
  const std::size_t directory = tiff.u32(4);
  const std::size_t num_entries = tiff.u16(directory);
  for (std::size_t i = 0; i < num_entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (entry + kEntryBytes > tiff.size()) break;
    if (tiff.u16(entry) != kOrientationTag) continue;
    const std::uint32_t type = tiff.u16(entry + 2);
    // A SHORT by the standard; some writers make it a LONG.
    const std::uint32_t value = type == kTypeShort ? tiff.u16(entry + 8) : tiff.u32(entry + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

StatusOr<Image> apply_orientation(Image stored, int orientation, const StopCheck& stop) {
  GAPLESS_CHECK(orientation >= 1 && orientation <= 8);
  if (orientation == 1) return stored;
  const GivesBackPages<std::uint8_t> gives_back(stored.rgb);

  // Upright pixel (x, y) is the stored pixel at origin + x * step_x + y * step_y (in pixels).
  const std::ptrdiff_t w = stored.width;
  const std::ptrdiff_t h = stored.height;
  const bool swaps_sides = orientation >= 5;
  // Whether the upright picture's first pixel lies at the stored right edge, and at the stored
  // bottom edge.
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::ptrdiff_t step_column = from_right ? -1 : 1;
  const std::ptrdiff_t step_row = from_bottom ? -w : w;
  const std::ptrdiff_t origin = (from_right ? w - 1 : 0) + (from_bottom ? (h - 1) * w : 0);
  const std::ptrdiff_t step_x = swaps_sides ? step_row : step_column;
  const std::ptrdiff_t step_y = swaps_sides ? step_column : step_row;

  Image upright{stored.width, stored.height, {}};
  if (swaps_sides) std::swap(upright.width, upright.height);
  reserve_raster(upright.rgb, stored.rgb.size());
  const std::size_t row_bytes = static_cast<std::size_t>(upright.width) * 3;
  // Square blocks, so that the strided side of a turn stays in the cache.
  constexpr int kBlock = 64;
  for (int block_y = 0; block_y < upright.height; block_y += kBlock) {
    const int end_y = std::min(block_y + kBlock, upright.height);
    if (is_stopped(stop)) return stopped_status();
    upright.rgb.resize(static_cast<std::size_t>(end_y) * row_bytes);
    for (int block_x = 0; block_x < upright.width; block_x += kBlock) {
      const int end_x = std::min(block_x + kBlock, upright.width);
      for (int y = block_y; y < end_y; ++y) {
        std::uint8_t* to =
            upright.rgb.data() + (static_cast<std::ptrdiff_t>(y) * upright.width + block_x) * 3;
        const std::uint8_t* row = stored.rgb.data() + (origin + y * step_y) * 3;
        for (int x = block_x; x < end_x; ++x, to += 3) std::memcpy(to, row + x * step_x * 3, 3);
      }
    }
  }
  return upright;
}

}  // namespace gapless
