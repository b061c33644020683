#include "server/inference_service.h"

namespace gapless {
namespace {

Status not_recorded() {
  return make_error(StatusCode::kUnavailable, "this service records no timeline");
}

}  // namespace

StatusOr<std::vector<RequestId>> InferenceService::submit_choices(
    SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) {
  std::vector<RequestId> ids;
  for (std::shared_ptr<ResponseSink>& sink : sinks) {
    const StatusOr<RequestId> id = submit(request, std::move(sink));
    if (!id.ok()) {
      for (const RequestId accepted : ids) cancel(accepted);
      return id.status();
    }
    ids.push_back(*id);
    if (request.settings.seed) ++*request.settings.seed;
  }
  return ids;
}

StatusOr<ServiceTimeline> InferenceService::timeline(int) const {
  return not_recorded();
}

StatusOr<std::string> InferenceService::trace(int) const {
  return not_recorded();
}

Status InferenceService::set_depth(int) {
  return not_recorded();
}

}  // namespace gapless
