#include "server/tool_fields.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/limits.h"
#include "server/json_body.h"
#include "text/tool_calls.h"

namespace gapless {
namespace {

namespace json = boost::json;

// Letters, digits, '_', '-' and '.': templates print it as it is.
bool is_name(const json::value* value) {
  if (value == nullptr || !value->is_string()) return false;
  const std::string_view name = value->get_string();
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes && std::ranges::all_of(name, is_plain);
}

const json::object* function_of(const json::value& value) {
  const json::object* object = value.if_object();
  const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  if (type == nullptr || *type != "function" || function == nullptr) return nullptr;
  return function->if_object();
}

StatusOr<std::vector<json::object>> read_tools(const json::value& value) {
  if (!value.is_array()) return invalid_field("tools", "must be a list");
  if (value.get_array().size() > kMaxTools) {
    return invalid_field("tools", "has more than the {} functions allowed", kMaxTools);
  }
  std::vector<json::object> tools;
  std::vector<std::string_view> names;
  for (const json::value& tool : value.get_array()) {
    const json::object* function = function_of(tool);
    const json::value* name = function == nullptr ? nullptr : function->if_contains("name");
    if (!is_name(name)) {
      return invalid_field("tools",
                           "must be objects of type function with a function that has a name of "
                           "letters, digits, '_', '-' and '.', at most {} of them",
                           kMaxToolNameBytes);
    }
    const std::string_view spelling = name->get_string();
    if (std::ranges::find(names, spelling) != names.end()) {
      return invalid_field("tools", "names '{}' twice", spelling);
    }
    names.push_back(spelling);
    const json::value* parameters = function->if_contains("parameters");
    if (parameters != nullptr && !parameters->is_null() && !parameters->is_object()) {
      return invalid_field("tools", "gives '{}' parameters that are no JSON Schema", spelling);
    }
    tools.push_back(tool.get_object());
  }
  return tools;
}

Status read_choice(const json::value& choice, ToolUse& use) {
  if (choice == "auto") return ok_status();
  use.must_call = true;
  if (choice == "required") return ok_status();
  const json::object* function = function_of(choice);
  const json::value* name = function == nullptr ? nullptr : function->if_contains("name");
  if (name == nullptr || !name->is_string()) {
    return invalid_field("tool_choice",
                         "may be none, auto, required or an object that names a function");
  }
  use.only = std::string(name->get_string());
  if (use.callable().empty()) {
    return invalid_field("tool_choice", "names '{}', which is none of tools", use.only);
  }
  return ok_status();
}

}  // namespace

StatusOr<std::optional<ToolUse>> take_tools(json::object& body) {
  const json::value* tools = find_field(body, "tools");
  const json::value* choice = find_field(body, "tool_choice");
  GAPLESS_ASSIGN_OR_RETURN([[maybe_unused]] const bool parallel,
                           bool_or(body, "parallel_tool_calls", true));
  ToolUse use;
  if (tools != nullptr) {
    GAPLESS_ASSIGN_OR_RETURN(use.tools, read_tools(*tools));
  }
  const bool wants_none = choice != nullptr && *choice == "none";
  if (choice != nullptr && !wants_none) {
    if (use.tools.empty() && *choice != "auto") {
      return invalid_field("tool_choice", "asks for a call, and there are no tools");
    }
    GAPLESS_RETURN_IF_ERROR(read_choice(*choice, use));
  }
  for (const char* field : {"tools", "tool_choice", "parallel_tool_calls"}) body.erase(field);
  if (wants_none || use.tools.empty()) return std::optional<ToolUse>();
  return std::optional<ToolUse>(std::move(use));
}

StatusOr<std::vector<ToolCall>> read_tool_calls(const json::object& message) {
  std::vector<ToolCall> calls;
  const json::value* list = find_field(message, "tool_calls");
  if (list == nullptr) return calls;
  if (!list->is_array() || list->get_array().size() > kMaxTools) {
    return invalid_argument("messages: tool_calls must be a list of at most {}", kMaxTools);
  }
  for (const json::value& one : list->get_array()) {
    const json::object* function = function_of(one);
    const json::value* name = function == nullptr ? nullptr : function->if_contains("name");
    const json::value* arguments =
        function == nullptr ? nullptr : function->if_contains("arguments");
    if (!is_name(name) || arguments == nullptr || !arguments->is_string()) {
      return invalid_argument(
          "messages: a call must be an object of type function with a function that has a name and "
          "arguments, which are JSON in a string");
    }
    const auto parsed = parse_json(std::string_view(arguments->get_string()), "arguments");
    if (!parsed.ok() || !parsed->is_object()) {
      return invalid_argument("messages: the arguments of a call of '{}' are no JSON object",
                              std::string_view(name->get_string()));
    }
    calls.push_back({std::string(name->get_string()), std::string(arguments->get_string())});
  }
  return calls;
}

json::array tool_calls_json(const std::vector<ToolCall>& calls, std::string_view id) {
  json::array list;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    list.push_back(json::object{
        {"index", i},
        {"id", fmt::format("call_{}_{}", id, i)},
        {"type", "function"},
        {"function", json::object{{"name", calls[i].name}, {"arguments", calls[i].arguments}}}});
  }
  return list;
}

}  // namespace gapless
