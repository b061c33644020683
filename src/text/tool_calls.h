// Functions that a chat model may call: what a call looks like by its template, and how calls are found in an answer.
//
//   Llama 3.1 to 3.3   the whole answer is {"name": NAME, "parameters": {...}}
//   Qwen3              any text, then <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>, once or several times
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace gapless {

// Whether the template shows functions to the model.
bool takes_tools(ChatTemplate chat);

// What a prompt ends with so that the answer is a call's JSON and nothing else.
std::string_view tool_call_opening(ChatTemplate chat);

// How the template marks a call in an answer; empty where it does not.
struct CallMarkers {
  std::string_view begin, end;
  std::string_view thought_begin, thought_end;  // around what may come first and holds no calls
  std::string_view arguments_key;
};
CallMarkers call_markers(ChatTemplate chat);

// The functions as a list of {"name", "parameters": a schema, "strict"}, as JSON.
std::string callable_functions(const std::vector<boost::json::object>& functions);

// The JSON Schema of a call of one of these functions, each {"name", "parameters": a schema} or without parameters.
// References within a function's schema are to that schema.
std::string tool_call_schema(ChatTemplate chat, const std::vector<boost::json::object>& functions);

// Splits an answer into its text and its calls while it comes. What looks like a call and is none (another function's
// name, arguments that are no object) is text.
class ToolCallReader {
 public:
  // `opened`: the prompt ended with tool_call_opening().
  ToolCallReader(ChatTemplate chat, std::vector<std::string> names, bool opened);

  // The answer goes on; returns text that belongs to no call for certain.
  std::string push(std::string_view more);
  // Nothing comes any more; returns the rest of the text.
  std::string finish();

  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  enum class State {
    kStart,    // nothing but blanks came: a thought, a call or text may begin
    kThought,  // in which calls are only spoken of
    kText,
    kCall,
  };

  std::string read_marked(bool at_end);
  // Takes the call that pending_ begins with, or its text where it is none.
  std::string end_call(std::size_t end);
  // False: this is no call.
  bool read_call(std::string_view text);
  std::string take(std::size_t count);

  const ChatTemplate chat_;
  const std::vector<std::string> names_;
  State state_;
  bool marker_was_read_ = false;  // not in the prompt
  std::string pending_;
  std::vector<ToolCall> calls_;
};

}  // namespace gapless
