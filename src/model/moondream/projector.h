// From an image's crop features to its 729 embeddings: stitch the tiles, pool them to the global
// crop's grid, put both side by side, and run a two-layer MLP.
#pragma once

#include "model/model_context.h"
#include "model/model_shape.h"
#include "model/moondream/model_weights.h"
#include "model/workspace.h"

namespace gapless {

struct TileGrid {
  int rows = 1;
  int cols = 1;
};

class Projector {
 public:
  Projector(const ModelContext& context, const VisionShape& shape, int overlap_margin,
            const ProjectorWeights& weights, const VisionWorkspace& workspace)
      : context_(context),
        shape_(shape),
        overlap_margin_(overlap_margin),
        weights_(weights),
        workspace_(workspace) {}

  // features: [num_crops*729, E] T, the global crop first, then the tiles row-major; with a 1x1
  // grid the global crop serves as the tile. embeddings: [729, D] T.
  Status project(Stream& stream, const void* features, TileGrid tiles, void* embeddings) const;

  // Tunes the products (Kernels::tune_linear; start-up).
  Status tune(Stream& stream) const;

 private:
  LinearParams mlp_in() const;
  LinearParams mlp_out(void* embeddings) const;

  const ModelContext& context_;
  const VisionShape& shape_;
  int overlap_margin_;
  const ProjectorWeights& weights_;
  const VisionWorkspace& workspace_;
};

}  // namespace gapless
