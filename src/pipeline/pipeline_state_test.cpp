#include "pipeline/pipeline_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "testing/pipeline_saboteur.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;

constexpr SlotId kSlot0(0), kSlot1(1), kSlot2(2);
constexpr RowId kRow0(0), kRow1(1);

class PipelineStateTest : public ::testing::Test {
 protected:
  PipelineStateTest() {
    EXPECT_TRUE(state_.seat(kRow0, SequenceId(100)).ok());
    EXPECT_TRUE(state_.seat(kRow1, SequenceId(101)).ok());
  }

  Status launch(SlotId slot, std::vector<StepMember> members) {
    return state_.launch(slot, members);
  }
  // A plain step: sampling goes with the forward.
  void run_ahead(SlotId slot, std::vector<StepMember> members) {
    ASSERT_TRUE(state_.launch(slot, members).ok());
    ASSERT_TRUE(state_.sampling_launched(slot).ok());
  }
  void commit(SlotId slot) {
    ASSERT_TRUE(state_.begin_commit(slot).ok());
    ASSERT_TRUE(state_.end_commit(slot).ok());
  }
  void expect_illegal(const Status& status, std::string_view what) {
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(std::string(what)));
    EXPECT_TRUE(state_.check().ok()) << state_.check().to_string();
  }

  PipelineState state_{3, 4};  // 3 slots, 4 seats
};

TEST_F(PipelineStateTest, ASlotGoesAroundOnce) {
  EXPECT_EQ(state_.phase(kSlot0), SlotPhase::kFree);
  ASSERT_TRUE(launch(kSlot0, {{kRow0, false}}).ok());
  EXPECT_EQ(state_.phase(kSlot0), SlotPhase::kAwaitingFinalize);
  ASSERT_TRUE(state_.sampling_launched(kSlot0).ok());
  EXPECT_EQ(state_.phase(kSlot0), SlotPhase::kLaunched);
  ASSERT_TRUE(state_.begin_commit(kSlot0).ok());
  EXPECT_EQ(state_.phase(kSlot0), SlotPhase::kCommitting);
  EXPECT_FALSE(state_.is_empty());
  ASSERT_TRUE(state_.end_commit(kSlot0).ok());
  EXPECT_EQ(state_.phase(kSlot0), SlotPhase::kFree);
  EXPECT_TRUE(state_.is_empty());
}

// Two seats, and kRowsPerSeat rows to each.
TEST_F(PipelineStateTest, AFinalizedSequenceHasItsRowButNoSeat) {
  PipelineState state(3, 2);
  const RowId row2(2), last_row(2 * kRowsPerSeat - 1);
  ASSERT_TRUE(state.seat(kRow0, SequenceId(1)).ok());
  EXPECT_TRUE(state.has_free_seat());
  ASSERT_TRUE(state.seat(kRow1, SequenceId(2)).ok());
  EXPECT_FALSE(state.has_free_seat());
  EXPECT_THAT(state.seat(row2, SequenceId(3)).message(), HasSubstr("all seats are taken"));
  ASSERT_TRUE(state.launch(kSlot0, std::vector<StepMember>{{kRow0}, {kRow1}}).ok());
  ASSERT_TRUE(state.sampling_launched(kSlot0).ok());
  ASSERT_TRUE(state.finalize_sequence(kRow0).ok());
  EXPECT_EQ(state.num_seated(), 1);
  EXPECT_THAT(state.seat(kRow0, SequenceId(3)).message(), HasSubstr("the row is taken"));
  ASSERT_TRUE(state.seat(last_row, SequenceId(3)).ok());
  EXPECT_FALSE(state.has_free_seat());
  EXPECT_TRUE(state.check().ok()) << state.check().to_string();
  // To release the row changes nothing about the seats.
  ASSERT_TRUE(state.begin_commit(kSlot0).ok());
  ASSERT_TRUE(state.end_commit(kSlot0).ok());
  ASSERT_TRUE(state.release(kRow0).ok());
  EXPECT_EQ(state.num_seated(), 2);
  EXPECT_THAT(state.seat(kRow0, SequenceId(4)).message(), HasSubstr("all seats are taken"));
  EXPECT_TRUE(state.check().ok()) << state.check().to_string();
}

TEST_F(PipelineStateTest, AStepHasNoMoreMembersThanThereAreSeats) {
  PipelineState state(2, 1);
  ASSERT_TRUE(state.seat(kRow0, SequenceId(1)).ok());
  const std::vector<StepMember> two{{kRow0}, {kRow1}};
  EXPECT_THAT(state.launch(kSlot0, two).message(), HasSubstr("more members than seats"));
}

TEST_F(PipelineStateTest, CheckSeesSeatsThatAreTakenTwice) {
  PipelineState state(2, 1);
  ASSERT_TRUE(state.seat(kRow0, SequenceId(1)).ok());
  ASSERT_TRUE(state.finalize_sequence(kRow0).ok());
  ASSERT_TRUE(state.seat(kRow1, SequenceId(2)).ok());
  EXPECT_TRUE(state.check().ok());
  PipelineStateSaboteur::revive(state, kRow0);
  EXPECT_THAT(state.check().message(), HasSubstr("1 seats of 1 are taken, by 2 sequences"));
}

TEST_F(PipelineStateTest, I1NothingIsLaunchedWhileTheNewestAwaitsItsSampling) {
  ASSERT_TRUE(launch(kSlot0, {{kRow0, true}}).ok());
  EXPECT_FALSE(state_.can_launch());
  expect_illegal(launch(kSlot1, {{kRow1, false}}), "slot 1");
  ASSERT_TRUE(state_.sampling_launched(kSlot0).ok());
  EXPECT_TRUE(state_.can_launch());
  EXPECT_TRUE(launch(kSlot1, {{kRow1, false}}).ok());
}

TEST_F(PipelineStateTest, I2StepsCommitInLaunchOrder) {
  run_ahead(kSlot2, {{kRow0, false}});
  run_ahead(kSlot0, {{kRow0, false}});
  expect_illegal(state_.begin_commit(kSlot0), "slot 0 (launched): it is not the oldest (I2)");
  EXPECT_EQ(state_.oldest(), kSlot2);
  EXPECT_EQ(state_.newest(), kSlot0);
  ASSERT_TRUE(state_.begin_commit(kSlot2).ok());
  expect_illegal(state_.begin_commit(kSlot0), "another slot is being committed (I2)");
  ASSERT_TRUE(state_.end_commit(kSlot2).ok());
  EXPECT_TRUE(state_.begin_commit(kSlot0).ok());
}

TEST_F(PipelineStateTest, I2AStepCommitsOnlyWithItsSamplingLaunchedAndOnlyOnce) {
  expect_illegal(state_.begin_commit(kSlot0), "slot 0 (free)");
  ASSERT_TRUE(launch(kSlot0, {{kRow0, false}}).ok());
  expect_illegal(state_.begin_commit(kSlot0), "its sampling is not launched");
  expect_illegal(state_.end_commit(kSlot0), "it is not being committed");
  ASSERT_TRUE(state_.sampling_launched(kSlot0).ok());
  expect_illegal(state_.sampling_launched(kSlot0), "does not await its sampling");
  commit(kSlot0);
  expect_illegal(state_.end_commit(kSlot0), "it is not being committed");
}

TEST_F(PipelineStateTest, I3RefsCountTheStepsOfARow) {
  run_ahead(kSlot0, {{kRow0, false}, {kRow1, false}});
  run_ahead(kSlot1, {{kRow0, false}});
  EXPECT_EQ(state_.inflight_refs(kRow0), 2);
  EXPECT_EQ(state_.inflight_refs(kRow1), 1);
  ASSERT_TRUE(state_.begin_commit(kSlot0).ok());
  EXPECT_EQ(state_.inflight_refs(kRow0), 2) << "a step that is being committed still refers to it";
  ASSERT_TRUE(state_.end_commit(kSlot0).ok());
  EXPECT_EQ(state_.inflight_refs(kRow0), 1);
  EXPECT_EQ(state_.inflight_refs(kRow1), 0);
}

TEST_F(PipelineStateTest, I4PoppingDoesNotFreeTheSlot) {
  run_ahead(kSlot0, {{kRow0, false}});
  run_ahead(kSlot1, {{kRow0, false}});
  run_ahead(kSlot2, {{kRow0, false}});
  EXPECT_FALSE(state_.free_slot().has_value());
  expect_illegal(launch(kSlot0, {{kRow1, false}}), "slot 0 (launched): the slot is in use (I4)");
  ASSERT_TRUE(state_.begin_commit(kSlot0).ok());
  EXPECT_FALSE(state_.free_slot().has_value());
  expect_illegal(launch(kSlot0, {{kRow1, false}}), "slot 0 (committing): the slot is in use (I4)");
  ASSERT_TRUE(state_.end_commit(kSlot0).ok());
  EXPECT_EQ(state_.free_slot(), kSlot0);
}

TEST_F(PipelineStateTest, I5SamplingOfAHostMaskedRowWaitsForItsPreviousCommit) {
  run_ahead(kSlot0, {{kRow0, true}, {kRow1, false}});
  ASSERT_TRUE(launch(kSlot1, {{kRow0, true}, {kRow1, false}}).ok());
  EXPECT_FALSE(state_.can_finalize(kSlot1));
  expect_illegal(state_.sampling_launched(kSlot1),
                 "slot 1 (awaiting finalize), row 0, sequence 100: its previous token is not "
                 "committed (I5)");
  ASSERT_TRUE(state_.begin_commit(kSlot0).ok());
  EXPECT_FALSE(state_.can_finalize(kSlot1)) << "the commit has not ended";
  ASSERT_TRUE(state_.end_commit(kSlot0).ok());
  EXPECT_TRUE(state_.can_finalize(kSlot1));
  EXPECT_TRUE(state_.sampling_launched(kSlot1).ok());
}

TEST_F(PipelineStateTest, I5PlainRowsDoNotWait) {
  run_ahead(kSlot0, {{kRow0, false}});
  ASSERT_TRUE(launch(kSlot1, {{kRow0, false}, {kRow1, true}}).ok());
  EXPECT_TRUE(state_.can_finalize(kSlot1)) << "row 1 is in this step only";
}

TEST_F(PipelineStateTest, I6FinalizeEarlyReleaseLate) {
  run_ahead(kSlot0, {{kRow0, false}});
  run_ahead(kSlot1, {{kRow0, false}});
  ASSERT_TRUE(state_.begin_commit(kSlot0).ok());
  ASSERT_TRUE(state_.finalize_sequence(kRow0).ok());
  ASSERT_TRUE(state_.end_commit(kSlot0).ok());
  expect_illegal(state_.release(kRow0),
                 "row 0, sequence 100 (1 in flight): steps in flight refer to it (I6)");
  expect_illegal(state_.finalize_sequence(kRow0), "finalized already (I6)");
  expect_illegal(launch(kSlot2, {{kRow0, false}}), "the sequence is finalized (I6)");
  commit(kSlot1);
  ASSERT_TRUE(state_.release(kRow0).ok());
  EXPECT_FALSE(state_.is_seated(kRow0));
  expect_illegal(state_.release(kRow0), "vacant");
  expect_illegal(state_.finalize_sequence(kRow0), "vacant");
  EXPECT_TRUE(state_.seat(kRow0, SequenceId(102)).ok());
  EXPECT_FALSE(state_.is_finalized(kRow0));
}

TEST_F(PipelineStateTest, I6ReleaseNeedsFinalize) {
  expect_illegal(state_.release(kRow0), "it is not finalized (I6)");
}

TEST_F(PipelineStateTest, SeatsAreTakenOnce) {
  expect_illegal(state_.seat(kRow0, SequenceId(7)), "row 0, sequence 100");
  expect_illegal(state_.seat(RowId(2), SequenceId()), "no id");
}

TEST_F(PipelineStateTest, MembersMustBeSeatedAndDistinct) {
  expect_illegal(launch(kSlot0, {}), "without members");
  expect_illegal(launch(kSlot0, {{RowId(2), false}}), "row 2");
  expect_illegal(launch(kSlot0, {{kRow0, false}, {kRow0, false}}), "listed twice");
  EXPECT_EQ(state_.inflight_refs(kRow0), 0);
}

TEST_F(PipelineStateTest, AbandonTakesTheNewestStepBack) {
  run_ahead(kSlot0, {{kRow0, false}});
  ASSERT_TRUE(launch(kSlot1, {{kRow0, true}}).ok());
  expect_illegal(state_.abandon(kSlot0), "it is not the newest (I2)");
  expect_illegal(state_.abandon(kSlot2), "slot 2 (free)");
  ASSERT_TRUE(state_.abandon(kSlot1).ok());
  EXPECT_EQ(state_.inflight_refs(kRow0), 1);
  ASSERT_TRUE(state_.begin_commit(kSlot0).ok());
  ASSERT_TRUE(state_.abandon(kSlot0).ok());
  EXPECT_EQ(state_.inflight_refs(kRow0), 0);
  EXPECT_TRUE(state_.is_empty());
}

// A planted violation of each invariant is seen by check().
TEST_F(PipelineStateTest, CheckSeesASlotReusedEarlyI4) {
  run_ahead(kSlot0, {{kRow0, false}});
  PipelineStateSaboteur::free_slot_early(state_, kSlot0);
  EXPECT_THAT(state_.check().message(), HasSubstr("(I4)"));
}

TEST_F(PipelineStateTest, CheckSeesCommitsOutOfOrderI2) {
  run_ahead(kSlot0, {{kRow0, false}});
  run_ahead(kSlot1, {{kRow0, false}});
  PipelineStateSaboteur::swap_two_oldest(state_);
  EXPECT_THAT(state_.check().message(), HasSubstr("(I2)"));
}

TEST_F(PipelineStateTest, CheckSeesAReferenceLostI3) {
  run_ahead(kSlot0, {{kRow0, false}});
  run_ahead(kSlot1, {{kRow0, false}});
  PipelineStateSaboteur::forget_refs(state_, kRow0);
  EXPECT_THAT(state_.check().message(), HasSubstr("(I3)"));
}

TEST_F(PipelineStateTest, CheckSeesAnEarlyReleaseI6) {
  run_ahead(kSlot0, {{kRow0, false}});
  PipelineStateSaboteur::vacate(state_, kRow0);
  EXPECT_THAT(state_.check().message(), HasSubstr("(I6)"));
}

}  // namespace
}  // namespace gapless
