#include "server/chat_responder.h"

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "server/sse.h"
#include "skill/response_json.h"

namespace gapless {

namespace json = boost::json;

namespace {

bool is_text_skill(Skill skill) {
  return skill == Skill::kQuery || skill == Skill::kCaption;
}

// What a chat message says for point and detect: the answer's own field as JSON.
std::string content_of(const SkillResult& result) {
  if (is_text_skill(result.skill)) return result.text;
  json::object answer = response_json(result);
  const char* field = result.skill == Skill::kPoint ? "points" : "objects";
  return json::serialize(json::object{{field, answer.at(field)}});
}

std::int64_t unix_now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

class ChatResponder::ChoiceSink final : public ResponseSink {
 public:
  ChoiceSink(std::shared_ptr<ChatResponder> responder, int index)
      : responder_(std::move(responder)),
        index_(index),
        meter_(responder_->state_, responder_->exchange_) {}

  void on_text(std::string_view chunk, int num_tokens) override {
    meter_.on_text(num_tokens);
    responder_->on_text(index_, chunk);
  }
  void on_done(const SkillResult& result) override {
    meter_.on_done(result);
    responder_->on_done(index_, result);
  }
  void on_error(const Status& status) override {
    meter_.on_error(status);
    responder_->fail(error_of_request(status));
  }

 private:
  const std::shared_ptr<ChatResponder> responder_;
  const int index_;
  RequestMeter meter_;
};

ChatResponder::ChatResponder(ServerState& state, InferenceService& service,
                             std::shared_ptr<Exchange> exchange, const ChatRequest& request)
    : service_(service),
      state_(state),
      exchange_(std::move(exchange)),
      id_("chatcmpl-" + exchange_->request().request_id),
      model_(service.info().model),
      created_unix_s_(unix_now_s()),
      stream_(request.stream),
      include_usage_(request.include_usage),
      choices_(static_cast<std::size_t>(request.num_choices)) {}

std::shared_ptr<ResponseSink> ChatResponder::sink_of_choice(int index) {
  return std::make_shared<ChoiceSink>(shared_from_this(), index);
}

void ChatResponder::add_running(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    running_.push_back(id);
    if (!cancelled_) return;
  }
  service_.cancel(id);
}

void ChatResponder::cancel_all() {
  std::vector<RequestId> running;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    running = running_;
  }
  for (const RequestId id : running) service_.cancel(id);
}

void ChatResponder::fail(const ApiError& error) {
  {
    std::lock_guard lock(mutex_);
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

void ChatResponder::on_text(int index, std::string_view chunk) {
  std::lock_guard lock(mutex_);
  if (ended_ || !stream_) return;
  start_choice(index);
  send_delta(index, {{"content", chunk}}, nullptr);
}

void ChatResponder::on_done(int index, const SkillResult& result) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  choice.result = result;
  choice.done = true;
  if (stream_) {
    start_choice(index);
    if (!is_text_skill(result.skill)) {
      send_delta(index, {{"content", content_of(result)}}, nullptr);
    }
    send_delta(index, json::object(), json::string(finish_reason_name(result.finish_reason)));
  }
  for (const Choice& other : choices_) {
    if (!other.done) return;
  }
  finish();
}

json::object ChatResponder::head(const char* object_name) const {
  return {{"id", id_}, {"object", object_name}, {"created", created_unix_s_}, {"model", model_}};
}

void ChatResponder::send_chunk(json::array choices, bool with_usage) {
  if (!stream_begun_) exchange_->begin_stream(sse_head());
  stream_begun_ = true;
  json::object chunk = head("chat.completion.chunk");
  chunk["choices"] = std::move(choices);
  if (include_usage_) chunk["usage"] = with_usage ? json::value(usage()) : json::value(nullptr);
  exchange_->write(sse_event(chunk));
}

void ChatResponder::send_delta(int index, json::object delta, json::value finish_reason) {
  send_chunk({json::object{{"index", index},
                           {"delta", std::move(delta)},
                           {"logprobs", nullptr},
                           {"finish_reason", std::move(finish_reason)}}},
             false);
}

void ChatResponder::start_choice(int index) {
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  if (choice.started) return;
  choice.started = true;
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
  const int prompt_tokens = choices_.front().result.metrics.input_tokens;
  int completion_tokens = 0;
  for (const Choice& choice : choices_) completion_tokens += choice.result.metrics.output_tokens;
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens}};
}

json::object ChatResponder::whole_answer() const {
  json::array choices;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const SkillResult& result = choices_[i].result;
    json::object message = {{"role", "assistant"}, {"content", content_of(result)}};
    choices.push_back(json::object{{"index", i},
                                   {"message", std::move(message)},
                                   {"logprobs", nullptr},
                                   {"finish_reason", finish_reason_name(result.finish_reason)}});
  }
  json::object answer = head("chat.completion");
  answer["choices"] = std::move(choices);
  answer["usage"] = usage();
  return answer;
}

}  // namespace gapless
