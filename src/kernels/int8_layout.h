// How a backend with products in 8-bit whole numbers holds a matrix [out, in] (Kernels::pack_int8):
//
//   scales  [padded_out] float     weight [c, k] is about scales[c] * panels(c, k); the largest of row c becomes 127
//   sums    [padded_out] int32     of row c's whole numbers
//   panels  [padded_out / 32][padded_in / 4][32][4] int8     32 rows side by side, four of their numbers at a time
//
// What is padded is 0. Activations become whole numbers as a product begins, each row with a scale of its own: x [k] is about
// scale * (bytes [k] - 128), the largest becomes 127. So a product's sums are exact whatever adds them up, and
// y = float(sum) * scale of x * scale of c, in this order, has the same bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gapless {

inline constexpr int kInt8Columns = 32;  // of a panel
inline constexpr int kInt8Step = 4;      // numbers of a row that lie together
// 255 * 127 times so many is still a 32-bit number.
inline constexpr int kMaxInt8In = 65536;

// All inlined: files that are compiled for an instruction set of their own read it too.
struct Int8Layout {
  std::int64_t in, out;

  [[gnu::always_inline]] constexpr std::int64_t padded_in() const {
    return (in + kInt8Step - 1) / kInt8Step * kInt8Step;
  }
  [[gnu::always_inline]] constexpr std::int64_t padded_out() const {
    return (out + kInt8Columns - 1) / kInt8Columns * kInt8Columns;
  }
  [[gnu::always_inline]] constexpr std::int64_t panel_bytes() const {
    return padded_in() * kInt8Columns;
  }
  [[gnu::always_inline]] constexpr std::size_t bytes() const {
    return static_cast<std::size_t>(padded_out() * 8 + padded_in() * padded_out());
  }

  // Of a packed matrix.
  [[gnu::always_inline]] const float* scales(const void* packed) const {
    return static_cast<const float*>(packed);
  }
  [[gnu::always_inline]] const std::int32_t* sums(const void* packed) const {
    return static_cast<const std::int32_t*>(packed) + padded_out();
  }
  // The panel of columns [column, column + 32).
  [[gnu::always_inline]] const std::int8_t* panel(const void* packed, std::int64_t column) const {
    return static_cast<const std::int8_t*>(packed) + padded_out() * 8 +
           column / kInt8Columns * panel_bytes();
  }
};

}  // namespace gapless
