// exp, both GELUs and SiLU over the lanes of a simd_*.h, within a few units in the last place.
#pragma once

namespace gapless::cpu {

// e^x for x in [-86.5, 88]; smaller x give 0, larger ones e^88. Cody and Waite's reduction to
// x = n ln 2 + r, |r| <= ln(2) / 2, and the Taylor polynomial of e^r to r^7 / 7! (error below
// 4e-9). A Simd may have an exp of its own.
template <typename Simd>
[[gnu::always_inline]] inline typename Simd::Vector exp(typename Simd::Vector x) {
  if constexpr (requires { Simd::exp(x); }) return Simd::exp(x);
  using Vector = typename Simd::Vector;
  const Vector lowest = Simd::broadcast(-86.5f);
  const Vector clamped = Simd::min(Simd::max(x, lowest), Simd::broadcast(88.0f));
  // Adding and taking away 1.5 * 2^23 rounds to a whole number.
  const Vector rounder = Simd::broadcast(12582912.0f);
  const Vector n = Simd::sub(
      Simd::add(Simd::mul(clamped, Simd::broadcast(1.44269504088896341f)), rounder), rounder);
  // ln 2 in two parts; n times the first is exact.
  Vector r = Simd::sub(clamped, Simd::mul(n, Simd::broadcast(0.693359375f)));
  r = Simd::sub(r, Simd::mul(n, Simd::broadcast(-2.12194440e-4f)));

  Vector p = Simd::broadcast(1.0f / 5040);
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 720));
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 120));
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 24));
  p = Simd::fma(p, r, Simd::broadcast(1.0f / 6));
  p = Simd::fma(p, r, Simd::broadcast(0.5f));
  p = Simd::fma(p, r, Simd::broadcast(1.0f));
  p = Simd::fma(p, r, Simd::broadcast(1.0f));
  return Simd::zero_below(Simd::times_power_of_two(p, n), x, lowest);
}

// 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + e^(-2u)): the same
// function, without the cancellation of 1 + tanh(u) at negative u.
template <typename Simd>
[[gnu::always_inline]] inline typename Simd::Vector gelu_tanh(typename Simd::Vector x) {
  using Vector = typename Simd::Vector;
  const Vector cubic = Simd::fma(Simd::mul(Simd::broadcast(0.044715f), Simd::mul(x, x)), x, x);
  // -2 sqrt(2/pi)
  const Vector exponential = exp<Simd>(Simd::mul(Simd::broadcast(-1.5957691216057308f), cubic));
  return Simd::div(x, Simd::add(Simd::broadcast(1.0f), exponential));
}

// x / 2 (1 + erf(x / sqrt(2))). With z = |x| / sqrt(2) and q = erfc(z) / 2 that is max(x, 0) - |x| q: nothing
// cancels. erfc is formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7.
template <typename Simd>
[[gnu::always_inline]] inline typename Simd::Vector gelu_erf(typename Simd::Vector x) {
  using Vector = typename Simd::Vector;
  const Vector size = Simd::max(x, Simd::sub(Simd::zero(), x));
  const Vector z = Simd::mul(size, Simd::broadcast(0.70710678118654752f));
  const Vector one = Simd::broadcast(1.0f);
  const Vector t = Simd::div(one, Simd::fma(Simd::broadcast(0.3275911f), z, one));
  Vector p = Simd::broadcast(1.061405429f);
  p = Simd::fma(p, t, Simd::broadcast(-1.453152027f));
  p = Simd::fma(p, t, Simd::broadcast(1.421413741f));
  p = Simd::fma(p, t, Simd::broadcast(-0.284496736f));
  p = Simd::fma(p, t, Simd::broadcast(0.254829592f));
  // e^(-z^2) is 0 from z = 10 on; without the bound z^2 overflows and |x| q is not a number.
  const Vector bounded = Simd::min(z, Simd::broadcast(10.0f));
  const Vector e = exp<Simd>(Simd::sub(Simd::zero(), Simd::mul(bounded, bounded)));
  const Vector q = Simd::mul(Simd::broadcast(0.5f), Simd::mul(Simd::mul(p, t), e));
  return Simd::sub(Simd::max(x, Simd::zero()), Simd::mul(size, q));
}

// x / (1 + e^-x).
template <typename Simd>
[[gnu::always_inline]] inline typename Simd::Vector silu(typename Simd::Vector x) {
  const auto exponential = exp<Simd>(Simd::sub(Simd::zero(), x));
  return Simd::div(x, Simd::add(Simd::broadcast(1.0f), exponential));
}

}  // namespace gapless::cpu
