#include "engine/engine_tools.h"

#include "engine/engine.h"
#include "skill/tool_use.h"

namespace gapless {

bool takes_tools(const Engine& engine) {
  return takes_tools(engine.model().prompts.config());
}

}  // namespace gapless
