// What a decode step must move, component by component, and a model's description for a person: the
// text of `gapless info`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/kv_format.h"
#include "kernels/prepared_format.h"
#include "model/llama/llama_config.h"
#include "model/moondream/model_config.h"
#include "model/text_weights.h"

namespace gapless {

// Parameters of the published checkpoint, without our padding.
struct ModelSize {
  std::int64_t text = 0;
  std::int64_t vision = 0;  // encoder and projector
  std::int64_t region = 0;

  std::int64_t total() const { return text + vision + region; }
};

ModelSize model_size(const ModelConfig& config);

// Bytes that one component of a decode step reads or writes in device memory, each weight read
// once.
struct StepTraffic {
  std::string component;
  std::int64_t bytes = 0;
};

// One decode step of `num_rows` sequences with `context` cached tokens each, in elements of
// `dtype`, the matrices and the KV cache in their formats. Activations stay on chip and are not
// counted. Of experts those count that the rows (at least one) touch together when each takes its own at random: the
// component's name says how many. `experts`: so many of a layer instead, as they were counted.
std::vector<StepTraffic> decode_step_traffic(const TextShape& shape, const TextWeights& text,
                                             DType dtype, PreparedFormat weights,
                                             KvFormat kv_format, int num_rows, int context,
                                             std::optional<double> experts = std::nullopt);

// On top, in a step that samples a coordinate or a size.
std::vector<StepTraffic> region_step_traffic(const ModelConfig& config, DType dtype);

std::int64_t total_bytes(const std::vector<StepTraffic>& traffic);

// Everything above and the configuration, as text for a person; of a device whose T is bfloat16.
std::string describe_model(const ModelConfig& config, PreparedFormat weights, KvFormat kv_format,
                           int num_rows, int context);
std::string describe_model(const LlamaConfig& config, PreparedFormat weights, KvFormat kv_format,
                           int num_rows, int context);

}  // namespace gapless
