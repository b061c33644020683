#include "server/inference_service.h"

namespace gapless {
namespace {

Status not_recorded() {
  return make_error(StatusCode::kUnavailable, "this service records no timeline");
}

// Of all devices, by name in the order of the first.
void add_times(std::vector<ServiceMetrics::NamedTime>& sum,
               const std::vector<ServiceMetrics::NamedTime>& times) {
  for (const auto& [name, seconds] : times) {
    const auto same =
        std::find_if(sum.begin(), sum.end(), [&](const auto& one) { return one.name == name; });
    if (same == sum.end()) {
      sum.push_back({name, seconds});
    } else {
      same->seconds += seconds;
    }
  }
}

}  // namespace

ServiceMetrics sum_of(const std::vector<ServiceMetrics>& devices) {
  ServiceMetrics sum;
  double pages_held = 0;
  for (const ServiceMetrics& one : devices) {
    sum.num_running += one.num_running;
    sum.num_waiting += one.num_waiting;
    pages_held += one.kv_usage * one.num_pages;
    sum.num_pages += one.num_pages;
    sum.page_tokens = one.page_tokens;
    sum.num_pictures_waiting += one.num_pictures_waiting;
    sum.picture_memory_bytes += one.picture_memory_bytes;
    sum.busy_s += one.busy_s;
    sum.preparing_s += one.preparing_s;
    sum.starved_s += one.starved_s;
    sum.bubble_s += one.bubble_s;
    add_times(sum.bubble_by_phase, one.bubble_by_phase);
    add_times(sum.host_work_by_phase, one.host_work_by_phase);
    add_times(sum.device_by_step, one.device_by_step);
    sum.num_encode_steps += one.num_encode_steps;
    sum.num_prefill_steps += one.num_prefill_steps;
    sum.num_decode_steps += one.num_decode_steps;
    sum.num_decode_rows += one.num_decode_rows;
    sum.num_zombie_rows += one.num_zombie_rows;
    sum.num_forbidden_calls += one.num_forbidden_calls;
  }
  if (sum.num_pages > 0) sum.kv_usage = pages_held / sum.num_pages;
  return sum;
}

StatusOr<std::vector<RequestId>> InferenceService::submit_choices(
    SkillRequest request, std::vector<std::shared_ptr<ResponseSink>> sinks) {
  GAPLESS_RETURN_IF_ERROR(validate(request));
  std::vector<RequestId> ids;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const StatusOr<RequestId> id = submit(request_of_choice(request, i), std::move(sinks[i]));
    if (!id.ok()) {
      for (const RequestId accepted : ids) cancel(accepted);
      return id.status();
    }
    ids.push_back(*id);
    if (request.settings.seed) ++*request.settings.seed;
  }
  return ids;
}

StatusOr<ServiceTimeline> InferenceService::timeline(int, std::string_view) const {
  return not_recorded();
}

StatusOr<std::string> InferenceService::trace(int) const {
  return not_recorded();
}

Status InferenceService::set_depth(int) {
  return not_recorded();
}

}  // namespace gapless
