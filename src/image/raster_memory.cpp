#include "image/raster_memory.h"

#include <sys/mman.h>
#include <unistd.h>

namespace gapless {

void reserve_raster(std::vector<std::uint8_t>& pixels, std::size_t num_bytes) {
  pixels.reserve(num_bytes);
  if (num_bytes < kMinHugeRasterBytes) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(pixels.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + num_bytes) / page * page;
  // A system without huge pages refuses, and nothing is lost.
  (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace gapless
