// Plants violations of the pipeline's invariants behind its back, so that tests can show that each
// one is caught. Nothing outside tests includes this.
#pragma once

#include <utility>

#include "pipeline/loop.h"
#include "pipeline/pipeline_state.h"

namespace gapless {

struct PipelineStateSaboteur {
  // I4: the slot can be launched again although its step is in flight.
  static void free_slot_early(PipelineState& state, SlotId slot) {
    state.slots_[state.index(slot)].phase = SlotPhase::kFree;
  }
  // I1: a step counts as sampled although its sampling was not launched, so that the next one is
  // launched over it; and back.
  static void pretend_sampled(PipelineState& state, SlotId slot) {
    state.slots_[state.index(slot)].phase = SlotPhase::kLaunched;
  }
  static void await_sampling(PipelineState& state, SlotId slot) {
    state.slots_[state.index(slot)].phase = SlotPhase::kAwaitingFinalize;
  }
  // I2: the second oldest step is committed before the oldest.
  static void swap_two_oldest(PipelineState& state) { std::swap(state.queue_[0], state.queue_[1]); }
  // I3, I5: the state believes that one step at most refers to the row, so its next mask is built
  // before its previous token is committed.
  static void forget_refs(PipelineState& state, RowId row, int refs = 1) {
    state.rows_[state.index(row)].inflight_refs = refs;
  }
  // I6: a finished sequence counts as running again.
  static void revive(PipelineState& state, RowId row) {
    state.rows_[state.index(row)].finalized = false;
  }
  // I6: the row is vacant although steps in flight write to it.
  static void vacate(PipelineState& state, RowId row) {
    state.rows_[state.index(row)].sequence = SequenceId();
  }
};

struct LoopSaboteur {
  static PipelineState& state(Loop& loop) { return loop.state_; }
  static PipelineStreams& streams(Loop& loop) { return loop.streams_; }
  static void release_if_done(Loop& loop, RowId row) { loop.release_if_done(row); }
};

}  // namespace gapless
