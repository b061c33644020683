#include "server/operations_api.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/api_support.h"

namespace gapless {
namespace {

namespace json = boost::json;

// With the devices that are lost, where others go on without them.
void respond_alive(const InferenceService* service, Exchange& exchange, json::object answer) {
  json::array lost;
  if (service != nullptr) {
    for (const std::string& device : service->lost_devices()) lost.emplace_back(device);
  }
  if (!lost.empty()) answer["lost_devices"] = std::move(lost);
  respond_json(exchange, answer);
}

void ready(ServerState& state, Exchange& exchange) {
  if (state.draining()) {
    return respond_error(exchange, not_ready_error("the server is shutting down"));
  }
  const InferenceService* service = ready_service(state, exchange);
  if (service != nullptr) respond_alive(service, exchange, {{"status", "ready"}});
}

void metrics(ServerState& state, Exchange& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = state.metrics().text(state.service());
  exchange.respond(std::move(response));
}

}  // namespace

void add_operations_routes(Router& router, ServerState& state) {
  using ExchangePtr = std::shared_ptr<Exchange>;
  const auto health = [&state](const ExchangePtr& exchange, std::string_view) {
    respond_alive(state.service(), *exchange, {{"status", "ok"}, {"server", "gapless"}});
  };
  router.add("GET", "/health", health);
  router.add("GET", "/v1/health", health);
  for (const char* path : {"/ready", "/healthz"}) {
    router.add("GET", path, [&state](const ExchangePtr& exchange, std::string_view) {
      ready(state, *exchange);
    });
  }
  router.add("GET", "/metrics", [&state](const ExchangePtr& exchange, std::string_view) {
    metrics(state, *exchange);
  });
  router.add("GET", "/version", [&state](const ExchangePtr& exchange, std::string_view) {
    respond_json(*exchange, json::object{{"version", state.options().version}});
  });
}

}  // namespace gapless
