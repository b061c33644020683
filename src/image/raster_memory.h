// The memory of a picture's raster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gapless {

// The C library maps allocations from this size on by themselves and unmaps them when they are freed.
inline constexpr std::size_t kMinHugeRasterBytes = std::size_t{32} << 20;

// Reserves room for num_bytes and touches none of it. A large raster gets huge pages where the operating system has
// them: hundreds of megabytes of small ones take as long to give back as a cancelled picture may live on.
void reserve_raster(std::vector<std::uint8_t>& pixels, std::size_t num_bytes);

}  // namespace gapless
