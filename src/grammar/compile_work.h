// The bound on what compiling one grammar may cost.
//
// Schemas of a few hundred bytes may multiply out to hours of work, and no bound on the size of what comes
// out catches them all: intersections may be large on the way and empty at their end. So whoever works in
// proportion to what a user wrote charges for it.
#pragma once

#include "base/status.h"

namespace gapless {

// While one lives, what its thread spends counts towards its bound. An inner one counts for itself alone.
class CompileWork {
 public:
  explicit CompileWork(long max_steps);
  ~CompileWork();
  CompileWork(const CompileWork&) = delete;
  CompileWork& operator=(const CompileWork&) = delete;

  // ResourceExhausted past the bound, and from then on. A step takes some ten nanoseconds. Without a
  // CompileWork on this thread everything is free.
  static Status spend(long steps);
  long spent() const { return spent_; }

 private:
  CompileWork* const outer_;
  const long max_steps_;
  long spent_ = 0;
};

}  // namespace gapless
