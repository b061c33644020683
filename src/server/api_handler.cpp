#include "server/api_handler.h"

#include <algorithm>
#include <array>
#include <optional>

#include "server/api_support.h"
#include "server/debug_api.h"
#include "server/info_api.h"
#include "server/moondream_api.h"
#include "server/ollama_api.h"
#include "server/openai_api.h"
#include "server/operations_api.h"
#include "server/playground.h"
#include "server/router.h"

namespace gapless {
namespace {

enum class OriginVerdict { kNone, kSame, kAllowed, kForeign };

OriginVerdict judge_origin(const ServerState& state, const HttpHeaders& headers) {
  const std::string_view origin = headers.find("Origin");
  if (origin.empty()) return OriginVerdict::kNone;
  const std::size_t scheme_end = origin.find("://");
  if (scheme_end != std::string_view::npos &&
      equals_ignoring_case(origin.substr(scheme_end + 3), headers.find("Host"))) {
    return OriginVerdict::kSame;
  }
  const std::vector<std::string>& allowed = state.options().cors_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (any || std::find(allowed.begin(), allowed.end(), origin) != allowed.end()) {
    return OriginVerdict::kAllowed;
  }
  return OriginVerdict::kForeign;
}

// A page of another origin, or of none that can be told: browsers name neither in an Origin when
// such a page asks for a picture or a script.
bool is_from_another_site(const HttpHeaders& headers) {
  const std::string_view site = headers.find("Sec-Fetch-Site");
  return !site.empty() && site != "same-origin" && site != "none";
}

bool has_body(const HttpHeaders& headers) {
  const std::string_view length = headers.find("Content-Length");
  return headers.has("Transfer-Encoding") || (!length.empty() && length != "0");
}

bool needs_key(const HttpRequest& request) {
  constexpr std::array<std::string_view, 4> kOpen = {"/health", "/v1/health", "/ready", "/healthz"};
  if (has_body(request.headers)) return true;
  return request.method != "OPTIONS" && !is_playground_path(request.path) &&
         std::find(kOpen.begin(), kOpen.end(), request.path) == kOpen.end();
}

ApiError refusal(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

// Nothing: the request may come in.
std::optional<ApiError> judge(const ServerState& state, const HttpRequest& request,
                              std::string_view local_address, OriginVerdict origin, bool has_key) {
  // Browsers always send a Host; a client of HTTP/1.0 that does not is no page.
  const HttpHeaders& headers = request.headers;
  if (headers.has("Host") && !state.hosts().allows(headers.find("Host"), local_address)) {
    return refusal(403, "host_not_allowed",
                   "the Host header does not name this server; see --allowed-host");
  }
  if (origin == OriginVerdict::kForeign) {
    return refusal(403, "origin_not_allowed",
                   "pages of this origin may not use this server; see --cors-origin");
  }
  if (request.path.starts_with("/debug/") &&
      (origin == OriginVerdict::kAllowed || is_from_another_site(headers))) {
    return refusal(403, "origin_not_allowed", "only this server's own pages may see /debug/");
  }
  if (!has_key && needs_key(request)) {
    return refusal(
        401, "invalid_api_key",
        "a valid API key is needed: Authorization: Bearer KEY, or X-Moondream-Auth: KEY");
  }
  return std::nullopt;
}

HeadVerdict judge_head(const ServerState& state, const HttpRequest& request,
                       std::string_view local_address) {
  const OriginVerdict origin = judge_origin(state, request.headers);
  const bool has_key = state.keys().admit(request.headers);
  HeadVerdict verdict;
  if (const auto error = judge(state, request, local_address, origin, has_key)) {
    verdict.refusal = error_response(*error, error_style_of(request.path));
  }
  verdict.admitted = has_key && !verdict.refusal;
  if (origin == OriginVerdict::kAllowed) {
    verdict.headers.add("Access-Control-Allow-Origin", std::string(request.headers.find("Origin")));
    verdict.headers.add("Vary", "Origin");
    verdict.headers.add("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  }
  return verdict;
}

// A client's library brings headers of its own, such as OpenAI's X-Stainless-Lang: whatever an origin
// that is let in asks for.
void answer_preflight(Exchange& exchange) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers.add("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  const std::string_view asked = exchange.request().headers.find("Access-Control-Request-Headers");
  response.headers.add("Access-Control-Allow-Headers",
                       asked.empty() ? "Authorization, Content-Type, X-Moondream-Auth, X-Request-Id"
                                     : std::string(asked));
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

HttpHandlers make_api_handler(ServerState& state) {
  auto router = std::make_shared<Router>();
  add_operations_routes(*router, state);
  add_info_routes(*router, state);
  add_moondream_routes(*router, state);
  add_openai_routes(*router, state);
  add_ollama_routes(*router, state);
  add_debug_routes(*router, state);
  add_playground_routes(*router);
  HttpHandlers handlers;
  handlers.judge = [&state](const HttpRequest& head, std::string_view local_address) {
    return judge_head(state, head, local_address);
  };
  handlers.answer = [router](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().method == "OPTIONS") return answer_preflight(*exchange);
    route(*router, exchange);
  };
  return handlers;
}

}  // namespace gapless
