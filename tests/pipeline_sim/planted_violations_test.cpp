// Shows that the simulator is no rubber stamp: each invariant is broken once, behind the loop's
// back, and each time the verdict says so. With the state machine's own check, and, where the harm
// shows in what the loop does, without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "testing/pipeline_saboteur.h"
#include "tests/pipeline_sim/run_schedule.h"

namespace gapless {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr RowId kRow0(0);

// Three long answers that arrive together, and nothing else going wrong.
Schedule calm_schedule(int depth, RowKind kind) {
  Schedule schedule = make_schedule(5);
  schedule.loop = LoopOptions{.depth = depth, .ledger_capacity = 16};
  schedule.model.limits = FakeModelConfig::small().limits;
  schedule.model.limits.max_seats = 3;
  schedule.model.limits.max_prefill_sequences = 1;
  schedule.model.limits.num_pages = 40;
  schedule.device.faults = {};
  schedule.device.times = SimTimes();
  schedule.model.forward_ns = [](const StepShape&) { return std::int64_t{50'000}; };
  schedule.model.sampling_ns = [](const StepShape&) { return std::int64_t{5'000}; };
  schedule.requests.clear();
  for (std::uint32_t i = 0; i < 3; ++i) {
    schedule.requests.push_back(
        {.kind = kind, .num_text_tokens = 5, .max_generated = 20, .seed = 40 + i});
  }
  return schedule;
}

std::string verdict_of(const Schedule& schedule, std::function<void(Loop&)> plant,
                       bool check_state) {
  return run_schedule(schedule, {.after_tick = std::move(plant), .check_state = check_state})
      .violation;
}

TEST(PlantedViolationTest, TheCalmScheduleIsFine) {
  for (const RowKind kind : {RowKind::kPlain, RowKind::kHostMask, RowKind::kGrammar}) {
    EXPECT_EQ(verdict_of(calm_schedule(3, kind), nullptr, true), "");
  }
}

// I1: the next step is launched although the one before it has not sampled.
TEST(PlantedViolationTest, AForwardBeforeTheSamplingBeforeItI1) {
  for (const bool check_state : {true, false}) {
    std::optional<SlotId> slot;
    bool restored = false;
    const auto plant = [&](Loop& loop) {
      PipelineState& state = LoopSaboteur::state(loop);
      if (!slot) {
        slot = state.awaiting_finalize();
        if (slot) PipelineStateSaboteur::pretend_sampled(state, *slot);
      } else if (check_state && !restored) {  // what is left to see: the order of launches
        PipelineStateSaboteur::await_sampling(state, *slot);
        restored = true;
      }
    };
    const Schedule schedule = calm_schedule(3, RowKind::kHostMask);
    // Whoever does not look at the state sees what comes of it: lost time or a wrong answer.
    const std::string verdict = verdict_of(schedule, plant, check_state);
    if (check_state) {
      EXPECT_THAT(verdict, HasSubstr("(I1)"));
    } else {
      EXPECT_THAT(verdict, AnyOf(HasSubstr("request "), HasSubstr("ledger:")));
    }
    EXPECT_TRUE(slot.has_value());
  }
}

// I3: a reference too many, or one too few.
TEST(PlantedViolationTest, AReferenceThatNobodyHoldsI3) {
  for (const int difference : {-1, 1}) {
    bool done = false;
    const auto plant = [&](Loop& loop) {
      PipelineState& state = LoopSaboteur::state(loop);
      const int refs = state.inflight_refs(kRow0);
      if (done || refs != 1) return;
      PipelineStateSaboteur::forget_refs(state, kRow0, refs + difference);
      done = true;
    };
    EXPECT_THAT(verdict_of(calm_schedule(2, RowKind::kPlain), plant, true), HasSubstr("(I3)"));
    EXPECT_TRUE(done);
  }
  // Without the state's own check: a reference of a zombie that never goes keeps its row seated for
  // ever.
  bool done = false;
  const auto plant = [&](Loop& loop) {
    PipelineState& state = LoopSaboteur::state(loop);
    if (done || !state.is_finalized(kRow0) || state.inflight_refs(kRow0) != 1) return;
    PipelineStateSaboteur::forget_refs(state, kRow0, 2);
    done = true;
  };
  Schedule schedule = calm_schedule(2, RowKind::kPlain);
  schedule.requests[0].stop_after = 4;
  EXPECT_THAT(verdict_of(schedule, plant, false), HasSubstr("does not come to an end"));
}

// I4: the slot is launched again while its forward runs.
TEST(PlantedViolationTest, ASlotReusedEarlyI4) {
  const auto plant = [](Loop& loop) {
    PipelineState& state = LoopSaboteur::state(loop);
    if (state.num_in_flight() == 1) {
      PipelineStateSaboteur::free_slot_early(state, *state.oldest());
    }
  };
  EXPECT_THAT(verdict_of(calm_schedule(2, RowKind::kPlain), plant, true), HasSubstr("(I4)"));
  EXPECT_THAT(verdict_of(calm_schedule(2, RowKind::kPlain), plant, false), HasSubstr("I4"));
}

// I5: the mask of a step is built although its row's previous token is not committed.
TEST(PlantedViolationTest, AMaskBuiltBeforeTheCommitI5) {
  for (const bool check_state : {true, false}) {
    std::optional<int> true_refs;
    RowId masked;
    const auto plant = [&](Loop& loop) {
      PipelineState& state = LoopSaboteur::state(loop);
      if (true_refs) {  // give the reference back, so that only the mask was wrong
        PipelineStateSaboteur::forget_refs(state, masked, *true_refs - 1);
        true_refs.reset();
        return;
      }
      const auto slot = state.awaiting_finalize();
      if (!slot || masked.valid()) return;
      for (const StepMember& member : state.members(*slot)) {
        if (state.inflight_refs(member.row) > 1) masked = member.row;
      }
      if (!masked.valid()) return;
      true_refs = state.inflight_refs(masked);
      PipelineStateSaboteur::forget_refs(state, masked);
    };
    // Prefilled one by one, so that another one's step is committed first.
    const Schedule schedule = calm_schedule(3, RowKind::kHostMask);
    EXPECT_THAT(verdict_of(schedule, plant, check_state), HasSubstr(check_state ? "(I3)" : "I8:"));
    EXPECT_TRUE(masked.valid());
  }
}

// I6: the pages and the row of a zombie are given back while a step writes to them.
TEST(PlantedViolationTest, AReleaseBeforeRefsReachZeroI6) {
  const auto plant = [](Loop& loop) {
    PipelineState& state = LoopSaboteur::state(loop);
    for (int i = 0; i < 3; ++i) {
      const RowId row(i);
      if (!state.is_finalized(row) || state.inflight_refs(row) == 0) continue;
      PipelineStateSaboteur::forget_refs(state, row, 0);
      LoopSaboteur::release_if_done(loop, row);
    }
  };
  Schedule schedule = calm_schedule(2, RowKind::kPlain);
  schedule.requests[0].stop_after = 4;
  EXPECT_THAT(verdict_of(schedule, plant, true), AnyOf(HasSubstr("(I3)"), HasSubstr("(I6)")));
}

// I6: a commit of a finished sequence changes it.
TEST(PlantedViolationTest, AZombieThatIsCommittedI6) {
  const auto plant = [](Loop& loop) {
    PipelineState& state = LoopSaboteur::state(loop);
    for (int i = 0; i < 3; ++i) {
      if (state.is_finalized(RowId(i))) PipelineStateSaboteur::revive(state, RowId(i));
    }
  };
  Schedule schedule = calm_schedule(2, RowKind::kPlain);
  schedule.requests[0].stop_after = 4;
  EXPECT_THAT(verdict_of(schedule, plant, false), HasSubstr("request 0: finished"));
}

// I2: the newer of two steps is committed first.
TEST(PlantedViolationTest, CommitsOutOfOrderI2) {
  for (const bool check_state : {true, false}) {
    bool done = false;
    const auto plant = [&done](Loop& loop) {
      PipelineState& state = LoopSaboteur::state(loop);
      // Both steps decode row 0, so its tokens change places.
      if (done || state.num_in_flight() < 2 || state.inflight_refs(kRow0) < 2) return;
      PipelineStateSaboteur::swap_two_oldest(state);
      done = true;
    };
    Schedule schedule = calm_schedule(4, RowKind::kPlain);
    schedule.requests.resize(1);
    EXPECT_THAT(verdict_of(schedule, plant, check_state), HasSubstr(check_state ? "(I2)" : "I8:"));
    EXPECT_TRUE(done);
  }
}

// I8: a kernel whose result for a row depends on the batch around it.
TEST(PlantedViolationTest, AKernelThatIsNotRowInvariantI8) {
  for (const int depth : {1, 2, 3, 4}) {
    Schedule schedule = calm_schedule(depth, RowKind::kPlain);
    schedule.model.depends_on_batch = true;
    EXPECT_THAT(verdict_of(schedule, nullptr, true), HasSubstr("I8:"));
  }
}

// I7: one synchronisation in the middle of a run.
TEST(PlantedViolationTest, AForbiddenCallI7) {
  int tick = 0;
  const auto plant = [&tick](Loop& loop) {
    if (++tick == 5) (void)LoopSaboteur::streams(loop).compute->synchronize();
  };
  EXPECT_THAT(verdict_of(calm_schedule(2, RowKind::kPlain), plant, true), HasSubstr("I7:"));
}

}  // namespace
}  // namespace gapless
