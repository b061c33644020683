#include "server/operations_api.h"

#include <boost/json/object.hpp>

#include "server/api_support.h"

namespace gapless {
namespace {

namespace json = boost::json;

void ready(ServerState& state, Exchange& exchange) {
  if (state.draining()) {
    return respond_error(exchange, not_ready_error("the server is shutting down"));
  }
  if (ready_service(state, exchange) == nullptr) return;
  respond_json(exchange, json::object{{"status", "ready"}});
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
  const auto health = [](const ExchangePtr& exchange, std::string_view) {
    respond_json(*exchange, json::object{{"status", "ok"}, {"server", "gapless"}});
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
