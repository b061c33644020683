// What every part of the model needs to launch work. Lives as long as the model.
#pragma once

#include <fmt/format.h>

#include "kernels/kernels.h"
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

}  // namespace gapless
