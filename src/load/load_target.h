// Whom to ask, and what: a server's address and the requests for it, one per picture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace gapless {

enum class LoadApi { kMoondream, kOpenai };

struct ServerUrl {
  std::string host;
  std::string port;    // as text, for the resolver
  std::string prefix;  // "" or "/gateway": goes in front of every path
};

// "http://host[:port][/prefix]"; a closing "/v1" belongs to the paths and is dropped.
// InvalidArgument: another scheme, no host.
StatusOr<ServerUrl> parse_server_url(std::string_view url);

struct LoadWorkload {
  LoadApi api = LoadApi::kMoondream;
  std::string skill = "query";  // query, caption, point, detect
  std::string text;             // question or object; captions have none
  std::string model;            // empty: none is named
  std::string api_key;
  int max_tokens = 30;
  bool ignore_eos = true;  // every answer has max_tokens tokens
  double temperature = 0;
  // Encoded files. Empty: text alone, one request.
  std::vector<std::string> pictures;
};

// Requests ready to be sent, whole: head and body.
struct LoadRequests {
  LoadApi api = LoadApi::kMoondream;
  bool streams = true;  // point and detect answer at once
  std::vector<std::string> bytes;
};

// InvalidArgument: an unknown skill.
StatusOr<LoadRequests> make_load_requests(const ServerUrl& url, const LoadWorkload& workload);

}  // namespace gapless
