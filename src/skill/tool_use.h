// Chats whose model may call functions: what is settled once the model is known.
#pragma once

#include "base/status.h"
#include "skill/skill_request.h"
#include "text/prompt_config.h"

namespace gapless {

// Whether the model's chats may have functions.
bool takes_tools(const TokenizerConfig& prompts);

// Holds a request that must call a function to the schema of such calls: its settings get a grammar. InvalidArgument of
// "tools" where the model takes none. Before validate().
Status hold_to_tools(const TokenizerConfig& prompts, SkillRequest& request);

}  // namespace gapless
