// What a model takes on a device, known before it is loaded, and the choice of what fits.
//
// It is no formula beside the start-up: the start-up itself runs on a device without memory (device/dry_device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "model/load_source.h"
#include "model/memory_part.h"
#include "pipeline/loop.h"

namespace gapless {

// Of a GPU's memory, for what is allocated by nobody here: the driver's context, the kernels' code, graphs.
inline constexpr std::size_t kDriverBytes = std::size_t{768} << 20;

struct MemoryPlan {
  std::vector<MemoryPart> parts;  // of device memory, in the order of their allocation
  int max_rows = 0;               // sequences that run at once
  int max_context = 0;            // positions of each
  std::int64_t cache_tokens = 0;  // that have keys and values together
  bool is_small = false;          // StepSizing::kSmall

  std::size_t total_bytes() const;
};

// Of a model that runs.
MemoryPlan memory_of(const DecoderModel& model, const Loop& loop);

// "weights 3.60 GiB, ..., 5.31 GiB in all; 64 rows, ...": one line.
std::string describe(const MemoryPlan& plan);

// A table for a person, a line a part.
std::string memory_table(const MemoryPlan& plan);

// Options that fit, and what they take.
struct FittedModel {
  ModelOptions options;
  MemoryPlan plan;
};

// Chooses the room for steps and the keys' and values' share for max_bytes of device memory: as much as is usual, or
// little (StepSizing::kSmall) where that does not fit, and then with shared rows (ModelOptions::shares_rows). `device`: what the model will run on; of its memory only max_bytes
// counts. What `options` asks for is kept. ResourceExhausted: it does not fit; the error has the table and says which option
// would do, if one does.
StatusOr<FittedModel> fit_model(const DeviceInfo& device, std::size_t max_bytes,
                                const ModelSource& source, const ModelOptions& options,
                                const LoopOptions& loop);

// What the model takes with these options on this device, whose memory decides as at start-up.
StatusOr<MemoryPlan> plan_memory(const DeviceInfo& device, const ModelSource& source,
                                 const ModelOptions& options, const LoopOptions& loop);

}  // namespace gapless
