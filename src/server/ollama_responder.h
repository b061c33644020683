// Answers one request of Ollama's API: one JSON object, or JSON lines. The head of a stream goes out with
// its first line, so that a request that fails before gets a status of its own.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <string>

#include "server/api_support.h"
#include "server/ollama_request.h"

namespace gapless {

// "2026-11-22T13:53:18.123456Z"
std::string rfc3339_time(std::chrono::system_clock::time_point time);

// What every answer begins with: "model", as the client called it, and "created_at".
boost::json::object ollama_answer_head(const std::string& model);

class OllamaResponder final : public ResponseSink {
 public:
  // `model`: as the client called it.
  OllamaResponder(ServerState& state, std::shared_ptr<Exchange> exchange, OllamaRoute route,
                  std::string model, bool stream);

  void on_text(std::string_view chunk, int num_tokens) override;
  void on_logprobs(std::vector<TokenLogprob> tokens) override;
  void on_done(const SkillResult& result) override;
  void on_error(const Status& status) override;

 private:
  // A line, or the only object, with this text.
  boost::json::object answer(std::string_view text, bool done);
  void send(const boost::json::object& line);

  const std::shared_ptr<Exchange> exchange_;
  const OllamaRoute route_;
  const std::string model_;
  const bool stream_;
  const std::int64_t received_ns_;
  RequestMeter meter_;
  boost::json::array logprobs_;  // not sent yet
  bool started_ = false;
};

}  // namespace gapless
