// "tools", "tool_choice", and the calls in earlier messages, as OpenAI's API has them.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <optional>
#include <vector>

#include "base/status.h"
#include "skill/skill_request.h"

namespace gapless {

// Takes "tools", "tool_choice" and "parallel_tool_calls" out of the body. Nothing: the model is to call none. An error
// names the field.
StatusOr<std::optional<ToolUse>> take_tools(boost::json::object& body);

// "tool_calls" of an assistant's message.
StatusOr<std::vector<ToolCall>> read_tool_calls(const boost::json::object& message);

// The same of an answer; `id` is the answer's own, and each call's begins with it.
boost::json::array tool_calls_json(const std::vector<ToolCall>& calls, std::string_view id);

}  // namespace gapless
