#include "server/openai_api.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "base/limits.h"
#include "server/api_support.h"
#include "server/chat_responder.h"
#include "server/completion_request.h"
#include "server/json_body.h"
#include "server/remote_images.h"
#include "text/utf8.h"

namespace gapless {
namespace {

namespace json = boost::json;

json::object model_json(const ServerState& state, const ServiceInfo& info) {
  return {{"id", info.model},
          {"object", "model"},
          {"created", state.started_unix_s()},
          {"owned_by", "gapless"},
          {"root", info.model},
          {"parent", nullptr},
          {"max_model_len", info.max_context}};
}

void list_models(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  json::array models{model_json(state, service->info())};
  respond_json(exchange, json::object{{"object", "list"}, {"data", std::move(models)}});
}

void show_model(ServerState& state, Exchange& exchange, std::string_view name) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  if (info.is_named(name)) return respond_json(exchange, model_json(state, info));
  respond_error(exchange, model_not_found_error(info, name));
}

void submit_chat(ServerState& state, const std::shared_ptr<Exchange>& exchange,
                 StatusOr<ChatRequest> request) {
  InferenceService* service = ready_service(state, *exchange);
  if (service == nullptr) return;
  if (!request.ok()) return respond_error(*exchange, error_of_request(request.status()));
  auto responder = std::make_shared<ChatResponder>(state, *service, exchange, *request);
  request->skill.received_ns = exchange->request().received_ns;
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  const auto num_choices = static_cast<std::size_t>(request->num_choices);
  for (std::size_t i = 0; i < num_choices; ++i) sinks.push_back(responder->sink_of_choice(i));
  const StatusOr<std::vector<RequestId>> ids =
      service->submit_choices(std::move(request->skill), std::move(sinks));
  if (!ids.ok()) {
    return responder->fail(
        error_of_submit(as_chat_error(ids.status(), request->form, request->limit_field)));
  }
  for (const RequestId id : *ids) responder->add_running(id);
  exchange->on_abort([responder] { responder->cancel_all(); });
}

void chat(ServerState& state, const std::shared_ptr<Exchange>& exchange) {
  InferenceService* service = ready_service(state, *exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  std::optional<json::object> body = read_json_request(info, *exchange);
  if (!body) return;
  const bool takes_tools = info.takes_tools;
  with_remote_images(
      state, exchange, std::move(*body), ImagePlace::kMessages,
      [takes_tools](json::object placeholder) -> Status {
        GAPLESS_ASSIGN_OR_RETURN(const ChatRequest request,
                                 chat_request_from_json(placeholder, takes_tools));
        return as_chat_error(validate(request.skill), request.form, request.limit_field);
      },
      [&state, exchange, takes_tools](json::object complete) {
        submit_chat(state, exchange, chat_request_from_json(complete, takes_tools));
      });
}

void complete(ServerState& state, const std::shared_ptr<Exchange>& exchange) {
  InferenceService* service = ready_service(state, *exchange);
  if (service == nullptr) return;
  std::optional<json::object> body = read_json_request(service->info(), *exchange);
  if (body) submit_chat(state, exchange, completion_request_from_json(*body));
}

void tokenize(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const ServiceInfo info = service->info();
  const std::optional<json::object> body = read_json_request(info, exchange);
  if (!body) return;
  const auto answer = [&]() -> StatusOr<json::object> {
    if (find_field(*body, "messages") != nullptr) {
      return invalid_argument("messages: only prompt is taken; there is no chat template")
          .with_field("messages");
    }
    GAPLESS_ASSIGN_OR_RETURN(const auto prompt, optional_string(*body, "prompt"));
    if (!prompt) return invalid_field("prompt", "is missing");
    GAPLESS_ASSIGN_OR_RETURN(const bool add_special, bool_or(*body, "add_special_tokens", true));
    GAPLESS_ASSIGN_OR_RETURN(const bool strings, bool_or(*body, "return_token_strs", false));
    GAPLESS_ASSIGN_OR_RETURN(std::vector<TokenId> ids, service->tokenize(*prompt));
    const TokenId bos = service->bos_id();
    if (add_special && bos.valid()) ids.insert(ids.begin(), bos);
    json::array tokens;
    json::array token_strs;
    for (const TokenId id : ids) {
      tokens.push_back(id.value);
      if (!strings) continue;
      GAPLESS_ASSIGN_OR_RETURN(const std::string text, service->detokenize({id}));
      // A token need not be whole characters: parts become U+FFFD.
      token_strs.push_back(json::string(repair_utf8(text)));
    }
    return json::object{{"count", ids.size()},
                        {"max_model_len", info.max_context},
                        {"tokens", std::move(tokens)},
                        {"token_strs", strings ? json::value(std::move(token_strs)) : nullptr}};
  }();
  if (!answer.ok()) return respond_error(exchange, error_of_request(answer.status()));
  respond_json(exchange, *answer);
}

StatusOr<std::vector<TokenId>> read_tokens(const json::object& body) {
  const json::value* tokens = find_field(body, "tokens");
  if (tokens == nullptr || !tokens->is_array()) return invalid_field("tokens", "must be a list");
  std::vector<TokenId> ids;
  for (const json::value& token : tokens->get_array()) {
    if (!token.is_int64() || token.get_int64() < 0 || token.get_int64() >= kMaxVocabSize) {
      return invalid_field("tokens", "must each be the number of a token");
    }
    ids.emplace_back(static_cast<std::int32_t>(token.get_int64()));
  }
  return ids;
}

void detokenize(ServerState& state, Exchange& exchange) {
  InferenceService* service = ready_service(state, exchange);
  if (service == nullptr) return;
  const std::optional<json::object> body = read_json_request(service->info(), exchange);
  if (!body) return;
  const StatusOr<std::vector<TokenId>> ids = read_tokens(*body);
  if (!ids.ok()) return respond_error(exchange, error_of_request(ids.status()));
  const StatusOr<std::string> text = service->detokenize(*ids);
  if (!text.ok()) return respond_error(exchange, error_of_request(text.status()));
  respond_json(exchange, json::object{{"prompt", repair_utf8(*text)}});
}

}  // namespace

void add_openai_routes(Router& router, ServerState& state) {
  using ExchangePtr = std::shared_ptr<Exchange>;
  router.add("GET", "/v1/models", [&state](const ExchangePtr& exchange, std::string_view) {
    list_models(state, *exchange);
  });
  router.add("GET", "/v1/models/*", [&state](const ExchangePtr& exchange, std::string_view rest) {
    show_model(state, *exchange, rest);
  });
  for (const char* path : {"/v1/chat/completions", "/chat/completions"}) {
    router.add("POST", path,
               [&state](const ExchangePtr& exchange, std::string_view) { chat(state, exchange); });
  }
  for (const char* path : {"/v1/completions", "/completions"}) {
    router.add("POST", path, [&state](const ExchangePtr& exchange, std::string_view) {
      complete(state, exchange);
    });
  }
  for (const char* path : {"/tokenize", "/v1/tokenize"}) {
    router.add("POST", path, [&state](const ExchangePtr& exchange, std::string_view) {
      tokenize(state, *exchange);
    });
  }
  for (const char* path : {"/detokenize", "/v1/detokenize"}) {
    router.add("POST", path, [&state](const ExchangePtr& exchange, std::string_view) {
      detokenize(state, *exchange);
    });
  }
}

}  // namespace gapless
