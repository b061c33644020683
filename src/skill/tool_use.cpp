#include "skill/tool_use.h"

#include "text/tool_calls.h"

namespace gapless {

bool takes_tools(const TokenizerConfig& prompts) {
  return prompts.chat && takes_tools(*prompts.chat);
}

Status hold_to_tools(const TokenizerConfig& prompts, SkillRequest& request) {
  if (!request.tools) return ok_status();
  if (!takes_tools(prompts)) {
    return invalid_field("tools", "asks for tools, and this model was not trained to call any");
  }
  if (!request.tools->must_call) return ok_status();
  request.settings.grammar =
      GrammarSpec{.kind = GrammarSpec::Kind::kJsonSchema,
                  .text = tool_call_schema(*prompts.chat, request.tools->callable()),
                  .field = "tools"};
  return ok_status();
}

}  // namespace gapless
