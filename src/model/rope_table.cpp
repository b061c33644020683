#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gapless {
namespace {

float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const auto original = static_cast<float>(scaling.original_context);
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / factor;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// Between the first and the second of these pairs of dims frequencies go over from kept to divided.
struct YarnRange {
  double low = 0, high = 0;
};

YarnRange yarn_range(const RopeScaling& scaling, int rotary_dim, double theta) {
  const auto dim_of_turns = [&](double turns) {
    const double ratio = scaling.original_context / (turns * 2 * std::numbers::pi);
    return rotary_dim * std::log(ratio) / (2 * std::log(theta));
  };
  YarnRange range{dim_of_turns(scaling.beta_fast), dim_of_turns(scaling.beta_slow)};
  if (scaling.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, rotary_dim - 1.0)};
  if (range.low == range.high) range.high += 0.001;  // no division by 0
  return range;
}

float yarn_frequency(float power, int pair, const YarnRange& range, const RopeScaling& scaling) {
  const auto ramp =
      static_cast<float>(std::clamp((pair - range.low) / (range.high - range.low), 0.0, 1.0));
  const float divided = 1.0f / (static_cast<float>(scaling.factor) * power);
  return divided * ramp + 1.0f / power * (1 - ramp);
}

double yarn_attention_factor(const RopeScaling& scaling) {
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  const auto of = [&](double mscale) {
    return scaling.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(scaling.factor) + 1.0;
  };
  const bool both = scaling.mscale != 0 && scaling.mscale_all_dim != 0;
  return both ? of(scaling.mscale) / of(scaling.mscale_all_dim) : of(1);
}

std::vector<float> scaled_frequencies(int rotary_dim, double theta, const RopeScaling& scaling) {
  const YarnRange range = scaling.kind == RopeScaling::Kind::kYarn
                              ? yarn_range(scaling, rotary_dim, theta)
                              : YarnRange{};
  std::vector<float> frequencies;
  for (int j = 0; j < rotary_dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
    const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    float frequency = 1.0f / power;
    switch (scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        frequency /= static_cast<float>(scaling.factor);
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = llama3_frequency(frequency, scaling);
        break;
      case RopeScaling::Kind::kYarn:
        frequency = yarn_frequency(power, j, range, scaling);
        break;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace

std::vector<float> make_rope_table(int max_context, int rotary_dim, double theta,
                                   const RopeScaling& scaling) {
  const std::vector<float> frequencies = scaled_frequencies(rotary_dim, theta, scaling);
  const double factor =
      scaling.kind == RopeScaling::Kind::kYarn ? yarn_attention_factor(scaling) : 1.0;
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(max_context) * static_cast<std::size_t>(rotary_dim));
  for (int position = 0; position < max_context; ++position) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(position) * frequency;
      table.push_back(static_cast<float>(std::cos(angle) * factor));
      table.push_back(static_cast<float>(std::sin(angle) * factor));
    }
  }
  return table;
}

}  // namespace gapless
