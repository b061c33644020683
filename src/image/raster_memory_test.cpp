#include "image/raster_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace gapless {
namespace {

// The flags of the mapping that the byte lies in, as the kernel prints them: "rd wr mr mw me ac hg".
std::string mapping_flags(const void* byte) {
  const auto address = reinterpret_cast<std::uintptr_t>(byte);
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      is_inside = begin <= address && address < end;
    } else if (is_inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

bool has_huge_pages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").is_open();
}

TEST(RasterMemoryTest, ALargeRasterLiesInHugePagesAndASmallOneDoesNot) {
  if (!has_huge_pages()) return;  // nothing to see on such a system
  std::vector<std::uint8_t> large;
  reserve_raster(large, 2 * kMinHugeRasterBytes);
  EXPECT_GE(large.capacity(), 2 * kMinHugeRasterBytes);
  const std::string flags = mapping_flags(large.data() + kMinHugeRasterBytes);
  EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;

  std::vector<std::uint8_t> small;
  reserve_raster(small, kMinHugeRasterBytes / 2);
  EXPECT_GE(small.capacity(), kMinHugeRasterBytes / 2);
  EXPECT_EQ(mapping_flags(small.data() + kMinHugeRasterBytes / 4).find(" hg "), std::string::npos);
}

}  // namespace
}  // namespace gapless
