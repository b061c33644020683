#include "server/ollama_api.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "base/json.h"
#include "server/api_support.h"
#include "server/json_body.h"
#include "server/ollama_request.h"
#include "server/ollama_responder.h"

namespace gapless {
namespace {

namespace json = boost::json;

// ---- asking

// The name that the body calls the model by; it is one of ours.
std::string requested_model(const json::object& body, const ServiceInfo& info) {
  const json::value* model = find_field(body, "model");
  return model != nullptr ? std::string(model->get_string()) : info.model;
}

// The model is loaded already. Ollama answers so too, one object, whether or not a stream was asked for.
void respond_loaded(OllamaRoute route, const std::string& model, Exchange& exchange) {
  json::object answer = ollama_answer_head(model);
  if (route == OllamaRoute::kChat) {
    answer["message"] = json::object{{"role", "assistant"}, {"content", ""}};
  } else {
    answer["response"] = "";
  }
  answer["done"] = true;
  answer["done_reason"] = "load";
  respond_json(exchange, answer);
}

void generate(ServerState& state, OllamaRoute route, const std::shared_ptr<Exchange>& exchange) {
  InferenceService* service = ready_service(state, *exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  std::optional<json::object> body = read_json_request(info, *exchange);
  if (!body) return;
  const std::string model = requested_model(*body, info);
  StatusOr<OllamaRequest> request = ollama_request_from_json(route, *body, info.takes_tools);
  if (!request.ok()) return respond_error(*exchange, error_of_request(request.status()));
  if (request->only_loads) return respond_loaded(route, model, *exchange);
  auto sink =
      std::make_shared<OllamaResponder>(state, exchange, route, model, request->chat.stream);
  SkillRequest skill = std::move(request->chat.skill);
  skill.received_ns = exchange->request().received_ns;
  const StatusOr<RequestId> id = service->submit(std::move(skill), std::move(sink));
  if (!id.ok()) {
    return respond_error(*exchange, error_of_submit(as_ollama_error(as_chat_error(id.status()))));
  }
  exchange->on_abort([service, id = *id] { service->cancel(id); });
}

// ---- what is there

// "1.9B", "27M"
std::string parameter_size(std::int64_t count) {
  const auto number = static_cast<double>(count);
  if (number >= 1e9) return fmt::format("{:.1f}B", number / 1e9);
  return fmt::format("{:.0f}M", number / 1e6);
}

json::object model_details(const ServiceInfo& info) {
  return {{"parent_model", ""},
          {"format", "safetensors"},
          {"family", info.family},
          {"families", json::array{info.family}},
          {"parameter_size", parameter_size(info.num_parameters)},
          {"quantization_level", info.weight_type}};
}

std::string start_time(const ServerState& state) {
  return rfc3339_time(std::chrono::system_clock::from_time_t(state.started_unix_s()));
}

// What lists of stored and of running models say alike. Ollama's names have tags.
json::object model_entry(const ServiceInfo& info) {
  const std::string name =
      info.model.find(':') == std::string::npos ? info.model + ":latest" : info.model;
  return {{"name", name},
          {"model", name},
          {"size", info.weight_bytes},
          {"digest", info.digest},
          {"details", model_details(info)}};
}

void list_stored(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  json::object entry = model_entry(service->info());
  entry["modified_at"] = start_time(state);
  respond_json(exchange, json::object{{"models", json::array{std::move(entry)}}});
}

void list_running(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  json::object entry = model_entry(info);
  entry["expires_at"] = "9999-12-31T23:59:59Z";  // it is never unloaded
  entry["size_vram"] = info.on_gpu ? info.weight_bytes : 0;
  entry["context_length"] = info.max_context;
  respond_json(exchange, json::object{{"models", json::array{std::move(entry)}}});
}

// The body of a request that names a model ("model", once "name") and no more. False: it was answered.
bool asks_for_our_model(const ServiceInfo& info, Exchange& exchange) {
  const std::optional<json::object> body = read_json_request(info, exchange);
  return body && names_our_model(info, exchange, *body, "name");
}

void show(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  if (!asks_for_our_model(info, exchange)) return;
  json::object facts = {{"general.architecture", info.family},
                        {"general.basename", info.model},
                        {"general.parameter_count", info.num_parameters},
                        {info.family + ".context_length", info.max_context}};
  respond_json(exchange, json::object{{"modelfile", fmt::format("FROM {}\n", info.model)},
                                      {"parameters", ""},
                                      {"template", "{{ .Prompt }}"},
                                      {"details", model_details(info)},
                                      {"model_info", std::move(facts)},
                                      {"capabilities", json::array{"completion", "vision"}},
                                      {"modified_at", start_time(state)}});
}

// Home Assistant pulls what the list does not name, such as "moondream:latest" for another name of ours.
void pull(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr || !asks_for_our_model(service->info(), exchange)) return;
  respond_json(exchange, json::object{{"status", "success"}});
}

}  // namespace

void add_ollama_routes(Router& router, ServerState& state) {
  using ExchangePtr = std::shared_ptr<Exchange>;
  const auto add_generation = [&](const char* path, OllamaRoute route) {
    router.add("POST", path, [&state, route](const ExchangePtr& exchange, std::string_view) {
      generate(state, route, exchange);
    });
  };
  const auto add = [&](const char* method, const char* path,
                       void (*handle)(ServerState&, Exchange&)) {
    router.add(method, path, [&state, handle](const ExchangePtr& exchange, std::string_view) {
      handle(state, *exchange);
    });
  };
  add_generation("/api/chat", OllamaRoute::kChat);
  add_generation("/api/generate", OllamaRoute::kGenerate);
  add("GET", "/api/tags", list_stored);
  add("GET", "/api/ps", list_running);
  add("POST", "/api/show", show);
  add("POST", "/api/pull", pull);
  router.add("GET", "/api/version", [&state](const ExchangePtr& exchange, std::string_view) {
    respond_json(*exchange, json::object{{"version", state.options().version}});
  });
}

}  // namespace gapless
