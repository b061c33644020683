// Writes what a planned step needs into a slot's pinned input block.
//
// Pure host work: reads the seats, writes pinned memory, touches no device. Threads: the engine
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/seating.h"
#include "pipeline/step_layout.h"
#include "step/step_model.h"

namespace gapless {

// One piece of the crops of an encode step: `bytes` from pinned memory to an offset of the crop
// buffer.
struct CropCopy {
  const std::uint8_t* from_pinned = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Lists of an encode step; capacity is reserved once.
struct EncodeLists {
  std::vector<EncodeImage> images;
  std::vector<CropCopy> copies;
};

// Shapes are those of the graph that takes the step, where there is one (step_graphs.h); what lies
// behind the plan's own is padding.
StepShape fill_decode(const StepPlan& plan, const StepLimits& limits, const StepInputs& inputs);

// Installs the rows and their page tables, and packs the prompts' tokens that are not in the cache.
StepShape fill_prefill(const StepPlan& plan, const StepLimits& limits, const Seating& seating,
                       int image_tokens, const StepInputs& inputs);

StepShape fill_encode(const StepPlan& plan, const Seating& seating, std::size_t crop_bytes,
                      EncodeLists& lists);

}  // namespace gapless
