// The model behind the pipeline: Moondream's architecture, driven by its configuration, launched
// through the op table. The shipped small model and Moondream 2 share every line.
//
// Threads: launches come from one thread at a time (the engine's). Everything is allocated by
// create(); forward and sample only enqueue. All work goes to the stream given, and all launches
// must go to the same stream: they share one workspace (I1).
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "model/device_state.h"
#include "model/model_context.h"
#include "model/model_shape.h"
#include "model/model_weights.h"
#include "model/projector.h"
#include "model/region_heads.h"
#include "model/text_decoder.h"
#include "model/vision_encoder.h"
#include "model/workspace.h"
#include "step/step_model.h"

namespace gapless {

class VisionLanguageModel final : public StepModel {
 public:
  // `device` and `kernels` must outlive the model. Waits for the device (start-up).
  // InvalidArgument when the configuration's shapes do not fit together.
  static StatusOr<std::unique_ptr<VisionLanguageModel>> create(Device& device, Kernels& kernels,
                                                               const ModelConfig& config,
                                                               ModelWeights weights,
                                                               const StepLimits& limits,
                                                               KvFormat kv_format);

  const StepModelInfo& info() const override { return info_; }
  const StepLimits& limits() const override { return limits_; }
  // What a decode step of num_rows sequences of `context` tokens must move (decode_step_traffic).
  std::int64_t decode_step_bytes(int num_rows, int context) const;
  Status forward(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status project(Stream& compute, std::span<const EncodeImage> images,
                 const StepBuffers& buffers) override;
  Status sample(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status top_logprobs(Stream& compute, const StepShape& shape, const StepBuffers& buffers) override;
  Status stamp(Stream& compute, std::uint64_t* stamp_dev) override;

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  KvFormat kv_format() const { return kv_format_; }
  // The state across steps, for tests and tools.
  const DeviceState& state() const { return *state_; }

  // Tests and parity tools only; nullptr takes it away.
  void set_stage_recorder(StageRecorder* recorder) { context_.recorder = recorder; }

 private:
  VisionLanguageModel(Device& device, Kernels& kernels, const ModelConfig& config,
                      ModelWeights weights, const StepLimits& limits, KvFormat kv_format);

  Status prepare();           // allocates and fills everything but the weights
  Status upload_constants();  // normalisation and rope tables
  void build_parts();
  void log_decode_path() const;  // only where it is not the fastest
  Status tune();

  Status encode(Stream& compute, const StepShape& shape, const std::uint8_t* crops);
  Status prefill(Stream& compute, const StepShape& shape, const StepBuffers& buffers);
  Status decode(Stream& compute, const StepShape& shape, const StepBuffers& buffers);
  Status begin_step(Stream& compute, const StepBuffers& buffers);
  Status copy_pages(Stream& compute, const StepBuffers& buffers);
  Status embed(Stream& compute, EmbedParams params);
  std::byte* crop_features(int crop) const;
  Status record_outputs(Stream& compute, const StepBuffers& buffers, int num_rows);

  Device& device_;
  ModelConfig config_;
  StepLimits limits_;
  KvFormat kv_format_;
  StepModelInfo info_;
  VisionShape vision_shape_;
  TextShape text_shape_;
  ModelContext context_;
  ModelWeights weights_;
  Buffer constants_;  // normalisation table, rope table
  void* lut_dev_ = nullptr;
  float* rope_table_dev_ = nullptr;
  std::optional<Workspace> workspace_;
  std::optional<DeviceState> state_;
  std::optional<VisionEncoder> vision_encoder_;
  std::optional<Projector> projector_;
  std::optional<TextDecoder> text_decoder_;
  std::optional<RegionHeads> region_heads_;
};

}  // namespace gapless
