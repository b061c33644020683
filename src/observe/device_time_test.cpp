// What the ledger says while things go on: device_time().
#include "observe/device_time.h"

#include <gtest/gtest.h>

#include "observe/ledger.h"

namespace gapless {
namespace {

StepRecord device_step(std::int64_t number, std::int64_t begin, std::int64_t end) {
  StepRecord record;
  record.number = number;
  record.launch_begin_ns = begin - 1'000'000;  // no causality correction
  record.wait_end_ns = end + 1'000'000;
  record.forward_begin_ns = begin;
  record.forward_end_ns = end;
  record.sampling_begin_ns = record.sampling_end_ns = end;
  return record;
}

TEST(DeviceTimeTest, APauseCountsWhileItLasts) {
  Ledger ledger(8);
  ledger.start(1'000);
  ledger.idle_since(1'000);
  EXPECT_EQ(ledger.device_time(1'000).all_ns(), 0);
  EXPECT_EQ(ledger.device_time(5'000).starved_ns(), 4'000);
  ledger.begin_preparing(6'000);
  EXPECT_EQ(ledger.device_time(9'000).starved_ns(), 5'000);
  EXPECT_EQ(ledger.device_time(9'000).preparing_ns(), 3'000);
  ledger.end_preparing(10'000);
  const DeviceTime time = ledger.device_time(12'000);
  EXPECT_EQ(time.starved_ns(), 7'000);
  EXPECT_EQ(time.preparing_ns(), 4'000);
  EXPECT_EQ(time.busy_ns() + time.bubble_ns(), 0);
}

TEST(DeviceTimeTest, ALongStepCountsWhileItRuns) {
  Ledger ledger(8);
  ledger.start(0);
  ledger.idle_since(0);
  ledger.add_phase(HostPhaseKind::kIdle, -1, 0, 100);
  ledger.launched(0, 110);
  EXPECT_EQ(ledger.device_time(500'110).busy_ns(), 500'000);
  EXPECT_EQ(ledger.device_time(500'110).starved_ns(), 100);
  EXPECT_EQ(ledger.device_time(500'110).bubble_ns(HostPhaseKind::kOther), 10);
  ledger.add(device_step(0, 120, 600'000));
  EXPECT_EQ(ledger.totals().elapsed_ns(), 599'880);
  // Done, and nothing is known of what comes: the loop is at work on it.
  EXPECT_EQ(ledger.device_time(600'050).bubble_ns(), 50 + 20);
  EXPECT_EQ(ledger.device_time(600'050).all_ns(), 600'050);
}

TEST(DeviceTimeTest, AStepThatIsTakenBackIsNotBusy) {
  Ledger ledger(8);
  ledger.start(0);
  ledger.launched(3, 0);
  ledger.launched(4, 0);
  ledger.abandoned(4);
  ledger.add(device_step(3, 0, 50));
  ledger.idle_since(50);
  EXPECT_EQ(ledger.device_time(1'050).starved_ns(), 1'000);
}

// At 1,000 the step seems to be running still; its record says that it ended at 400.
TEST(DeviceTimeTest, ACorrectionTakesNothingBackAndIsMadeGood) {
  Ledger ledger(8);
  ledger.start(0);
  ledger.launched(0, 0);
  EXPECT_EQ(ledger.device_time(1'000).busy_ns(), 1'000);
  ledger.add_phase(HostPhaseKind::kCommit, 0, 400, 1'100);
  ledger.add(device_step(0, 0, 400));
  DeviceTime time = ledger.device_time(1'100);
  EXPECT_EQ(time.busy_ns(), 1'000) << "no counter goes back";
  EXPECT_EQ(time.bubble_ns(HostPhaseKind::kCommit), 100);
  ledger.launched(1, 1'100);
  ledger.add(device_step(1, 1'100, 2'100));
  time = ledger.device_time(2'100);
  EXPECT_EQ(time.busy_ns(), 1'400);
  EXPECT_EQ(time.bubble_ns(HostPhaseKind::kCommit), 700);
  EXPECT_EQ(time.all_ns(), 2'100);
}

TEST(DeviceTimeTest, WhatLagsCatchesUpInProportion) {
  DeviceTime estimate;
  estimate.add_busy(300);
  estimate.add({DeviceActivity::kStarved, HostPhaseKind::kIdle, 0, 100});
  DeviceTime time;
  ASSERT_TRUE(time.advance_towards(estimate, 200));
  EXPECT_EQ(time.busy_ns(), 150);
  EXPECT_EQ(time.starved_ns(), 50);
  ASSERT_TRUE(time.advance_towards(estimate, 200));
  EXPECT_EQ(time.busy_ns(), 300);
  EXPECT_EQ(time.all_ns(), 400);
  EXPECT_FALSE(time.advance_towards(estimate, 1)) << "nothing lags";
  EXPECT_EQ(time.all_ns(), 400);
}

TEST(DeviceTimeTest, RestartingTheTotalsLeavesItAlone) {
  Ledger ledger(8);
  ledger.start(0);
  ledger.add(device_step(0, 100, 200));
  ledger.restart();
  EXPECT_EQ(ledger.totals().elapsed_ns(), 0);
  ledger.add(device_step(1, 300, 350));
  EXPECT_EQ(ledger.totals().busy_ns, 50);
  EXPECT_EQ(ledger.totals().elapsed_ns(), 50) << "the gap before it is not counted";
  EXPECT_EQ(ledger.device_time(350).busy_ns(), 150);
  EXPECT_EQ(ledger.device_time(350).all_ns(), 350);
}

// Two at once, the second of which was there for longer than the first; then one in the past.
TEST(DeviceTimeTest, PreparationsThatOverlapCountOnce) {
  Ledger ledger(8);
  ledger.start(0);
  ledger.add(device_step(0, 0, 100));
  ledger.idle_since(100);
  ledger.begin_preparing(300);
  ledger.begin_preparing(200);
  ledger.begin_preparing(250);
  ledger.end_preparing(350);
  ledger.end_preparing(400);
  ledger.end_preparing(500);
  ledger.begin_preparing(450);  // told late
  ledger.end_preparing(600);
  ledger.add_phase(HostPhaseKind::kIdle, -1, 100, 700);
  ledger.add(device_step(1, 700, 800));
  const LedgerTotals totals = ledger.totals();
  EXPECT_EQ(totals.preparing_ns, 400);
  EXPECT_EQ(totals.starved_ns, 200);
  EXPECT_EQ(totals.bubble_ns, 0);
  const std::vector<IdlePart> parts = ledger.idle_parts();
  ASSERT_EQ(parts.size(), 4u);
  const DeviceActivity states[] = {DeviceActivity::kStarved, DeviceActivity::kPreparing,
                                   DeviceActivity::kPreparing, DeviceActivity::kStarved};
  std::int64_t at = 100;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].state, states[i]) << i;
    EXPECT_EQ(parts[i].begin_ns, at) << "one behind the other";
    at = parts[i].end_ns;
  }
  EXPECT_EQ(at, 700);
}

// While the loop has work, a gap is its fault, whoever else is on the way.
TEST(DeviceTimeTest, PreparingExcusesNoBubble) {
  Ledger ledger(8);
  ledger.start(0);
  ledger.begin_preparing(0);
  ledger.add(device_step(0, 0, 100));
  ledger.add_phase(HostPhaseKind::kCommit, 0, 100, 160);
  ledger.add_phase(HostPhaseKind::kLaunch, 1, 160, 200);
  ledger.add(device_step(1, 200, 300));
  EXPECT_EQ(ledger.totals().preparing_ns, 0);
  EXPECT_EQ(ledger.totals().bubble_by_phase_ns[static_cast<std::size_t>(HostPhaseKind::kCommit)],
            60);
  EXPECT_EQ(ledger.totals().bubble_ns, 100);
}

}  // namespace
}  // namespace gapless
