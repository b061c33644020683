#include "server/api_handler.h"

#include <algorithm>
#include <array>

#include "server/api_support.h"
#include "server/debug_api.h"
#include "server/moondream_api.h"
#include "server/openai_api.h"
#include "server/operations_api.h"
#include "server/playground.h"
#include "server/router.h"

namespace gapless {
namespace {

enum class OriginVerdict { kSame, kAllowed, kForeign };

OriginVerdict judge_origin(const ServerState& state, std::string_view origin,
                           std::string_view host) {
  const std::vector<std::string>& allowed = state.options().cors_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (any || std::find(allowed.begin(), allowed.end(), origin) != allowed.end()) {
    return OriginVerdict::kAllowed;
  }
  const std::size_t scheme_end = origin.find("://");
  if (scheme_end != std::string_view::npos &&
      equals_ignoring_case(origin.substr(scheme_end + 3), host)) {
    return OriginVerdict::kSame;
  }
  return OriginVerdict::kForeign;
}

bool needs_key(std::string_view path) {
  constexpr std::array<std::string_view, 4> kOpen = {"/health", "/v1/health", "/ready", "/healthz"};
  return std::find(kOpen.begin(), kOpen.end(), path) == kOpen.end() && !is_playground_path(path);
}

// False: the exchange was answered.
bool pass_origin(const ServerState& state, Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string origin(request.headers.find("Origin"));
  if (origin.empty()) return true;
  const OriginVerdict verdict = judge_origin(state, origin, request.headers.find("Host"));
  if (verdict == OriginVerdict::kForeign) {
    ApiError error;
    error.status = 403;
    error.message = "pages of this origin may not use this server; see --cors-origin";
    error.code = "origin_not_allowed";
    respond_error(exchange, error);
    return false;
  }
  if (verdict == OriginVerdict::kAllowed) {
    exchange.add_header("Access-Control-Allow-Origin", origin);
    exchange.add_header("Vary", "Origin");
    exchange.add_header("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  }
  return true;
}

void answer_preflight(Exchange& exchange) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers.add("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  response.headers.add("Access-Control-Allow-Headers",
                       "Authorization, Content-Type, X-Moondream-Auth, X-Request-Id");
  response.headers.add("Access-Control-Max-Age", "600");
  exchange.respond(std::move(response));
}

void route(const Router& router, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const Router::Match match = router.find(request.method, request.path);
  if (match.handler != nullptr) return (*match.handler)(exchange, match.rest);
  ApiError error;
  error.status = match.allowed.empty() ? 404 : 405;
  error.message = match.allowed.empty() ? "there is nothing at this path"
                                        : "this path answers to " + match.allowed;
  error.code = match.allowed.empty() ? "not_found" : "method_not_allowed";
  if (!match.allowed.empty()) exchange->add_header("Allow", match.allowed);
  respond_error(*exchange, error);
}

}  // namespace

RequestHandler make_api_handler(ServerState& state) {
  auto router = std::make_shared<Router>();
  add_operations_routes(*router, state);
  add_moondream_routes(*router, state);
  add_openai_routes(*router, state);
  add_debug_routes(*router, state);
  add_playground_routes(*router);
  return [&state, router](const std::shared_ptr<Exchange>& exchange) {
    if (!pass_origin(state, *exchange)) return;
    const HttpRequest& request = exchange->request();
    if (request.method == "OPTIONS") return answer_preflight(*exchange);
    if (needs_key(request.path) && !state.keys().admit(request.headers)) {
      ApiError error;
      error.status = 401;
      error.message =
          "a valid API key is needed: Authorization: Bearer KEY, or X-Moondream-Auth: KEY";
      error.code = "invalid_api_key";
      return respond_error(*exchange, error);
    }
    route(*router, exchange);
  };
}

}  // namespace gapless
