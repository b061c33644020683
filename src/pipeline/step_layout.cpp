#include "pipeline/step_layout.h"

namespace gapless {
namespace {

constexpr std::size_t kAlignment = 16;

// Hands out aligned places one behind the other. Without a base it only measures.
class Packer {
 public:
  explicit Packer(void* base) : base_(static_cast<std::byte*>(base)) {}

  template <typename T>
  void place(T*& field, int count) {
    if (base_ != nullptr) field = reinterpret_cast<T*>(base_ + offset_);
    const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(count);
    offset_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::size_t offset() const { return offset_; }

 private:
  std::byte* base_;
  std::size_t offset_ = 0;
};

void place_decode(Packer& packer, const StepLimits& limits, StepInputs& inputs) {
  packer.place(inputs.num_installs, 1);
  packer.place(inputs.num_deltas, 1);
  packer.place(inputs.num_copies, 1);
  packer.place(inputs.rows, limits.max_step_rows());
}

void place_prefill(Packer& packer, const StepLimits& limits, StepInputs& inputs) {
  packer.place(inputs.install_rows, limits.max_prefill_sequences);
  packer.place(inputs.installs, limits.max_prefill_sequences);
  packer.place(inputs.deltas, limits.max_page_deltas);
  packer.place(inputs.copies, limits.max_page_copies);
  packer.place(inputs.inputs, limits.max_prefill_tokens);
  packer.place(inputs.positions, limits.max_prefill_tokens);
  packer.place(inputs.cache_slots, limits.max_prefill_tokens);
  packer.place(inputs.sequences, limits.max_prefill_sequences);
  packer.place(inputs.last_tokens, limits.max_prefill_sequences);
  packer.place(inputs.tokens_consumed, limits.max_prefill_sequences);
  packer.place(inputs.first_notes, limits.max_prefill_sequences + 1);
}

void place_notes(Packer& packer, const StepLimits& limits, StepInputs& inputs) {
  packer.place(inputs.notes, max_token_notes(limits));
}

}  // namespace

StepLayout::StepLayout(const StepLimits& limits) : limits_(limits) {
  StepInputs unused;
  Packer packer(nullptr);
  place_decode(packer, limits_, unused);
  decode_bytes_ = packer.offset();
  place_prefill(packer, limits_, unused);
  prefill_bytes_ = packer.offset();
  place_notes(packer, limits_, unused);
  total_bytes_ = packer.offset();
}

StepInputs StepLayout::at(void* base) const {
  StepInputs inputs;
  Packer packer(base);
  place_decode(packer, limits_, inputs);
  place_prefill(packer, limits_, inputs);
  place_notes(packer, limits_, inputs);
  return inputs;
}

void point_at(const StepInputs& inputs_dev, StepBuffers& buffers) {
  buffers.num_installs = inputs_dev.num_installs;
  buffers.num_deltas = inputs_dev.num_deltas;
  buffers.num_copies = inputs_dev.num_copies;
  buffers.rows = inputs_dev.rows;
  buffers.install_rows = inputs_dev.install_rows;
  buffers.installs = inputs_dev.installs;
  buffers.deltas = inputs_dev.deltas;
  buffers.copies = inputs_dev.copies;
  buffers.inputs = inputs_dev.inputs;
  buffers.positions = inputs_dev.positions;
  buffers.cache_slots = inputs_dev.cache_slots;
  buffers.sequences = inputs_dev.sequences;
  buffers.last_tokens = inputs_dev.last_tokens;
  buffers.tokens_consumed = inputs_dev.tokens_consumed;
  buffers.first_notes = inputs_dev.first_notes;
  buffers.notes = inputs_dev.notes;
}

}  // namespace gapless
