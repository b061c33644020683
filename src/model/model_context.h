// What every part of the model needs to launch work. Lives as long as the model.
#pragma once

#include <fmt/format.h>

#include "kernels/kernels.h"
#include "model/model_weights.h"
#include "model/stage_recorder.h"

namespace gapless {

struct ModelContext {
  Kernels* kernels = nullptr;
  DType dtype = DType::kF32;          // T
  StageRecorder* recorder = nullptr;  // nullptr in production

  // Shows `data`, [num_rows, num_columns] T, to the recorder if there is one.
  Status record(Stream& stream, std::string_view stage, const void* data, std::int64_t num_rows,
                std::int64_t num_columns) const {
    if (recorder == nullptr) return ok_status();
    return recorder->record(stream, stage, {data, num_rows, num_columns, dtype});
  }
  // The same for stage "PREFIX.INDEX".
  Status record(Stream& stream, std::string_view prefix, int index, const void* data,
                std::int64_t num_rows, std::int64_t num_columns) const {
    if (recorder == nullptr) return ok_status();
    return recorder->record(stream, fmt::format("{}.{}", prefix, index),
                            {data, num_rows, num_columns, dtype});
  }
};

// y = x W^T + b on dense rows of type T.
inline LinearParams dense_linear(const ModelContext& context, const void* x,
                                 const LinearWeights& weights, void* y, int num_rows) {
  return {.x = x,
          .x_stride = weights.in,
          .weights = weights,
          .y = y,
          .y_stride = weights.out,
          .y_dtype = context.dtype,
          .num_rows = num_rows};
}

// y = input W^T + b + x. `x` may be y.
inline LinearParams residual_linear(const ModelContext& context, const void* input,
                                    const LinearWeights& weights, const void* x, void* y,
                                    int num_rows) {
  LinearParams params = dense_linear(context, input, weights, y, num_rows);
  params.residual = x;
  params.residual_stride = weights.out;
  params.residual_rows = num_rows;
  return params;
}

inline LayerNormParams dense_layer_norm(const void* x, const LayerNormWeights& weights, void* y,
                                        int num_rows) {
  return {.x = x,
          .x_stride = weights.dim,
          .gamma = weights.gamma,
          .beta = weights.beta,
          .y = y,
          .y_stride = weights.dim,
          .num_rows = num_rows,
          .dim = weights.dim};
}

}  // namespace gapless
