// Ops that work on each row for itself: norms, rotations of heads, gates.
#pragma once

#include <cstdint>

#include "kernels/cpu/for_lanes.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/kernels.h"

namespace gapless::cpu {

template <typename Simd, typename T>
void norm_rows(const NormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  using Vector = typename Simd::Vector;
  const auto* gamma = static_cast<const T*>(params.weights.gamma);
  const auto* beta = static_cast<const T*>(params.weights.beta);
  const bool centres = params.weights.kind == NormKind::kLayer;
  const auto dim = static_cast<float>(params.dim);
  // Another core has just written these rows: several come at a time.
  constexpr std::int64_t kAhead = 4;
  const auto fetch_row = [&](std::int64_t row) {
    if (row >= row_end) return;
    const T* x = static_cast<const T*>(params.x) + row * params.x_stride;
    for (int at = 0; at < params.dim; at += 64 / sizeof(T)) __builtin_prefetch(x + at);
  };
  for (std::int64_t r = row_begin; r < row_begin + kAhead; ++r) fetch_row(r);
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    fetch_row(r + kAhead);
    const T* x = static_cast<const T*>(params.x) + r * params.x_stride;
    T* y = static_cast<T*>(params.y) + r * params.y_stride;
    Vector mean = Simd::zero();
    if (centres) {
      Vector sum = Simd::zero();
      for_lanes<Simd>(
          params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
            sum = Simd::add(sum, load_count<Simd>(x + at, lanes));
          });
      mean = Simd::broadcast(Simd::sum(sum) / dim);
    }
    Vector squares = Simd::zero();
    for_lanes<Simd>(
        params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
          Vector centred = Simd::sub(load_count<Simd>(x + at, lanes), mean);
          // Lanes past the end hold -mean: they must not count.
          if (lanes < Simd::kLanes) {
            alignas(64) float values[Simd::kLanes];
            Simd::store(values, centred);
            centred = Simd::load_first(values, lanes);
          }
          squares = Simd::fma(centred, centred, squares);
        });
    const float variance = Simd::sum(squares) / dim;
    const Vector scale = Simd::broadcast(1.0f / __builtin_sqrtf(variance + params.weights.eps));
    for_lanes<Simd>(
        params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
          const Vector normal = Simd::mul(Simd::sub(load_count<Simd>(x + at, lanes), mean), scale);
          const Vector shift = beta == nullptr ? Simd::zero() : load_count<Simd>(beta + at, lanes);
          store_count<Simd>(y + at, Simd::fma(normal, load_count<Simd>(gamma + at, lanes), shift),
                            lanes);
        });
  }
}

// Not fused: a product rounded alone is what the reference has.
template <typename Simd, typename T>
void rotate_head(const void* from, const float* cosines, const float* sines, int half, void* to) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  for_lanes<Simd>(
      half, [&](int at, int lanes) __attribute__((always_inline)) {
        const auto a = load_count<Simd>(x + at, lanes), b = load_count<Simd>(x + half + at, lanes);
        const auto cosine = load_count<Simd>(cosines + at, lanes);
        const auto sine = load_count<Simd>(sines + at, lanes);
        store_count<Simd>(y + at, Simd::sub(Simd::mul(a, cosine), Simd::mul(b, sine)), lanes);
        store_count<Simd>(y + half + at, Simd::add(Simd::mul(a, sine), Simd::mul(b, cosine)),
                          lanes);
      });
}

template <typename Simd, typename T>
void gate_rows(const GateParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const bool is_silu = params.activation == Activation::kSilu;
  const bool is_gelu = params.activation == Activation::kGeluTanh;
  const bool is_gelu_erf = params.activation == Activation::kGeluErf;
  const auto offset = Simd::broadcast(params.up_offset);
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const T* x = static_cast<const T*>(params.x) + r * params.x_stride;
    T* y = static_cast<T*>(params.y) + r * params.y_stride;
    for_lanes<Simd>(
        params.dim, [&](int at, int lanes) __attribute__((always_inline)) {
          auto value = load_count<Simd>(x + at, lanes);
          if (is_silu) value = silu<Simd>(value);
          if (is_gelu) value = gelu_tanh<Simd>(value);
          if (is_gelu_erf) value = gelu_erf<Simd>(value);
          const auto up = Simd::add(load_count<Simd>(x + params.dim + at, lanes), offset);
          store_count<Simd>(y + at, Simd::mul(value, up), lanes);
        });
  }
}

}  // namespace gapless::cpu
