#include "skill/tool_use.h"

#include "text/tool_calls.h"

namespace gapless {

namespace {

CallForm form_of_calls(const CallMarkers& markers) {
  return {.begin = std::string(markers.begin),
          .end = std::string(markers.end),
          .thought_begin = std::string(markers.thought_begin),
          .thought_end = std::string(markers.thought_end),
          .arguments_key = std::string(markers.arguments_key)};
}

}  // namespace

bool takes_tools(const TokenizerConfig& prompts) {
  return prompts.chat && takes_tools(*prompts.chat);
}

Status hold_to_tools(const TokenizerConfig& prompts, SkillRequest& request) {
  if (!request.tools) return ok_status();
  if (!takes_tools(prompts)) {
    return invalid_field("tools", "asks for tools, and this model was not trained to call any");
  }
  GenerationSettings& settings = request.settings;
  if (!request.tools->must_call) {
    // What these ask for no form can keep: as before, what comes is read as a call if it is one.
    if (settings.grammar || settings.min_tokens.value_or(0) > 0 || settings.ignore_eos) {
      return ok_status();
    }
    settings.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kCalls,
                                   .text = callable_functions(request.tools->callable()),
                                   .calls = form_of_calls(call_markers(*prompts.chat)),
                                   .field = "tools"};
    return ok_status();
  }
  settings.grammar = GrammarSpec{.kind = GrammarSpec::Kind::kJsonSchema,
                                 .text = tool_call_schema(*prompts.chat, request.tools->callable()),
                                 .field = "tools"};
  return ok_status();
}

}  // namespace gapless
