// The engines of all devices as the server's InferenceService.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_group.h"
#include "model/moondream/model_config.h"
#include "observe/trace.h"
#include "server/inference_service.h"

namespace gapless {

// What clients and examples call the published models whose shape this is. A model of another shape
// has its own name only.
std::vector<std::string> published_names(const ModelConfig& config);

// Of the last steps of each device.
std::vector<DeviceTrace> traces_of(const EngineGroup& engines, std::size_t most_steps = SIZE_MAX);

class EngineService final : public InferenceService {
 public:
  // `model`: the id that clients see; empty: the last part of the loaded model's name.
  EngineService(std::unique_ptr<EngineGroup> engines, std::string model);

  StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) override;
  StatusOr<std::vector<RequestId>> submit_choices(
      SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) override;
  void cancel(RequestId id) override;
  Status health() const override { return engines_->device_status(); }
  std::vector<std::string> lost_devices() const override { return engines_->lost_devices(); }
  ServiceInfo info() const override { return info_; }
  std::vector<ServiceMetrics> device_metrics() const override;
  StatusOr<std::vector<TokenId>> tokenize(std::string_view text) const override;
  StatusOr<std::string> detokenize(const std::vector<TokenId>& ids) const override;
  TokenId bos_id() const override;
  StatusOr<ServiceTimeline> timeline(int max_steps, std::string_view device = {}) const override;
  StatusOr<std::string> trace(int max_steps) const override;
  Status set_depth(int depth) override;

  // One request of each skill to each device, so that the first client finds every kernel and buffer
  // touched.
  Status warm_up();

 private:
  // What all have in common is asked of it.
  Engine& first() const { return engines_->engine(0); }
  static Status warm_up_one(Engine& engine);

  const std::unique_ptr<EngineGroup> engines_;
  // Of the devices: one that is lost need not be asked.
  std::vector<std::string> device_names_;
  ServiceInfo info_;
};

}  // namespace gapless
