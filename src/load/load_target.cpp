#include "load/load_target.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "base/base64.h"
#include "base/json.h"

namespace gapless {
namespace {

namespace json = boost::json;

std::string data_uri(std::string_view picture) {
  // The media type is a courtesy: servers look at the bytes.
  const bool png = picture.starts_with("\x89PNG");
  return fmt::format("data:image/{};base64,{}", png ? "png" : "jpeg", encode_base64(picture));
}

bool has_text_answer(std::string_view skill) {
  return skill == "query" || skill == "caption";
}

json::object moondream_body(const LoadWorkload& workload, const std::string& image_url) {
  json::object body;
  if (!workload.model.empty()) body["model"] = workload.model;
  if (!image_url.empty()) body["image_url"] = image_url;
  if (workload.skill == "query") body["question"] = workload.text;
  if (!has_text_answer(workload.skill)) body["object"] = workload.text;
  if (has_text_answer(workload.skill)) {
    body["stream"] = true;
    body["settings"] = {{"max_tokens", workload.max_tokens},
                        {"ignore_eos", workload.ignore_eos},
                        {"temperature", workload.temperature}};
  }
  return body;
}

// Skills other than query need gapless's extension; query is what any server understands.
json::object openai_body(const LoadWorkload& workload, const std::string& image_url) {
  json::array parts;
  if (!image_url.empty()) {
    parts.push_back({{"type", "image_url"}, {"image_url", {{"url", image_url}}}});
  }
  if (workload.skill == "query") parts.push_back({{"type", "text"}, {"text", workload.text}});
  json::object body;
  if (!workload.model.empty()) body["model"] = workload.model;
  body["messages"] = json::array{json::object{{"role", "user"}, {"content", std::move(parts)}}};
  body["max_tokens"] = workload.max_tokens;
  body["temperature"] = workload.temperature;
  if (workload.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (workload.skill != "query") {
    json::object extension{{"skill", workload.skill}};
    if (!has_text_answer(workload.skill)) extension["object"] = workload.text;
    body["moondream"] = std::move(extension);
  }
  return body;
}

}  // namespace

StatusOr<ServerUrl> parse_server_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    return invalid_argument("'{}': an address such as http://127.0.0.1:2020 is needed", url);
  }
  std::string_view rest = url.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  std::string_view prefix = slash == std::string_view::npos ? "" : rest.substr(slash);
  rest = rest.substr(0, slash);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (prefix.ends_with("/v1")) prefix.remove_suffix(3);
  const std::size_t bracket = rest.rfind(']');  // of an IPv6 address
  const std::size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  ServerUrl parsed;
  parsed.host = rest.substr(0, colon);
  if (parsed.host.starts_with('[') && parsed.host.ends_with(']')) {
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  }
  parsed.port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  parsed.prefix = prefix;
  if (parsed.host.empty() || parsed.port.empty()) {
    return invalid_argument("'{}' names no host or no port", url);
  }
  return parsed;
}

StatusOr<LoadRequests> make_load_requests(const ServerUrl& url, const LoadWorkload& workload) {
  if (!has_text_answer(workload.skill) && workload.skill != "point" && workload.skill != "detect") {
    return invalid_argument("'{}' is no skill: query, caption, point and detect are",
                            workload.skill);
  }
  const bool moondream = workload.api == LoadApi::kMoondream;
  LoadRequests requests;
  requests.api = workload.api;
  requests.streams = !moondream || has_text_answer(workload.skill);
  const std::string path =
      url.prefix + "/v1/" + (moondream ? workload.skill : std::string("chat/completions"));
  const std::string authorization =
      workload.api_key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", workload.api_key);
  for (std::size_t i = 0; i < std::max<std::size_t>(1, workload.pictures.size()); ++i) {
    const std::string image = workload.pictures.empty() ? "" : data_uri(workload.pictures[i]);
    const std::string body =
        json_text(moondream ? moondream_body(workload, image) : openai_body(workload, image));
    requests.bytes.push_back(
        fmt::format("POST {} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: gapless-bench\r\n{}"
                    "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                    path, url.host, url.port, authorization, body.size(), body));
  }
  return requests;
}

}  // namespace gapless
