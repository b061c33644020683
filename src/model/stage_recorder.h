// A hook that sees the model's intermediate results, for parity tests and debugging.
//
// The model calls record() after it has enqueued the work that makes a stage. In production there
// is no recorder and the cost is one comparison per stage. A recorder may wait for the stream, so
// it must not be set while steps are captured into graphs.
//
// Stages, in order (i = layer; rows of all crops or all tokens of the launch, packed):
//   vision.patches          [crops*729, patch stride]   normalised patch vectors, zero padded
//   vision.patch_embedding  [crops*729, E]              with position embedding
//   vision.block.{i}        [crops*729, E]
//   vision.post_ln          [crops*729, E]
//   vision.pooled           [729, 2E]                   global | pooled tile features, per image
//   vision.projection       [729, D]                    per image
//   text.input              [tokens, D]                 embeddings
//   text.block.{i}          [tokens, D]
//   text.hidden             [rows, D]                   each row's last token, before post_ln
//   text.post_ln            [rows, D]
//   text.logits             [rows, vocab]               float32
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "device/device.h"
#include "kernels/dtype.h"

namespace gapless {

// A dense row-major matrix in device memory.
struct StageView {
  const void* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t num_columns = 0;
  DType dtype = DType::kF32;
};

class StageRecorder {
 public:
  virtual ~StageRecorder() = default;
  virtual Status record(Stream& stream, std::string_view stage, const StageView& view) = 0;
};

}  // namespace gapless
