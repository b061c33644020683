#include "server/debug_api.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/api_support.h"
#include "server/json_body.h"

namespace gapless {
namespace {

namespace json = boost::json;

// What a page draws at once, and a trace of some seconds: more would hold up the engine for long.
constexpr int kTimelineSteps = 120;
constexpr int kTraceSteps = 1000;

void respond_failure(Exchange& exchange, const Status& status) {
  ApiError error = error_of_request(status);
  if (status.code() == StatusCode::kUnavailable) {
    error.status = 404;
    error.code = "not_found";
  }
  respond_error(exchange, error);
}

json::array interval(std::int64_t begin_ns, std::int64_t end_ns) {
  return {begin_ns, end_ns};
}

json::object to_json(const ServiceTimeline& timeline) {
  json::array steps;
  for (const TimelineStep& step : timeline.steps) {
    steps.push_back(
        json::object{{"number", step.number},
                     {"kind", step.kind},
                     {"rows", step.num_rows},
                     {"zombies", step.num_zombies},
                     {"forward", interval(step.forward_begin_ns, step.forward_end_ns)},
                     {"sampling", interval(step.sampling_begin_ns, step.sampling_end_ns)}});
  }
  json::array gaps;
  for (const ServiceTimeline::Gap& gap : timeline.gaps) {
    json::object entry{{"state", gap.state}, {"span", interval(gap.begin_ns, gap.end_ns)}};
    if (!gap.phase.empty()) entry["phase"] = gap.phase;
    gaps.push_back(std::move(entry));
  }
  json::array devices;
  for (const std::string& device : timeline.devices) devices.emplace_back(device);
  return {{"device", timeline.device}, {"devices", std::move(devices)},
          {"depth", timeline.depth},   {"max_depth", timeline.max_depth},
          {"steps", std::move(steps)}, {"gaps", std::move(gaps)}};
}

// DEVICE of "?device=DEVICE", the only parameter there is; empty without it.
StatusOr<std::string> device_of(std::string_view query) {
  constexpr std::string_view kName = "device=";
  std::string device;
  if (query.empty()) return device;
  if (query.starts_with(kName) && percent_decode(query.substr(kName.size()), device)) return device;
  return invalid_argument("the query may be device=NAME, with a device of /metrics");
}

void show_timeline(InferenceService& service, Exchange& exchange) {
  const StatusOr<std::string> device = device_of(exchange.request().query);
  if (!device.ok()) return respond_failure(exchange, device.status());
  const StatusOr<ServiceTimeline> timeline = service.timeline(kTimelineSteps, *device);
  if (!timeline.ok()) return respond_failure(exchange, timeline.status());
  respond_json(exchange, to_json(*timeline));
}

void download_trace(InferenceService& service, Exchange& exchange) {
  StatusOr<std::string> trace = service.trace(kTraceSteps);
  if (!trace.ok()) return respond_failure(exchange, trace.status());
  HttpResponse response;
  response.headers.add("Content-Disposition", "attachment; filename=\"gapless-trace.json\"");
  response.body = std::move(trace).value();
  exchange.respond(std::move(response));
}

void switch_depth(InferenceService& service, Exchange& exchange) {
  const std::optional<json::object> body = read_json_request(service.info(), exchange);
  if (!body) return;
  const auto depth = optional_integer(*body, "depth");
  if (!depth.ok()) return respond_failure(exchange, depth.status());
  if (!*depth || **depth < 1 || **depth > kMaxDepth) {
    return respond_failure(exchange, invalid_field("depth", "must be 1 to {}", kMaxDepth));
  }
  // A device that is not there is no reason to switch the others.
  const StatusOr<std::string> device = device_of(exchange.request().query);
  const Status shown = device.ok() ? service.timeline(0, *device).status() : device.status();
  if (!shown.ok()) return respond_failure(exchange, shown);
  const Status status = service.set_depth(static_cast<int>(**depth));
  if (!status.ok()) return respond_failure(exchange, status);
  show_timeline(service, exchange);
}

}  // namespace

void add_debug_routes(Router& router, ServerState& state) {
  if (!state.options().debug) return;
  const auto add = [&](std::string method, std::string path,
                       void (*handle)(InferenceService&, Exchange&)) {
    router.add(std::move(method), std::move(path),
               [&state, handle](const std::shared_ptr<Exchange>& exchange, std::string_view) {
                 InferenceService* service = ready_service(state, *exchange);
                 if (service != nullptr) handle(*service, *exchange);
               });
  };
  add("GET", "/debug/timeline", show_timeline);
  add("GET", "/debug/trace", download_trace);
  add("POST", "/debug/depth", switch_depth);
}

}  // namespace gapless
