#include "server/chat_responder.h"

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "server/logprob_json.h"
#include "server/sse.h"
#include "server/tool_fields.h"
#include "server/unix_time.h"
#include "skill/response_json.h"

namespace gapless {

namespace json = boost::json;

namespace {

bool is_text_skill(Skill skill) {
  return skill == Skill::kQuery || skill == Skill::kCaption;
}

// The fields of an answer that a chat message shows.
std::vector<const char*> content_fields(Skill skill) {
  if (skill == Skill::kPoint) return {"points"};
  if (skill == Skill::kDetect) return {"objects"};
  return {"path", "bbox", "coarse"};
}

// What a chat message says for point, detect and segment: the answer's own fields as JSON, and which of several objects
// it is about.
std::string content_of(const SkillResult& result, const std::string* object) {
  if (is_text_skill(result.skill)) return result.text;
  json::object answer = response_json(result);
  json::object content;
  if (object != nullptr) content["object"] = *object;
  for (const char* field : content_fields(result.skill)) {
    content[field] = std::move(answer.at(field));
  }
  return json_text(content);
}

json::object reasoning_details(const Reasoning& reasoning) {
  return {{"reasoning_details", json::object{{"grounding", grounding_json(reasoning)}}}};
}

json::string finish_reason_of(const SkillResult& result) {
  const bool calls = !result.tool_calls.empty() && result.finish_reason == FinishReason::kStop;
  return json::string(calls ? "tool_calls" : finish_reason_name(result.finish_reason));
}

}  // namespace

class ChatResponder::ChoiceSink final : public ResponseSink {
 public:
  ChoiceSink(std::shared_ptr<ChatResponder> responder, std::size_t index)
      : responder_(std::move(responder)),
        index_(index),
        meter_(responder_->state_, responder_->exchange_) {}

  void on_text(std::string_view chunk, int num_tokens) override {
    meter_.on_text(num_tokens);
    responder_->on_text(index_, chunk);
  }
  void on_reasoning(std::string_view chunk, int num_tokens) override {
    meter_.on_text(num_tokens);
    responder_->on_reasoning(index_, chunk);
  }
  void on_logprobs(std::vector<TokenLogprob> tokens) override {
    responder_->on_logprobs(index_, std::move(tokens));
  }
  void on_done(const SkillResult& result) override {
    meter_.on_done(result);
    responder_->on_done(index_, result);
  }
  void on_error(const Status& status) override {
    meter_.on_error(status);
    responder_->fail(
        error_of_request(as_chat_error(status, responder_->form_, responder_->limit_field_)));
  }

 private:
  const std::shared_ptr<ChatResponder> responder_;
  const std::size_t index_;
  RequestMeter meter_;
};

ChatResponder::ChatResponder(ServerState& state, InferenceService& service,
                             std::shared_ptr<Exchange> exchange, const ChatRequest& request)
    : service_(service),
      state_(state),
      exchange_(std::move(exchange)),
      form_(request.form),
      id_((form_ == Form::kChat ? "chatcmpl-" : "cmpl-") + exchange_->request().request_id),
      model_(service.info().model),
      created_unix_s_(whole_unix_now_s()),
      stream_(request.stream),
      include_usage_(request.include_usage),
      with_logprobs_(request.skill.settings.logprobs),
      limit_field_(request.limit_field),
      skill_(request.skill.skill),
      objects_(request.skill.objects),
      choices_(static_cast<std::size_t>(request.num_choices)) {}

std::shared_ptr<ResponseSink> ChatResponder::sink_of_choice(std::size_t index) {
  return std::make_shared<ChoiceSink>(shared_from_this(), index);
}

void ChatResponder::add_running(RequestId id) {
  {
    MutexLock lock(mutex_);
    running_.push_back(id);
    if (!cancelled_) return;
  }
  service_.cancel(id);
}

void ChatResponder::cancel_all() {
  std::vector<RequestId> running;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    running = running_;
  }
  for (const RequestId id : running) service_.cancel(id);
}

void ChatResponder::fail(const ApiError& error) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    if (stream_begun_) {
      exchange_->write(sse_event(json::object{{"error", json::parse(error.error_object())}}));
      exchange_->end_stream();
    } else {
      respond_error(*exchange_, error);
    }
  }
  cancel_all();
}

void ChatResponder::on_text(std::size_t index, std::string_view chunk) {
  MutexLock lock(mutex_);
  if (ended_ || !stream_ || !is_text_skill(skill_)) return;
  start_choice(index);
  send_delta(index, {{"content", chunk}}, nullptr);
}

void ChatResponder::on_reasoning(std::size_t index, std::string_view chunk) {
  MutexLock lock(mutex_);
  if (ended_ || !stream_) return;
  start_choice(index);
  send_delta(index, {{"reasoning", chunk}}, nullptr);
}

void ChatResponder::on_logprobs(std::size_t index, std::vector<TokenLogprob> tokens) {
  MutexLock lock(mutex_);
  std::vector<TokenLogprob>& pending = choices_[index].logprobs;
  std::move(tokens.begin(), tokens.end(), std::back_inserter(pending));
}

void ChatResponder::on_done(std::size_t index, const SkillResult& result) {
  MutexLock lock(mutex_);
  if (ended_) return;
  Choice& choice = choices_[index];
  choice.result = result;
  choice.done = true;
  if (stream_) {
    start_choice(index);
    if (!is_text_skill(result.skill)) {
      send_delta(index, {{"content", content_of(result, object_of(index))}}, nullptr);
    }
    if (result.reasoning) send_delta(index, reasoning_details(*result.reasoning), nullptr);
    if (!result.tool_calls.empty()) {
      send_delta(index, {{"tool_calls", calls_of(index)}}, nullptr);
    }
    send_delta(index, json::object(), finish_reason_of(result));
  }
  for (const Choice& other : choices_) {
    if (!other.done) return;
  }
  finish();
}

const std::string* ChatResponder::object_of(std::size_t index) const {
  return objects_.empty() ? nullptr : &objects_[index];
}

json::array ChatResponder::calls_of(std::size_t index) const {
  return tool_calls_json(choices_[index].result.tool_calls, fmt::format("{}_{}", id_, index));
}

json::object ChatResponder::head(bool of_chunk) const {
  const char* const of_chat = of_chunk ? "chat.completion.chunk" : "chat.completion";
  const char* const object_name = form_ == Form::kChat ? of_chat : "text_completion";
  return {{"id", id_}, {"object", object_name}, {"created", created_unix_s_}, {"model", model_}};
}

void ChatResponder::send_chunk(json::array choices, bool with_usage) {
  if (!stream_begun_) exchange_->begin_stream(stream_head());
  stream_begun_ = true;
  json::object chunk = head(true);
  chunk["choices"] = std::move(choices);
  if (include_usage_) chunk["usage"] = with_usage ? json::value(usage()) : json::value(nullptr);
  exchange_->write(sse_event(chunk));
}

void ChatResponder::send_delta(std::size_t index, json::object delta, json::value finish_reason) {
  Choice& choice = choices_[index];
  json::value logprobs = nullptr;
  if (!choice.logprobs.empty() && !delta.contains("role")) logprobs = take_logprobs(choice);
  json::object shown = choice_json(index, "delta", std::move(delta));
  shown["logprobs"] = std::move(logprobs);
  shown["finish_reason"] = std::move(finish_reason);
  send_chunk({std::move(shown)}, false);
}

// `message` under its field; of a completion its text alone.
json::object ChatResponder::choice_json(std::size_t index, const char* field,
                                        json::object message) const {
  if (form_ == Form::kChat) return {{"index", index}, {field, std::move(message)}};
  const json::value* text = message.if_contains("content");
  return {{"index", index}, {"text", text == nullptr ? json::value("") : *text}};
}

json::value ChatResponder::take_logprobs(Choice& choice) const {
  if (!with_logprobs_) return nullptr;
  const std::vector<TokenLogprob> tokens = std::exchange(choice.logprobs, {});
  if (form_ == Form::kCompletion) return completion_logprobs_json(tokens, choice.logprobs_end);
  json::array content;
  for (const TokenLogprob& token : tokens) content.push_back(logprob_json(token));
  return json::object{{"content", std::move(content)}, {"refusal", nullptr}};
}

void ChatResponder::start_choice(std::size_t index) {
  Choice& choice = choices_[index];
  if (choice.started) return;
  choice.started = true;
  if (form_ == Form::kCompletion) return;  // has no roles
  send_delta(index, {{"role", "assistant"}, {"content", ""}}, nullptr);
}

void ChatResponder::finish() {
  ended_ = true;
  if (!stream_) return respond_json(*exchange_, whole_answer());
  if (include_usage_) send_chunk({}, true);
  exchange_->write(std::string(kSseDone));
  exchange_->end_stream();
}

json::object ChatResponder::usage() const {
  const GenerationMetrics& first = choices_.front().result.metrics;
  const int prompt_tokens = first.input_tokens;
  int completion_tokens = 0;
  int reasoning_tokens = 0;
  for (const Choice& choice : choices_) {
    completion_tokens += choice.result.metrics.output_tokens;
    reasoning_tokens += choice.result.metrics.reasoning_tokens;
  }
  json::object usage = {
      {"prompt_tokens", prompt_tokens},
      {"completion_tokens", completion_tokens},
      {"total_tokens", prompt_tokens + completion_tokens},
      {"prompt_tokens_details", json::object{{"cached_tokens", first.cached_tokens}}}};
  if (choices_.front().result.reasoning) {
    usage["completion_tokens_details"] = json::object{{"reasoning_tokens", reasoning_tokens}};
  }
  return usage;
}

json::object ChatResponder::whole_answer() {
  json::array choices;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const SkillResult& result = choices_[i].result;
    json::object message = {{"role", "assistant"}, {"content", content_of(result, object_of(i))}};
    if (result.reasoning) {
      message["reasoning"] = result.reasoning->text;
      for (auto& field : reasoning_details(*result.reasoning)) {
        message[field.key()] = std::move(field.value());
      }
    }
    if (!result.tool_calls.empty()) {
      if (result.text.empty()) message["content"] = nullptr;
      message["tool_calls"] = calls_of(i);
    }
    json::object choice = choice_json(i, "message", std::move(message));
    choice["logprobs"] = take_logprobs(choices_[i]);
    choice["finish_reason"] = finish_reason_of(result);
    choices.push_back(std::move(choice));
  }
  json::object answer = head(false);
  answer["choices"] = std::move(choices);
  answer["usage"] = usage();
  return answer;
}

}  // namespace gapless
