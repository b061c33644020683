#include "skill/unsupported_fields.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <string_view>

namespace gapless {
namespace {

namespace json = boost::json;

struct Unsupported {
  std::string_view name;
  std::string_view neutral = "null";  // JSON
  std::string_view why = "is not supported";
};

constexpr std::string_view kNoTools = "asks for tools, and this model was not trained to call any";

constexpr Unsupported kUnsupported[] = {
    // What the model would have to be.
    {"reasoning_effort"},
    {"thinking"},
    {"enable_thinking"},
    {"verbosity", R"("medium")"},
    {"variant", "null", "names a variant of the model, and none is served"},
    {"adapter", "null", "names an adapter, and none is served"},
    {"modalities", R"(["text"])", R"(may only be ["text"])"},
    {"audio"},
    {"web_search_options"},
    {"tools", "null", kNoTools},
    {"functions", "null", kNoTools},
    {"tool_choice", R"("auto")", kNoTools},
    {"function_call", R"("auto")", kNoTools},
    // What the answer must look like.
    {"guided_grammar"},
    {"structural_tag"},
    {"regex"},
    {"ebnf"},
    {"grammar"},
    // Which tokens there may be, and where it ends.
    {"bad_words"},
    {"allowed_token_ids"},
    {"logits_processors"},
    {"suppress_tokens"},
    {"no_repeat_ngram_size"},
    {"stop_regex"},
    {"include_stop_str_in_output"},
    {"skip_special_tokens", "true"},
    // How they are picked.
    {"best_of", "1"},
    {"use_beam_search"},
    {"num_beams", "1"},
    {"length_penalty", "1"},
    {"repeat_penalty", "1", "is not supported; repetition_penalty is"},
    {"typical_p", "1"},
    {"top_a"},
    {"tfs_z", "1"},
    {"epsilon_cutoff"},
    {"eta_cutoff"},
    {"mirostat"},
    {"dry_multiplier"},
    {"xtc_probability"},
    {"smoothing_factor"},
    // What the prompt is.
    {"echo"},
    {"suffix"},
    {"documents"},
    {"chat_template"},
    {"chat_template_kwargs"},
    {"continue_final_message"},
    {"add_generation_prompt", "true"},
    {"truncate_prompt_tokens"},
    {"prompt_logprobs"},
};

bool is_neutral(const json::value& value, std::string_view neutral_json) {
  const json::value neutral = json::parse(neutral_json);
  if (value.is_number() && neutral.is_number()) {
    return value.to_number<double>() == neutral.to_number<double>();
  }
  return value == neutral;
}

// Where "off" would mean something.
bool off_means_on(std::string_view name, const json::value& value) {
  if (value.is_null()) return false;
  if (name == "web_search_options") return true;  // an empty object asks for a search
  return (name == "skip_special_tokens" || name == "add_generation_prompt") && value == false;
}

}  // namespace

bool means_off(const json::value& value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.get_bool();
  if (value.is_number()) return value.to_number<double>() == 0;
  if (value.is_array()) return value.get_array().empty();
  if (value.is_string()) {
    const std::string_view text = value.get_string();
    return text.empty() || text == "none" || text == "off" || text == "disabled";
  }
  return std::all_of(value.get_object().begin(), value.get_object().end(),
                     [](const auto& field) { return means_off(field.value()); });
}

Status refuse_unsupported(const json::object& fields) {
  const json::value* choice = fields.if_contains("tool_choice");
  const bool wants_no_tools = choice != nullptr && *choice == "none";
  for (const Unsupported& field : kUnsupported) {
    const json::value* value = fields.if_contains(field.name);
    if (value == nullptr || is_neutral(*value, field.neutral)) continue;
    if (means_off(*value) && !off_means_on(field.name, *value)) continue;
    if (wants_no_tools && (field.name == "tools" || field.name == "functions")) continue;
    return invalid_field(field.name, "{}", field.why);
  }
  return ok_status();
}

}  // namespace gapless
