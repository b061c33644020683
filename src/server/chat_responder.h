// Collects the choices of one chat request, or completion, and answers its exchange, in one piece or as a stream.
//
// Each choice is a generation of its own with a sink of its own; they may end in any order, on any
// thread. The first that fails ends the answer, and the others are cancelled.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/api_support.h"
#include "server/chat_request.h"

namespace gapless {

class ChatResponder : public std::enable_shared_from_this<ChatResponder> {
 public:
  ChatResponder(ServerState& state, InferenceService& service, std::shared_ptr<Exchange> exchange,
                const ChatRequest& request);

  std::shared_ptr<ResponseSink> sink_of_choice(std::size_t index);

  // After a choice was submitted.
  void add_running(RequestId id);
  // Answers with the error unless an answer has begun; cancels every choice.
  void fail(const ApiError& error);
  void cancel_all();

 private:
  using Form = ChatRequest::Form;
  class ChoiceSink;
  struct Choice {
    std::vector<TokenLogprob> logprobs;  // not sent yet
    std::int64_t logprobs_end = 0;       // characters of the text that those sent cover
    SkillResult result;
    bool started = false;
    bool done = false;
  };

  void on_text(std::size_t index, std::string_view chunk);
  void on_reasoning(std::size_t index, std::string_view chunk);
  void on_logprobs(std::size_t index, std::vector<TokenLogprob> tokens);
  void on_done(std::size_t index, const SkillResult& result);

  // Which of several objects a choice is about; nullptr: there are not several.
  const std::string* object_of(std::size_t index) const;
  boost::json::object head(bool of_chunk) const;
  boost::json::object choice_json(std::size_t index, const char* field,
                                  boost::json::object message) const;
  void send_chunk(boost::json::array choices, bool with_usage) GAPLESS_REQUIRES(mutex_);
  void send_delta(std::size_t index, boost::json::object delta, boost::json::value finish_reason)
      GAPLESS_REQUIRES(mutex_);
  // Of the tokens since the last call, as the API of form_ shows them; null when nobody asked.
  boost::json::value take_logprobs(Choice& choice) const;
  void start_choice(std::size_t index) GAPLESS_REQUIRES(mutex_);
  boost::json::array calls_of(std::size_t index) const GAPLESS_REQUIRES(mutex_);
  void finish() GAPLESS_REQUIRES(mutex_);
  boost::json::object usage() const GAPLESS_REQUIRES(mutex_);
  boost::json::object whole_answer() GAPLESS_REQUIRES(mutex_);

  InferenceService& service_;
  ServerState& state_;
  const std::shared_ptr<Exchange> exchange_;
  const Form form_;
  const std::string id_;
  const std::string model_;
  const std::int64_t created_unix_s_;
  const bool stream_;
  const bool include_usage_;
  const bool with_logprobs_;
  const std::string_view limit_field_;
  const Skill skill_;
  const std::vector<std::string> objects_;

  Mutex mutex_;
  std::vector<Choice> choices_ GAPLESS_GUARDED_BY(mutex_);
  std::vector<RequestId> running_ GAPLESS_GUARDED_BY(mutex_);
  bool cancelled_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool stream_begun_ GAPLESS_GUARDED_BY(mutex_) = false;
  bool ended_ GAPLESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gapless
