// The memory of a picture's raster, and of whatever else is as large.
#pragma once

#include <cstddef>

#include "image/image.h"

namespace gapless {

// The program has the C library map allocations from this size on by themselves (apps/main.cpp); they are unmapped when
// they are freed.
inline constexpr std::size_t kMinHugeRasterBytes = std::size_t{8} << 20;

// A large block of memory gets huge pages where the operating system has them, for what of it was not touched yet. Small
// ones take long to give back: hundreds of megabytes as long as a cancelled picture may live on. And meanwhile nobody else
// changes the address space, which a thread that only allocates may have to do. Nothing where num_bytes is small.
void prefer_huge_pages(void* memory, std::size_t num_bytes);

// Reserves room for num_bytes and touches none of it; of a large raster in huge pages.
void reserve_raster(Pixels& pixels, std::size_t num_bytes);

}  // namespace gapless
