// Loops over the elements of a row by the lanes of a simd_*.h.
#pragma once

namespace gapless::cpu {

// body(at, count) over [0, size) in steps of the lanes; count < kLanes in the last one only.
template <typename Simd, typename Body>
[[gnu::always_inline]] inline void for_lanes(int size, Body body) {
  for (int at = 0; at < size; at += Simd::kLanes) {
    body(at, size - at < Simd::kLanes ? size - at : Simd::kLanes);
  }
}

template <typename Simd, typename T>
[[gnu::always_inline]] inline typename Simd::Vector load_count(const T* from, int count) {
  return count == Simd::kLanes ? Simd::load(from) : Simd::load_first(from, count);
}

template <typename Simd, typename T>
[[gnu::always_inline]] inline void store_count(T* to, typename Simd::Vector v, int count) {
  if (count == Simd::kLanes) {
    Simd::store(to, v);
  } else {
    Simd::store_first(to, v, count);
  }
}

}  // namespace gapless::cpu
