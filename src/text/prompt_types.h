// What a prompt may say besides text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gapless {

enum class CaptionLength : std::uint8_t { kShort, kNormal, kLong };

enum class ChatRole : std::uint8_t { kSystem, kUser, kAssistant, kTool };

// A function that the model asks to be called.
struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as text

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// One turn of a conversation.
struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string text;
  std::vector<ToolCall> tool_calls = {};  // kAssistant

  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

// A place in the image that the prompt refers to; normalised to [0, 1]. Width and height are 0 for
// a point.
struct SpatialRef {
  bool is_box = false;
  float x_center = 0;
  float y_center = 0;
  float width = 0;
  float height = 0;
};

}  // namespace gapless
