// Random weights as a pure function of seed, tensor and element, the same bits on the host and on
// the device: a kernel fills a tensor with what `gapless random-model` writes to disk.
//
// Header only, and for CUDA kernels too. Which distribution each tensor of a model gets:
// random_model.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/host_device.h"
#include "base/philox.h"

namespace gapless {

// One of mean and stddev must be 0: a constant, or noise around 0. Then mean + stddev * z has a
// single rounding, and it makes no difference whether a compiler fuses the multiplication and the
// addition.
struct RandomTensorSpec {
  std::uint64_t seed = 0;
  std::uint64_t tensor_hash = 0;  // hash_tensor_name of the published name
  float mean = 0;
  float stddev = 0;
};

// FNV-1a, 64 bits.
constexpr std::uint64_t hash_tensor_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// A value of mean 0 and variance 1 from 32 random bits: the sum of their four bytes, centred and
// scaled. Nearly normal (between -3.45 and 3.45, excess kurtosis -0.3), and exact integer
// arithmetic up to one rounding, unlike formulas with logarithms, which differ between mathematical
// libraries.
GAPLESS_HOST_DEVICE inline float unit_noise(std::uint32_t bits) {
  const std::uint32_t pairs = (bits & 0x00FF00FFu) + ((bits >> 8) & 0x00FF00FFu);
  const std::uint32_t sum = (pairs & 0xFFFFu) + (pairs >> 16);  // mean 510, variance 21845
  const auto centred = static_cast<std::int32_t>(sum) - 510;
  constexpr float kInverseStddev = 0.0067658751f;  // 1 / sqrt(21845)
  return static_cast<float>(centred) * kInverseStddev;
}

// Elements 4 * block ... 4 * block + 3: Philox with the seed as key and counter (block,
// tensor_hash).
GAPLESS_HOST_DEVICE inline void random_values_of_block(const RandomTensorSpec& spec,
                                                       std::uint64_t block, float values[4]) {
  const PhiloxBlock random = philox4x32(spec.seed, block, spec.tensor_hash);
  for (int i = 0; i < 4; ++i) values[i] = spec.mean + spec.stddev * unit_noise(random.words[i]);
}

// `element`: the row-major index in the tensor's published shape.
GAPLESS_HOST_DEVICE inline float random_value(const RandomTensorSpec& spec, std::uint64_t element) {
  float values[4];
  random_values_of_block(spec, element / 4, values);
  return values[element % 4];
}

}  // namespace gapless
