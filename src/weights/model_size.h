// What a model weighs: the figures that `gapless info` prints and that bound a decode step.
#pragma once

#include <cstdint>

#include "weights/model_config.h"

namespace gapless {

struct ModelSize {
  // Parameters.
  std::int64_t text = 0;
  std::int64_t vision = 0;  // encoder and projector
  std::int64_t region = 0;
  // Parameters that every decode step reads: the decoder's blocks, its last LayerNorm, lm_head, and
  // one row of the embedding table per sequence.
  std::int64_t decode_shared = 0;
  std::int64_t decode_per_row = 0;
  // Values that one cached position holds in all layers, keys and values.
  std::int64_t kv_per_token = 0;

  std::int64_t total() const { return text + vision + region; }

  // Bytes that one step of `num_rows` sequences, each with `context` cached positions, must read.
  std::int64_t decode_step_bytes(std::int64_t bytes_per_value, std::int64_t num_rows,
                                 std::int64_t context) const {
    return bytes_per_value * (decode_shared + num_rows * (decode_per_row + context * kv_per_token));
  }
};

ModelSize model_size(const ModelConfig& config);

}  // namespace gapless
