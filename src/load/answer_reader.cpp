#include "load/answer_reader.h"

#include <boost/json/parse.hpp>

#include "base/json.h"

namespace gapless {
namespace {

namespace json = boost::json;

std::string_view string_at(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : "";
}

// A count in an object inside of the object, such as usage.completion_tokens; -1: there is none.
int count_at(const json::object& object, std::string_view outer, std::string_view inner) {
  const json::value* value = object.if_contains(outer);
  if (value == nullptr || !value->is_object()) return -1;
  value = value->get_object().if_contains(inner);
  return value != nullptr && value->is_int64() ? static_cast<int>(value->get_int64()) : -1;
}

}  // namespace

void AnswerReader::feed(std::string_view bytes) {
  rest_ += bytes;
  if (!streams_) return;
  std::size_t begin = 0;
  for (std::size_t end; (end = rest_.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    const std::string_view event(rest_.data() + begin, end - begin);
    if (event.starts_with("data: ")) read_event(event.substr(6));
    // Comments (": ping") keep a connection alive; anything else is not of these APIs.
    else if (!event.starts_with(':'))
      broken_ = true;
  }
  rest_.erase(0, begin);
}

void AnswerReader::end() {
  if (!streams_) {
    read_event(rest_);
    return;
  }
  if (!rest_.empty()) broken_ = true;
}

void AnswerReader::read_event(std::string_view data) {
  if (complete_) broken_ = true;  // nothing comes after the end
  if (api_ == LoadApi::kOpenai && streams_ && data == "[DONE]") {
    complete_ = true;
    return;
  }
  boost::system::error_code error;
  const json::value value = json::parse(data, error);
  if (error || !value.is_object()) {
    broken_ = true;
    return;
  }
  const json::object& event = value.get_object();
  const json::value* failure = event.if_contains("error");
  if (failure != nullptr && !failure->is_null()) failed_ = true;
  if (api_ == LoadApi::kMoondream) {
    read_moondream(event);
  } else {
    read_openai(event);
  }
}

void AnswerReader::read_moondream(const json::object& event) {
  if (!streams_) {
    for (const char* name : {"answer", "caption", "objects", "points"}) {
      const json::value* value = event.if_contains(name);
      if (value == nullptr) continue;
      answer_ = value->is_string() ? std::string(value->get_string()) : json_text(*value);
      complete_ = true;
    }
    num_tokens_ = std::max(0, count_at(event, "metrics", "output_tokens"));
    return;
  }
  const std::string_view chunk = string_at(event, "chunk");
  answer_ += chunk;
  const json::value* index = event.if_contains("token_index");
  if (index != nullptr && index->is_int64()) {
    num_tokens_ = static_cast<int>(index->get_int64());
  } else if (!chunk.empty()) {
    ++num_tokens_;
  }
  const json::value* completed = event.if_contains("completed");
  if (completed == nullptr || !completed->is_bool() || !completed->get_bool()) return;
  complete_ = true;
  const int total = count_at(event, "metrics", "output_tokens");
  if (total >= 0) num_tokens_ = total;
  for (const char* name : {"answer", "caption"}) {
    if (event.contains(name) && string_at(event, name) != answer_) broken_ = true;
  }
}

void AnswerReader::read_openai(const json::object& event) {
  const int total = count_at(event, "usage", "completion_tokens");
  const json::value* choices = event.if_contains("choices");
  if (choices != nullptr && choices->is_array() && !choices->get_array().empty() &&
      choices->get_array()[0].is_object()) {
    const json::object& choice = choices->get_array()[0].get_object();
    const json::value* part = choice.if_contains(streams_ ? "delta" : "message");
    if (part != nullptr && part->is_object()) {
      const std::string_view content = string_at(part->get_object(), "content");
      answer_ += content;
      if (!content.empty()) ++num_tokens_;
      if (!streams_) complete_ = true;
    }
  }
  if (total >= 0) num_tokens_ = total;
}

}  // namespace gapless
