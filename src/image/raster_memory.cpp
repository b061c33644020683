#include "image/raster_memory.h"

#include <sys/mman.h>

#include "base/whole_pages.h"

namespace gapless {

void prefer_huge_pages(void* memory, std::size_t num_bytes) {
  if (num_bytes < kMinHugeRasterBytes) return;
  const WholePages pages = whole_pages(memory, num_bytes);
  // A system without huge pages refuses, and nothing is lost.
  (void)madvise(pages.data(), pages.size(), MADV_HUGEPAGE);
}

void reserve_raster(Pixels& pixels, std::size_t num_bytes) {
  pixels.reserve(num_bytes);
  prefer_huge_pages(pixels.data(), num_bytes);
}

}  // namespace gapless
