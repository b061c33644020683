#include "image/raster_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "image/decode_image.h"
#include "image/resize_lanczos.h"
#include "image/test_images.h"

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

// As apps/main.cpp does. What earlier tests have freed goes back, or a large block would come from there.
void map_large_blocks() {
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMinHugeRasterBytes));
  malloc_trim(0);
}

// Bytes of all mappings that are to lie in huge pages.
std::size_t huge_bytes() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t sum = 0;
  std::size_t size = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') size = end - begin;
    if (line.starts_with("VmFlags:") && (line + " ").find(" hg ") != std::string::npos) sum += size;
  }
  return sum;
}

bool has_huge_pages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").is_open();
}

TEST(RasterMemoryTest, RoomForPixelsIsNotCleared) {
  Pixels pixels(64, 7);
  pixels.resize(0);
  pixels.resize(32);
  EXPECT_EQ(pixels, Pixels(32, 7));
  pixels.resize(0);
  pixels.resize(32, 0);
  EXPECT_EQ(pixels, Pixels(32, 0));
}

TEST(RasterMemoryTest, ALargeRasterLiesInHugePagesAndASmallOneDoesNot) {
  if (!has_huge_pages()) return;  // nothing to see on such a system
  Pixels large;
  reserve_raster(large, 2 * kMinHugeRasterBytes);
  EXPECT_GE(large.capacity(), 2 * kMinHugeRasterBytes);
  const std::string flags = mapping_flags(large.data() + kMinHugeRasterBytes);
  EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;

  Pixels small;
  reserve_raster(small, kMinHugeRasterBytes / 2);
  EXPECT_GE(small.capacity(), kMinHugeRasterBytes / 2);
  EXPECT_EQ(mapping_flags(small.data() + kMinHugeRasterBytes / 4).find(" hg "), std::string::npos);
}

// While the first scan is read: there is no raster yet.
TEST(RasterMemoryTest, TheCoefficientsOfALargeProgressiveJpegLieInHugePages) {
  if (!has_huge_pages()) return;
  map_large_blocks();
  constexpr int kSide = 2100;  // 9 MB of them
  const std::vector<std::uint8_t> grey(std::size_t{kSide} * kSide, 130);
  const testing::FileBytes file =
      testing::make_jpeg(kSide, kSide, grey, {.num_components = 1, .num_refined_scans = 1});
  const std::size_t before = huge_bytes();
  std::size_t grown = 0;
  int num_questions = 0;
  const auto decoded = decode_image(file, {.stop = [&] {
                                      if (++num_questions < 10) return false;
                                      grown = huge_bytes() - before;
                                      return true;
                                    }});
  EXPECT_EQ(decoded.status().code(), StatusCode::kCancelled);
  EXPECT_GE(grown, kMinHugeRasterBytes);
}

TEST(RasterMemoryTest, WhatIsBetweenTwoPassesOfAResizeLiesInHugePages) {
  if (!has_huge_pages()) return;
  map_large_blocks();
  const std::size_t before = huge_bytes();
  const LanczosResize resize(4'000, 4'000, 1'000, 3'999, nullptr);  // 12 MB between them
  EXPECT_GE(huge_bytes() - before, kMinHugeRasterBytes);
}

}  // namespace
}  // namespace gapless
