// Which rows of a decode step begin with the same pages of the cache: rows about one picture, to which the prefix cache gives the
// same pages. A backend may read what they share once for several of them.
//
// The same on the host and on a GPU.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "base/limits.h"
#include "base/num_bits.h"

namespace gapless {

// Rows that read a page together, at most: more rows about one picture are several sets.
inline constexpr int kMaxSharingRows = 4;

// A set's rows are of one of these slices of the step's rows: 0 to 63, 64 to 127, and so on. Each has a bit.
inline constexpr int kSharingSlice = 64;
GAPLESS_HOST_DEVICE constexpr int sharing_slice_begin(int row) {
  return row / kSharingSlice * kSharingSlice;
}

// A set of rows, as one of them sees it.
struct SharedPrefix {
  std::uint64_t rows = 0;  // bit i: row i of the slice is in it; 0: the row shares nothing
  // So many pages at the row's beginning are those at the beginning of the set's first row. Both have filled them: nobody writes
  // into them any more.
  std::int32_t num_pages = 0;

  GAPLESS_HOST_DEVICE int size() const { return num_bits(rows); }
  GAPLESS_HOST_DEVICE int first() const {  // of a set, in its slice
#ifdef __CUDA_ARCH__
    return __ffsll(static_cast<long long>(rows)) - 1;
#else
    return std::countr_zero(rows);
#endif
  }
  // How many of its rows come before one.
  GAPLESS_HOST_DEVICE int rank_of(int row) const {
    return num_bits(rows & ((std::uint64_t{1} << row % kSharingSlice) - 1));
  }
};

}  // namespace gapless
