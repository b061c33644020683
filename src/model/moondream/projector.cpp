#include "model/moondream/projector.h"

#include "kernels/dense_ops.h"
#include "kernels/restored_linear.h"

namespace gapless {

Status Projector::project(Stream& stream, const void* features, TileGrid tiles,
                          void* embeddings) const {
  Kernels& kernels = *context_.kernels;
  const int rows = shape_.patches_per_crop;
  StitchAndPoolParams pool;
  pool.features = features;
  pool.out = workspace_.pooled;
  pool.tile_rows = tiles.rows;
  pool.tile_cols = tiles.cols;
  pool.grid = shape_.grid;
  pool.overlap_margin = overlap_margin_;
  pool.dim = shape_.dim;
  GAPLESS_RETURN_IF_ERROR(kernels.stitch_and_pool(stream, pool));
  GAPLESS_RETURN_IF_ERROR(
      context_.record(stream, "vision.pooled", workspace_.pooled, rows, 2 * shape_.dim));

  GAPLESS_RETURN_IF_ERROR(restored_linear(kernels, stream, mlp_in()));
  GAPLESS_RETURN_IF_ERROR(restored_linear(kernels, stream, mlp_out(embeddings)));
  return context_.record(stream, "vision.projection", embeddings, rows, weights_.fc2.out);
}

LinearParams Projector::mlp_in() const {
  LinearParams params = dense_linear(*context_.kernels, workspace_.pooled, weights_.fc1,
                                     workspace_.projector_inner, shape_.patches_per_crop);
  params.activation = Activation::kGeluTanh;
  return params;
}

LinearParams Projector::mlp_out(void* embeddings) const {
  return dense_linear(*context_.kernels, workspace_.projector_inner, weights_.fc2, embeddings,
                      shape_.patches_per_crop);
}

Status Projector::tune(Stream& stream) const {
  const int rows = shape_.patches_per_crop;
  GAPLESS_RETURN_IF_ERROR(context_.kernels->tune_linear(stream, mlp_in(), {&rows, 1}));
  return context_.kernels->tune_linear(stream, mlp_out(nullptr), {&rows, 1});
}

}  // namespace gapless
