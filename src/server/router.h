// From method and path to a handler.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"

namespace gapless {

// `rest`: what the path has behind a route that ends in "/*".
using Handler =
    std::function<void(const std::shared_ptr<Exchange>& exchange, std::string_view rest)>;

class Router {
 public:
  // `path`: exact, or with a last segment "*" that matches one or more characters, slashes too.
  void add(std::string_view method, std::string_view path, Handler handler);

  struct Match {
    const Handler* handler = nullptr;
    std::string_view rest;
    std::string allowed;  // no handler, but these methods have one ("GET, HEAD"): 405
  };
  // GET routes answer HEAD too. Exact routes win over patterns. `path` outlives the match.
  Match find(std::string_view method, std::string_view path) const;

 private:
  struct Route {
    std::string method;
    std::string path;  // without the '*'
    bool is_prefix = false;
    Handler handler;
  };
  static bool matches(const Route& route, std::string_view path);
  std::vector<Route> routes_;
};

}  // namespace gapless
