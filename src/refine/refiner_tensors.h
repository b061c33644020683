// The network that refines a segment's outline (published as moondream/SegHeadRefiner): its sizes and its tensors.
#pragma once

#include <filesystem>
#include <vector>

#include "base/status.h"
#include "weights/weight_map.h"

namespace gapless {

struct RefinerShape {
  static constexpr int kMasks = 4;  // candidates, of which it chooses one
  static constexpr int kTokens =
      kMasks + 1;  // one for each candidate, and one for how good they are
  static constexpr int kBlocks = 2;
  static constexpr int kHeads = 8;
  static constexpr int kFineHeads = 4;  // of the attention over the fine picture
  static constexpr int kMlpRatio = 8;

  int encoder_dim = 1152;  // of the vision encoder
  int dim = 256;           // a multiple of 32
  int grid = 27;           // patches per side of a crop

  int num_patches() const { return grid * grid; }
  int fine_dim() const { return dim / 8; }
  int fine_grid() const { return 8 * grid; }  // after three steps of 2
};

// The groups of the mask encoder's i-th norm, whose channels are dim/16, dim/8, dim/4 and dim.
int mask_encoder_channels(const RefinerShape& shape, int i);
int mask_encoder_groups(const RefinerShape& shape, int i);
inline constexpr int kFusionGroups = 32;

// Published names and shapes, as torch has them: convolutions [out, in, 3, 3], transposed ones [in, out, 2, 2].
std::vector<WeightSpec> refiner_tensors(const RefinerShape& shape);

// For the vision encoder of these sizes, as wide as the file says. The error names the file, what was found, and what is expected.
StatusOr<RefinerShape> refiner_shape_of(const std::filesystem::path& file, int encoder_dim,
                                        int grid);

}  // namespace gapless
