#include "server/inference_service.h"

namespace gapless {
namespace {

Status not_recorded() {
  return make_error(StatusCode::kUnavailable, "this service records no timeline");
}

}  // namespace

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
