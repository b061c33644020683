#include "server/info_api.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/api_support.h"

namespace gapless {
namespace {

namespace json = boost::json;

// The name that clients use stands for the path, which is nobody's business.
json::object model_fields(const ServiceInfo& info) {
  return {{"model_path", info.model},
          {"served_model_name", info.model},
          {"tokenizer_path", info.model},
          {"model_type", info.family}};
}

void model_info(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  json::object answer = model_fields(info);
  answer["is_generation"] = true;
  // Every skill of Moondream's is about a picture.
  answer["has_image_understanding"] = info.has_skill("query") || info.has_skill("caption");
  answer["skills"] = json::array(info.skills.begin(), info.skills.end());
  answer["has_audio_understanding"] = false;
  answer["preferred_sampling_params"] = nullptr;
  respond_json(exchange, answer);
}

void server_info(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  const ServiceMetrics now = service->metrics();
  json::object answer = model_fields(info);
  answer["version"] = state.options().version;
  answer["status"] = "ready";
  answer["device"] = info.device;
  answer["dtype"] = info.weight_type;
  answer["tp_size"] = 1;
  answer["dp_size"] = 1;
  answer["context_length"] = info.max_context;
  answer["max_running_requests"] = info.max_running;
  answer["max_total_num_tokens"] = now.num_pages * now.page_tokens;
  answer["internal_states"] = json::array{
      json::object{{"num_running_reqs", now.num_running}, {"num_queue_reqs", now.num_waiting}}};
  respond_json(exchange, answer);
}

}  // namespace

void add_info_routes(Router& router, ServerState& state) {
  using ExchangePtr = std::shared_ptr<Exchange>;
  for (const char* path : {"/server_info", "/get_server_info"}) {
    router.add("GET", path, [&state](const ExchangePtr& exchange, std::string_view) {
      server_info(state, *exchange);
    });
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    router.add("GET", path, [&state](const ExchangePtr& exchange, std::string_view) {
      model_info(state, *exchange);
    });
  }
}

}  // namespace gapless
