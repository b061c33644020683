#include "model/moondream/region_heads.h"

namespace gapless {

Status RegionHeads::decode(Stream& stream, const StepBuffers& buffers, int num_rows) const {
  DecodeRegionsParams params;
  params.hidden = buffers.hidden;
  params.tokens = buffers.tokens;
  params.rows = buffers.rows;
  params.row_states = row_states_;
  params.weights = weights_;
  params.values = buffers.values;
  params.confidences = buffers.confidences;
  params.num_rows = num_rows;
  params.dim = weights_.dim();
  params.coord_divisor = coord_divisor_;
  params.linear_sizes = linear_sizes_;
  params.coord_id = tokens_.coord_id;
  params.size_id = tokens_.size_id;
  params.scratch = workspace_.region_scratch;
  return context_.kernels->decode_regions(stream, params);
}

}  // namespace gapless
