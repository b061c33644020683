// The text decoder: one forward for prefill and decode alike.
//
// What a block is, parallel or sequential, dense or with experts, its weights say (DecoderBlock in
// kernels/kernels.h). Keys and values go to the paged cache, and attention reads them from there
// alone.
#pragma once

#include <vector>

#include "model/device_state.h"
#include "model/model_context.h"
#include "model/model_shape.h"
#include "model/text_weights.h"
#include "model/workspace.h"

namespace gapless {

// What a launch runs: packed tokens of several sequences. Prefill takes it from the slot's inputs,
// decode from the plan made on the device.
struct DecoderBatch {
  void* x = nullptr;  // [num_tokens, D] T: embeddings in, hidden states before post_ln out
  const std::int32_t* positions = nullptr;       // [num_tokens]
  const std::int32_t* cache_slots = nullptr;     // [num_tokens]
  const AttentionSequence* sequences = nullptr;  // [num_sequences]
  const std::int32_t* rows = nullptr;            // decode: [num_sequences] (DecoderBlocksParams)
  int num_sequences = 0;
  int num_tokens = 0;
  int max_new_tokens = 1;  // of one sequence
  bool decode = false;     // one token per sequence: few rows
};

// The page tables of a batch's rows must be set.
class TextDecoder {
 public:
  TextDecoder(const ModelContext& context, const TextShape& shape, const TextWeights& weights,
              const TextWorkspace& workspace, const DeviceState& state, const float* rope_table_dev,
              ChosenExperts* chosen_experts_dev = nullptr);

  // Tunes the products of prefills of up to max_tokens tokens (Kernels::tune_linear; start-up).
  Status tune(Stream& stream, int max_tokens) const;

  // A prefill: hidden[i] is what becomes of token last_tokens[i]; batch.x is scratch. last_tokens:
  // [num_rows], device; hidden: [num_rows, D] T before post_ln.
  Status run_prefill(Stream& stream, const DecoderBatch& batch, const std::int32_t* last_tokens,
                     int num_rows, void* hidden) const;

  // A decode step: all blocks, then the logits that the plan says are needed (needed_logits.h), with a recorder all of
  // them. logits: [num_tokens, vocab] float32.
  Status run_decode(Stream& stream, const DecoderBatch& batch, float* logits) const;

  // Ok where the backend runs decode steps of num_rows rows in its fastest way; otherwise the reason
  // why it composes them of single ops (Kernels::check_fast_decoder).
  Status check_fast_decode(int num_rows) const;

  // hidden: [num_rows, D] T before post_ln; logits: [num_rows, vocab] float32.
  Status compute_logits(Stream& stream, const void* hidden, int num_rows, float* logits) const;

 private:
  // All blocks over batch.x in place, recording what comes out of each.
  Status record_blocks(Stream& stream, const DecoderBatch& batch) const;
  DecoderBlocksParams blocks_params(const DecoderBatch& batch) const;
  DecoderHead head(float* logits) const;

  const ModelContext& context_;
  const TextShape& shape_;
  const TextWeights& weights_;
  const TextWorkspace& workspace_;
  const DeviceState& state_;
  const float* rope_table_dev_;
  ChosenExperts* chosen_experts_dev_;  // nullptr: there are no experts
  std::vector<DecoderBlock> blocks_;
};

}  // namespace gapless
