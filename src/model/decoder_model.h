// A text decoder behind the pipeline: what the step models of all families share. Prefill, decode and sampling
// are written here once, over the op table; a family with pictures adds its encoder (VisionLanguageModel).
//
// Threads: launches come from one thread at a time (the engine's). Everything is allocated before the first
// step; forward and sample only enqueue. All work goes to the stream given, and all launches must go to the
// same stream: they share one workspace (I1).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/device_grammars.h"
#include "model/device_state.h"
#include "model/memory_part.h"
#include "model/model_context.h"
#include "model/model_shape.h"
#include "model/text_decoder.h"
#include "model/text_weights.h"
#include "model/workspace.h"
#include "step/step_model.h"

namespace gapless {

class DecoderModel : public StepModel {
 public:
  const StepModelInfo& info() const override { return info_; }
  const StepLimits& limits() const override { return limits_; }
  // What a decode step of num_rows sequences of `context` tokens must move (decode_step_traffic).
  std::int64_t decode_step_bytes(int num_rows, int context,
                                 std::optional<double> experts = std::nullopt) const;
  // What decode steps that were one launch have read since the start. Waits for the device; for measurements.
  StatusOr<ChosenExperts> chosen_experts() const;
  Status forward(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status project(Stream& compute, std::span<const EncodeImage> images,
                 const StepBuffers& buffers) override;
  Status sample(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status top_logprobs(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status stamp(Stream& compute, std::uint64_t* stamp_dev) override;

  // From now on rows may be held to grammars over these tokens (device_grammars.h). Start-up, before there is a loop.
  Status hold_grammars(const std::vector<std::string>& texts, std::int32_t eos_id,
                       std::size_t table_bytes);
  // nullptr: rows may not.
  DeviceGrammars* grammars() const { return grammars_.get(); }

  // What lies on the device, in the order of its allocation; small tables are left out.
  std::vector<MemoryPart> memory_parts() const;

  virtual const DecoderWeights& weights() const = 0;
  const ModelShape& shape() const { return shape_; }
  KvFormat kv_format() const { return kv_format_; }
  // The state across steps, for tests and tools.
  const DeviceState& state() const { return *state_; }

  // Tests and parity tools only; nullptr takes it away.
  void set_stage_recorder(StageRecorder* recorder) { context_.recorder = recorder; }

 protected:
  // `device` and `kernels` must outlive the model.
  DecoderModel(Device& device, Kernels& kernels, const ModelShape& shape, const StepLimits& limits,
               KvFormat kv_format);

  // Allocates and fills everything but the weights; waits for the device (start-up). rope_table: of
  // make_rope_table.
  Status prepare(std::span<const float> rope_table, std::span<const AutomatonState> automata,
                 std::span<const std::uint8_t> token_classes);
  // Says in the log where decode steps do not take the fastest path.
  void log_decode_path() const;
  // Tunes the decoder's products, and what a family adds.
  virtual Status tune(Stream& stream);

  // Without an encoder nobody asks for these.
  virtual Status encode(Stream& compute, const StepShape& shape, const std::uint8_t* crops);
  virtual Status decode_regions(Stream& compute, const StepBuffers& buffers, int num_rows);

  Device& device_;
  const StepLimits limits_;
  const KvFormat kv_format_;
  const ModelShape shape_;
  StepModelInfo info_;
  ModelContext context_;
  // Of a family whose prompts hold coordinates and sizes.
  RegionEncoderWeights region_encoder_;
  std::int32_t coord_id_ = -1, size_id_ = -1;
  std::optional<Workspace> workspace_;
  std::optional<DeviceState> state_;

 private:
  Status upload_rope_table(Stream& stream, std::span<const float> table);
  Status prefill(Stream& compute, const StepShape& shape, const StepBuffers& buffers);
  Status decode(Stream& compute, const StepShape& shape, const StepBuffers& buffers);
  Status begin_step(Stream& compute, const StepBuffers& buffers);
  Status copy_pages(Stream& compute, const StepBuffers& buffers);
  Status embed(Stream& compute, EmbedParams params);
  Status record_outputs(Stream& compute, const StepBuffers& buffers, int num_rows);

  Buffer rope_table_;
  Buffer chosen_experts_;  // ChosenExperts; empty without experts
  std::unique_ptr<DeviceGrammars> grammars_;
  std::optional<TextDecoder> text_decoder_;
};

// A family that has nothing but its decoder.
class TextModel final : public DecoderModel {
 public:
  static StatusOr<std::unique_ptr<TextModel>> create(Device& device, Kernels& kernels,
                                                     const TextShape& shape, DecoderWeights weights,
                                                     std::span<const float> rope_table,
                                                     const StepLimits& limits, KvFormat kv_format);

  const DecoderWeights& weights() const override { return weights_; }

 private:
  TextModel(Device& device, Kernels& kernels, const TextShape& shape, DecoderWeights weights,
            const StepLimits& limits, KvFormat kv_format)
      : DecoderModel(device, kernels, {.text = shape, .vision = {}, .region = {}}, limits,
                     kv_format),
        weights_(std::move(weights)) {}

  DecoderWeights weights_;
};

}  // namespace gapless
