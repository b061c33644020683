// Lanes of float32 that every compiler target has: GCC vectors of four. The other simd_*.h offer
// the same members; the kernels are templates over them.
#pragma once

namespace gapless::cpu {

struct PortableSimd {
  typedef float Vector __attribute__((vector_size(16)));
  typedef int IntVector __attribute__((vector_size(16)));
  static constexpr const char* kName = "portable";
  static constexpr int kLanes = 4;
  // Rows of a tile of dot products: what fits in the registers beside four columns.
  static constexpr int kTileRows = 3;

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
