// Lanes of float32 that every compiler target has: GCC vectors of four. The other simd_*.h offer
// the same members; the kernels are templates over them.
#pragma once

#include "kernels/cpu/element.h"

namespace gapless::cpu {

struct PortableSimd {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int IntVector __attribute__((vector_size(16)));
  static constexpr const char* kName = "portable";
  static constexpr int kLanes = 4;
  // Rows of a tile of dot products: what fits in the registers beside four columns.
  static constexpr int kTileRows = 3;
  // Rows of a tile of packed products: what fits beside two vectors of columns (multiply_tile.h).
  static constexpr int kPackedRows = 4;

  [[gnu::always_inline]] static Vector zero() { return Vector{0, 0, 0, 0}; }
  [[gnu::always_inline]] static Vector broadcast(float x) { return Vector{x, x, x, x}; }
  [[gnu::always_inline]] static Vector load(const float* from) {
    Vector v;
    __builtin_memcpy(&v, from, sizeof(v));
    return v;
  }
  // The first `count` (1 .. kLanes - 1) lanes; the rest are 0.
  [[gnu::always_inline]] static Vector load_first(const float* from, int count) {
    return Vector{from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0, 0};
  }
  [[gnu::always_inline]] static void store(float* to, Vector v) {
    __builtin_memcpy(to, &v, sizeof(v));
  }
  [[gnu::always_inline]] static void store_first(float* to, Vector v, int count) {
    for (int i = 0; i < count; ++i) to[i] = v[i];
  }

  // bfloat16 in memory, rounded to nearest even.
  [[gnu::always_inline]] static Vector load(const Bf16* from) {
    const IntVector bits = {from[0].bits, from[1].bits, from[2].bits, from[3].bits};
    return reinterpret_cast<Vector>(bits << 16);
  }
  [[gnu::always_inline]] static Vector load_first(const Bf16* from, int count) {
    Bf16 lanes[4] = {};
    for (int i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
  }
  [[gnu::always_inline]] static void store(Bf16* to, Vector v) { store_first(to, v, kLanes); }
  [[gnu::always_inline]] static void store_first(Bf16* to, Vector v, int count) {
    const IntVector bits = reinterpret_cast<IntVector>(v);
    const IntVector up = bits + 0x7fff + ((bits >> 16) & 1);
    const IntVector result = v == v ? up : (bits | 0x400000);
    for (int i = 0; i < count; ++i) {
      to[i].bits = static_cast<std::uint16_t>(static_cast<unsigned>(result[i]) >> 16);
    }
  }
  // A vector whose lanes hold two numbers of bfloat16 each: those with even, and with odd numbers.
  [[gnu::always_inline]] static Vector even(Vector pairs) {
    return reinterpret_cast<Vector>(reinterpret_cast<IntVector>(pairs) << 16);
  }
  [[gnu::always_inline]] static Vector odd(Vector pairs) {
    return reinterpret_cast<Vector>(reinterpret_cast<IntVector>(pairs) & -0x10000);
  }
  [[gnu::always_inline]] static void transpose(Vector (&v)[4]) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < i; ++j) {
        const float upper = v[j][i];
        v[j][i] = v[i][j];
        v[i][j] = upper;
      }
    }
  }

  [[gnu::always_inline]] static Vector add(Vector a, Vector b) { return a + b; }
  [[gnu::always_inline]] static Vector sub(Vector a, Vector b) { return a - b; }
  [[gnu::always_inline]] static Vector mul(Vector a, Vector b) { return a * b; }
  [[gnu::always_inline]] static Vector div(Vector a, Vector b) { return a / b; }
  [[gnu::always_inline]] static Vector max(Vector a, Vector b) { return a > b ? a : b; }
  [[gnu::always_inline]] static Vector min(Vector a, Vector b) { return a < b ? a : b; }
  // a * b + c; fused where the target fuses.
  [[gnu::always_inline]] static Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
  // x * 2^n; n holds whole numbers, and neither x nor the result is subnormal.
  [[gnu::always_inline]] static Vector times_power_of_two(Vector x, Vector n) {
    const IntVector exponent = __builtin_convertvector(n, IntVector) << 23;
    return reinterpret_cast<Vector>(reinterpret_cast<IntVector>(x) + exponent);
  }
  // v where x >= bound, else 0.
  [[gnu::always_inline]] static Vector zero_below(Vector v, Vector x, Vector bound) {
    return x >= bound ? v : zero();
  }

  [[gnu::always_inline]] static float sum(Vector v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  [[gnu::always_inline]] static float largest(Vector v) {
    const float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
  }
  // The four sums side by side.
  [[gnu::always_inline]] static void store_sums(float* to, Vector a, Vector b, Vector c, Vector d) {
    to[0] = sum(a);
    to[1] = sum(b);
    to[2] = sum(c);
    to[3] = sum(d);
  }
};

}  // namespace gapless::cpu
