// What the vendor says of a GPU: the facts that a prediction of its speed begins with.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gapless {

struct GpuSpec {
  std::string_view name;        // "RTX 3090"
  int capability = 0;           // 10 * major + minor
  int num_multiprocessors = 0;  // those that are switched on
  double gb_per_s = 0;          // of the GPU's memory, 10^9 bytes
  double tflop_per_s = 0;  // products of bfloat16 with float32 sums, dense matrices, boost clock
};

// Sorted by capability.
std::span<const GpuSpec> gpu_specs();

// Without regard to case and spaces, with or without "NVIDIA" and "GeForce" before it: "rtx3090" is "NVIDIA GeForce
// RTX 3090". Invalid argument, with the list of all names, for an unknown one ("RTX 3090 Ti" is another GPU).
StatusOr<GpuSpec> find_gpu(std::string_view name);

// The path of the CUDA backend that such a GPU runs (docs/gpus.md).
std::string_view path_of(const GpuSpec& gpu);

// Under which names bench/paths.py may have measured that path, the one nearest to this GPU first: with 99 KB of shared
// memory in a block path 8.0 is measured as 8.6, path 9.0 as 12.0. In 16 bits 8.9 runs what 8.6 runs.
std::span<const std::string_view> measured_names_of(const GpuSpec& gpu);

// The path that bench/paths.py measures under a name.
std::string_view path_measured_as(std::string_view name);

}  // namespace gapless
