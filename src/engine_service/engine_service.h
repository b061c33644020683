// The engine as the server's InferenceService.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/inference_service.h"

namespace gapless {

class EngineService final : public InferenceService {
 public:
  // `model`: the id that clients see; empty: the last part of the loaded model's name.
  EngineService(std::unique_ptr<Engine> engine, std::string model);

  StatusOr<RequestId> submit(SkillRequest request, std::shared_ptr<ResponseSink> sink) override;
  StatusOr<std::vector<RequestId>> submit_choices(
      SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) override;
  void cancel(RequestId id) override;
  Status health() const override { return engine_->device_status(); }
  ServiceInfo info() const override { return info_; }
  ServiceMetrics metrics() const override;
  StatusOr<std::vector<TokenId>> tokenize(std::string_view text) const override;
  StatusOr<std::string> detokenize(const std::vector<TokenId>& ids) const override;
  TokenId bos_id() const override;
  StatusOr<ServiceTimeline> timeline(int max_steps) const override;
  StatusOr<std::string> trace(int max_steps) const override;
  Status set_depth(int depth) override;

  // One request of each skill, so that the first client finds every kernel and buffer touched.
  Status warm_up();

 private:
  const std::unique_ptr<Engine> engine_;
  ServiceInfo info_;
};

}  // namespace gapless
