// What a client makes of an answer's body, piece by piece: the text so far, the tokens, the end.
// Both APIs, streamed or at once. No network here.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>

#include "load/load_target.h"

namespace gapless {

class AnswerReader {
 public:
  // `streams`: the body is server-sent events; otherwise one JSON object.
  AnswerReader(LoadApi api, bool streams) : api_(api), streams_(streams) {}

  // More of the body.
  void feed(std::string_view bytes);
  // The body has ended.
  void end();

  // The answer is complete and well formed: its end was announced, and a stream's pieces make up
  // the whole text where the server sends that as well.
  bool complete() const { return complete_ && !broken_; }
  // The server reported an error inside of the stream.
  bool failed() const { return failed_; }
  // Text, or the JSON of objects and points.
  const std::string& answer() const { return answer_; }
  // As the server counts them in the end; before, and where it does not, the events with text.
  int num_tokens() const { return num_tokens_; }

 private:
  void read_event(std::string_view data);
  void read_moondream(const boost::json::object& event);
  void read_openai(const boost::json::object& event);

  const LoadApi api_;
  const bool streams_;
  std::string rest_;  // of an event that has not ended
  std::string answer_;
  int num_tokens_ = 0;
  bool complete_ = false;
  bool broken_ = false;
  bool failed_ = false;
};

}  // namespace gapless
