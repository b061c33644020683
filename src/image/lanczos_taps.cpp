#include "image/lanczos_taps.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gapless {
namespace {

constexpr double kLanczosRadius = 3.0;

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  if (x < -kLanczosRadius || x >= kLanczosRadius) return 0.0;
  return sinc(x) * sinc(x / kLanczosRadius);
}

std::int32_t to_fixed(double weight) {
  const double scaled = weight * (1 << kLanczosPrecisionBits);
  return static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
}

std::int32_t halves(std::int32_t first, std::int32_t second) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(second) << 16) |
                                   (static_cast<std::uint32_t>(first) & 0xffffu));
}

LanczosTapPair pair_of(std::int32_t first, std::int32_t second) {
  constexpr std::int32_t kLowMask = (1 << kLanczosLowBits) - 1;
  return {halves(first & kLowMask, second & kLowMask),
          halves(first >> kLanczosLowBits, second >> kLanczosLowBits)};
}

// Adds a weight, which is less than 2 in size, as a quad's tap i.
void set_tap(LanczosTapQuad& quad, int i, std::int32_t weight) {
  for (std::int32_t& digits : quad.digits) {
    const auto digit = static_cast<std::int8_t>(weight & 0xff);
    digits |= static_cast<std::int32_t>(std::uint32_t{static_cast<std::uint8_t>(digit)} << (8 * i));
    weight = (weight - digit) / 256;
  }
}

}  // namespace

LanczosTaps::LanczosTaps(int in_size, int out_size)
    : in_size_(in_size),
      scale_(static_cast<double>(in_size) / out_size),
      support_(kLanczosRadius * std::max(1.0, scale_)),
      max_taps_(static_cast<std::ptrdiff_t>(std::ceil(support_)) * 2 + 1),
      first_(static_cast<std::size_t>(out_size)),
      num_taps_(static_cast<std::size_t>(out_size)),
      fixed_weights_(static_cast<std::size_t>(out_size * max_taps_)),
      pairs_(static_cast<std::size_t>(out_size * max_pairs())),
      quads_(static_cast<std::size_t>(out_size * max_quads())) {}

int LanczosTaps::end_of(int o) const {
  return std::min(in_size_, static_cast<int>((o + 0.5) * scale_ + support_ + 0.5));
}

void LanczosTaps::compute(int begin, int end) {
  const double inverse_filter_scale = 1.0 / std::max(1.0, scale_);
  std::vector<double> weights(static_cast<std::size_t>(max_taps_));
  for (int o = begin; o < end; ++o) {
    const double centre = (o + 0.5) * scale_;
    // Truncation, not floor: Pillow casts to int, and the lower end is cut at 0 anyway.
    const int from = std::max(0, static_cast<int>(centre - support_ + 0.5));
    const int to = end_of(o);
    double sum = 0.0;
    for (int x = from; x < to; ++x) {
      const double weight = lanczos((x - centre + 0.5) * inverse_filter_scale);
      weights[static_cast<std::size_t>(x - from)] = weight;
      sum += weight;
    }
    first_[static_cast<std::size_t>(o)] = from;
    num_taps_[static_cast<std::size_t>(o)] = to - from;
    std::int32_t* const fixed = fixed_weights_.data() + o * max_taps_;
    for (int i = 0; i < to - from; ++i) {
      double weight = weights[static_cast<std::size_t>(i)];
      if (sum != 0.0) weight /= sum;
      fixed[i] = to_fixed(weight);
    }
    LanczosTapPair* const pairs = pairs_.data() + o * max_pairs();
    for (int i = 0; i < to - from; i += 2) {
      pairs[i / 2] = pair_of(fixed[i], i + 1 < to - from ? fixed[i + 1] : 0);
    }
    LanczosTapQuad* const quads = quads_.data() + o * max_quads();
    std::fill_n(quads, max_quads(), LanczosTapQuad{});
    for (int i = 0; i < to - from; ++i) set_tap(quads[i / 4], i % 4, fixed[i]);
  }
}

}  // namespace gapless
