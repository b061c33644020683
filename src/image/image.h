// A decoded picture in ordinary memory.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace gapless {

// A vector of these does not set what resize(n) adds, which somebody is about to write; resize(n, 0) does.
template <typename T>
struct UninitializedAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };
  template <typename U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
};
using Pixels = std::vector<std::uint8_t, UninitializedAllocator<std::uint8_t>>;

struct Image {
  int width = 0;
  int height = 0;
  Pixels rgb;  // [height][width][3], 8 bits, encoded sRGB as the file had it
};

}  // namespace gapless
