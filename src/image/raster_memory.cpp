#include "image/raster_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/whole_pages.h"

namespace gapless {

void prefer_huge_pages(void* memory, std::size_t num_bytes) {
  if (num_bytes < kMinHugeRasterBytes) return;
  const WholePages pages = whole_pages(memory, num_bytes);
  // A system without huge pages refuses, and nothing is lost.
  (void)madvise(pages.data(), pages.size(), MADV_HUGEPAGE);
}

void give_back_pages(void* memory, std::size_t num_bytes) {
  constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
  if (num_bytes < kMinHugeRasterBytes) return;
  const WholePages pages = whole_pages(memory, num_bytes);
  // Pieces end where huge pages do.
  for (std::uintptr_t begin = pages.begin, end; begin < pages.end; begin = end) {
    end = std::min(pages.end, (begin / kPieceBytes + 1) * kPieceBytes);
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

void reserve_raster(std::vector<std::uint8_t>& pixels, std::size_t num_bytes) {
  pixels.reserve(num_bytes);
  prefer_huge_pages(pixels.data(), num_bytes);
}

}  // namespace gapless
