// The memory of a picture's raster, and of whatever else is as large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gapless {

// The program has the C library map allocations from this size on by themselves (apps/main.cpp); they are unmapped when
// they are freed.
inline constexpr std::size_t kMinHugeRasterBytes = std::size_t{8} << 20;

// A large block of memory gets huge pages where the operating system has them, for what of it was not touched yet. Small
// ones take long to give back: hundreds of megabytes as long as a cancelled picture may live on. And meanwhile nobody else
// changes the address space, which a thread that only allocates may have to do. Nothing where num_bytes is small.
void prefer_huge_pages(void* memory, std::size_t num_bytes);

// Gives the pages of a large block back to the operating system, some megabytes at a time; what was in it is gone. Before it is freed: that
// gives everything back at once, and as long as it takes (tens of milliseconds where there are no huge pages) no other
// thread changes the address space. Nothing where num_bytes is small.
void give_back_pages(void* memory, std::size_t num_bytes);

// Does so at the end of its life, with what `pixels` has then: whoever owns them frees them next.
template <typename Pixel>
class GivesBackPages {
 public:
  explicit GivesBackPages(std::vector<Pixel>& pixels) : pixels_(pixels) {}
  ~GivesBackPages() { give_back_pages(pixels_.data(), pixels_.capacity() * sizeof(Pixel)); }
  GivesBackPages(const GivesBackPages&) = delete;
  GivesBackPages& operator=(const GivesBackPages&) = delete;

 private:
  std::vector<Pixel>& pixels_;
};

// Reserves room for num_bytes and touches none of it; of a large raster in huge pages.
void reserve_raster(std::vector<std::uint8_t>& pixels, std::size_t num_bytes);

}  // namespace gapless
