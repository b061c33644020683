// What of a chat's functions a service says of its engine.
#pragma once

namespace gapless {

class Engine;

// Whether chats may have functions to call.
bool takes_tools(const Engine& engine);

}  // namespace gapless
