// Whether to launch anything behind a decode step whose tokens are not known yet.
//
// Running ahead hides the host's work. It costs something when rows end in the step in flight: they
// are zombies in a decode step behind it, and whoever takes their seats starts a step later, or in a
// fill of its own behind one for few. With answers of a hundred tokens that is nothing; with answers
// of three tokens half of the rows are zombies in half of the steps, and the blocking loop is
// faster. So for each decode step two times are compared:
//
//   loss  p (1 - p^(B-1)) T   B rows in a step of T, each of which ends with probability p: its
//                             share of the next step is lost. A step that all rows have left costs
//                             next to nothing (kernels.h, DecoderBlocksParams), hence the bracket.
//   gain  H                   what the device would idle, were the next step launched after the
//                             commit of this one: the host's work on a step, times kIdlePerWork.
//
// p, T and H are averages of the decode steps that were committed. Tokens do not depend on the
// answer (I8), only time does.
//
// Threads: the engine thread only.
#pragma once

#include <cstdint>

namespace gapless {

class RunAhead {
 public:
  struct Step {
    int num_rows = 0;          // that were alive
    int num_ended = 0;         // of those, in this step
    std::int64_t step_ns = 0;  // forward and sampling
    std::int64_t host_ns = 0;  // plan, launch, finalize, commit
  };
  // A decode step with live rows was committed.
  void committed(const Step& step);

  // Whether to launch behind a decode step of num_rows rows. True until something is known.
  bool pays(int num_rows) const;

  double ending_share() const { return ending_share_; }  // p

 private:
  double ending_share_ = 0;
  double step_ns_ = 0;
  double host_ns_ = 0;
  bool any_ = false;
};

}  // namespace gapless
