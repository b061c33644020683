// Why a generation ended.
#pragma once

#include <cstdint>
#include <string_view>

namespace gapless {

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kError };

// "stop", "length", "cancelled", "error": as the HTTP APIs spell them.
constexpr std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

}  // namespace gapless
