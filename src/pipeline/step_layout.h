// The packed input block of a step slot: every input of every kind of step at a fixed offset, the
// same in pinned memory and on the device, so that one copy uploads a step.
//
//   offset 0                          decode_bytes                        prefill_bytes   total_bytes
//   | num_installs num_deltas num_copies | rows | install_rows | installs | deltas | copies |
//     inputs | positions | cache_slots | sequences | last_tokens | tokens_consumed | first_notes | notes |
//
// A decode step needs the first part only: the list of rows is all that changes (with three zeros). Of
// the notes a prefill uploads those that it has, usually none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "step/row_state.h"
#include "step/step_model.h"

namespace gapless {

// The block's fields at one base address; shapes as in StepBuffers.
struct StepInputs {
  std::int32_t* num_installs = nullptr;
  std::int32_t* num_deltas = nullptr;
  std::int32_t* num_copies = nullptr;
  std::int32_t* rows = nullptr;
  std::int32_t* install_rows = nullptr;
  RowState* installs = nullptr;
  PageTableDelta* deltas = nullptr;
  PageCopy* copies = nullptr;
  TokenInput* inputs = nullptr;
  std::int32_t* positions = nullptr;
  std::int32_t* cache_slots = nullptr;
  AttentionSequence* sequences = nullptr;
  std::int32_t* last_tokens = nullptr;
  std::int32_t* tokens_consumed = nullptr;
  std::int32_t* first_notes = nullptr;
  TokenNote* notes = nullptr;
};

class StepLayout {
 public:
  explicit StepLayout(const StepLimits& limits);

  std::size_t decode_bytes() const { return decode_bytes_; }
  std::size_t prefill_bytes(int num_token_notes) const {
    return prefill_bytes_ + sizeof(TokenNote) * static_cast<std::size_t>(num_token_notes);
  }
  std::size_t total_bytes() const { return total_bytes_; }
  StepInputs at(void* base) const;

 private:
  StepLimits limits_;
  std::size_t decode_bytes_ = 0;
  std::size_t prefill_bytes_ = 0;  // without notes
  std::size_t total_bytes_ = 0;
};

// Fills the input pointers of `buffers`.
void point_at(const StepInputs& inputs_dev, StepBuffers& buffers);

}  // namespace gapless
