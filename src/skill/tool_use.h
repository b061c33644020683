// Chats whose model may call functions: what is settled once the model is known.
#pragma once

#include "base/status.h"
#include "skill/skill_request.h"
#include "text/prompt_config.h"

namespace gapless {

// Whether the model's chats may have functions.
bool takes_tools(const TokenizerConfig& prompts);

// Holds calls to the schemas of their functions: the request's settings get a grammar. One that must call a function gets that of a
// call, another one that of text with calls in it, unless it asks for another form or for what no form keeps. InvalidArgument of
// "tools" where the model takes none. Before validate().
Status hold_to_tools(const TokenizerConfig& prompts, SkillRequest& request);

}  // namespace gapless
