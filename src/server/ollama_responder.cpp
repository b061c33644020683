#include "server/ollama_responder.h"

#include <fmt/chrono.h>

#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "server/logprob_json.h"
#include "server/sse.h"

namespace gapless {

namespace json = boost::json;

namespace {

std::int64_t ns_of_ms(double ms) {
  return std::llround(ms * 1e6);
}

// Lines end where clients look for their ends, which for some is any character that Unicode calls one: so
// they are in ASCII.
std::string json_line(const json::object& object) {
  return ascii_json(json_text(object)) + "\n";
}

// Arguments are JSON: they are read from an answer as an object.
json::array calls_of(const SkillResult& result) {
  json::array calls;
  for (const ToolCall& call : result.tool_calls) {
    StatusOr<json::value> arguments = parse_json(call.arguments, "arguments");
    json::value object =
        arguments.ok() ? std::move(arguments).value() : json::value(json::object());
    calls.push_back(json::object{
        {"function", json::object{{"name", call.name}, {"arguments", std::move(object)}}}});
  }
  return calls;
}

}  // namespace

std::string rfc3339_time(std::chrono::system_clock::time_point time) {
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since_epoch);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z",
                     fmt::gmtime(static_cast<std::time_t>(seconds.count())),
                     (since_epoch - seconds).count());
}

json::object ollama_answer_head(const std::string& model) {
  return {{"model", model}, {"created_at", rfc3339_time(std::chrono::system_clock::now())}};
}

OllamaResponder::OllamaResponder(ServerState& state, std::shared_ptr<Exchange> exchange,
                                 OllamaRoute route, std::string model, bool stream)
    : exchange_(std::move(exchange)),
      route_(route),
      model_(std::move(model)),
      stream_(stream),
      received_ns_(exchange_->request().received_ns),
      meter_(state, exchange_) {}

void OllamaResponder::on_text(std::string_view chunk, int num_tokens) {
  meter_.on_text(num_tokens);
  if (stream_) send(answer(chunk, false));
}

void OllamaResponder::on_logprobs(std::vector<TokenLogprob> tokens) {
  for (const TokenLogprob& token : tokens) logprobs_.push_back(logprob_json(token));
}

void OllamaResponder::on_done(const SkillResult& result) {
  meter_.on_done(result);
  const GenerationMetrics& metrics = result.metrics;
  // Streams have the calls in a line of their own, in front of the last one.
  const bool calls_first = stream_ && !result.tool_calls.empty();
  if (calls_first) {
    json::object line = answer("", false);
    line["message"].get_object()["tool_calls"] = calls_of(result);
    send(line);
  }
  json::object last = answer(stream_ ? "" : result.text, true);
  if (!calls_first && !result.tool_calls.empty()) {
    last["message"].get_object()["tool_calls"] = calls_of(result);
  }
  last["done_reason"] = finish_reason_name(result.finish_reason);
  last["total_duration"] = host_now_ns() - received_ns_;
  last["load_duration"] = 0;  // the model is loaded before the first request is taken
  last["prompt_eval_count"] = metrics.input_tokens;
  last["prompt_eval_duration"] = metrics.stages[RequestStage::kDevice];
  last["eval_count"] = metrics.output_tokens;
  last["eval_duration"] = ns_of_ms(metrics.decode_time_ms);
  if (!stream_) return respond_json(*exchange_, last);
  send(last);
  exchange_->end_stream();
}

void OllamaResponder::on_error(const Status& status) {
  meter_.on_error(status);
  const ApiError error = error_of_request(as_ollama_error(status));
  if (!started_) return respond_error(*exchange_, error);
  exchange_->write(json_line({{"error", error.message}}));
  exchange_->end_stream();
}

json::object OllamaResponder::answer(std::string_view text, bool done) {
  json::object line = ollama_answer_head(model_);
  if (route_ == OllamaRoute::kChat) {
    line["message"] = json::object{{"role", "assistant"}, {"content", text}};
  } else {
    line["response"] = text;
  }
  line["done"] = done;
  if (!logprobs_.empty()) line["logprobs"] = std::exchange(logprobs_, {});
  return line;
}

void OllamaResponder::send(const json::object& line) {
  if (!started_) exchange_->begin_stream(stream_head("application/x-ndjson"));
  started_ = true;
  exchange_->write(json_line(line));
}

}  // namespace gapless
