// The region heads: a coordinate or a size, read from the hidden state that sampled its token.
#pragma once

#include <cstdint>

#include "model/model_context.h"
#include "model/workspace.h"
#include "step/step_model.h"

namespace gapless {

// The special ids that stand for a value.
struct RegionTokens {
  std::int32_t coord_id = 0;
  std::int32_t size_id = 0;
};

class RegionHeads {
 public:
  // coord_divisor, linear_sizes: as in DecodeRegionsParams.
  RegionHeads(const ModelContext& context, const RegionDecoderWeights& weights,
              const TextWorkspace& workspace, const RowState* row_states, RegionTokens tokens,
              int coord_divisor, bool linear_sizes)
      : context_(context),
        weights_(weights),
        workspace_(workspace),
        row_states_(row_states),
        tokens_(tokens),
        coord_divisor_(coord_divisor),
        linear_sizes_(linear_sizes) {}

  // For the rows of a step whose sampled token stands for a value and who ask for it
  // (kRowDecodesRegions): writes StepBuffers::values from StepBuffers::hidden.
  Status decode(Stream& stream, const StepBuffers& buffers, int num_rows) const;

 private:
  const ModelContext& context_;
  const RegionDecoderWeights& weights_;
  const TextWorkspace& workspace_;
  const RowState* row_states_;
  RegionTokens tokens_;
  int coord_divisor_;
  bool linear_sizes_;
};

}  // namespace gapless
