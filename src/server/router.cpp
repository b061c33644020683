#include "server/router.h"

namespace gapless {

void Router::add(std::string_view method, std::string_view path, Handler handler) {
  Route route{std::string(method), std::string(path), path.ends_with("/*"), std::move(handler)};
  if (route.is_prefix) route.path.pop_back();
  routes_.push_back(std::move(route));
}

bool Router::matches(const Route& route, std::string_view path) {
  if (!route.is_prefix) return path == route.path;
  return path.size() > route.path.size() && path.starts_with(route.path);
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match match;
  for (const bool prefix : {false, true}) {
    for (const Route& route : routes_) {
      if (route.is_prefix != prefix || !matches(route, path)) continue;
      if (route.method == method || (method == "HEAD" && route.method == "GET")) {
        match.handler = &route.handler;
        if (prefix) match.rest = path.substr(route.path.size());
        return match;
      }
      if (!match.allowed.empty()) match.allowed += ", ";
      match.allowed += route.method == "GET" ? "GET, HEAD" : route.method;
    }
  }
  return match;
}

}  // namespace gapless
