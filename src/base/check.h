// Checks for our own bugs. A failed check prints where and why, and stops the process: the state
// is no longer known to be right. Never reachable from anything that a user sends.
#pragma once

#include <string_view>

namespace gapless::internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);
}  // namespace gapless::internal

#define GAPLESS_CHECK(condition) GAPLESS_CHECK_MSG(condition, "")

#define GAPLESS_CHECK_MSG(condition, message)                                       \
  do {                                                                              \
    if (!(condition)) [[unlikely]]                                                  \
      ::gapless::internal::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
