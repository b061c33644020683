// Random weights: for benchmarks where trained ones may not be had.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "base/random_weights.h"
#include "base/status.h"
#include "weights/weight_map.h"

namespace gapless {

// The distribution of one tensor, chosen so that activations stay in the range of a trained
// model's: normalised layers in, values of about 1 out of every product, and residual branches
// scaled down by 1 / sqrt(2 * layers), so that the residual stream neither grows nor fades.
RandomTensorSpec random_tensor_spec(const WeightSpec& weight, std::uint64_t seed);

// Elements first, first + 1, ... of the tensor; as bf16 rounded to nearest even.
void fill_random_f32(const RandomTensorSpec& spec, std::uint64_t first, std::span<float> out);
void fill_random_bf16(const RandomTensorSpec& spec, std::uint64_t first,
                      std::span<std::uint16_t> out);

// Writes `folder`/model.safetensors (bf16, published naming). The folder is made when it is not
// there. `progress` gets the bytes written so far and the bytes in all.
Status write_random_weights(std::span<const WeightSpec> weights, std::uint64_t seed,
                            const std::filesystem::path& folder,
                            const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace gapless
