// Giving up work on a picture that nobody waits for any more.
#pragma once

#include <functional>

#include "base/status.h"

namespace gapless {

// Asked at least once for each row of a picture that is decoded or resized, perhaps by several
// threads at once. True: give up. Empty: never.
using StopCheck = std::function<bool()>;

inline bool is_stopped(const StopCheck& stop) {
  return stop && stop();
}

inline Status stopped_status() {
  return Status(StatusCode::kCancelled, "work on the picture was given up");
}

}  // namespace gapless
