#include "observe/ledger.h"

#include <gtest/gtest.h>

namespace gapless {
namespace {

constexpr auto kPhase = [](HostPhaseKind kind) { return static_cast<std::size_t>(kind); };

StepRecord step(std::int64_t begin, std::int64_t forward_end, std::int64_t sampling_end) {
  StepRecord record;
  record.num_rows = 4;
  record.launch_begin_ns = begin - 1'000'000;  // no causality correction
  record.wait_end_ns = sampling_end + 1'000'000;
  record.forward_begin_ns = begin;
  record.forward_end_ns = forward_end;
  record.sampling_begin_ns = forward_end;
  record.sampling_end_ns = sampling_end;
  return record;
}

TEST(LedgerTest, BackToBackStepsLeaveNoIdleTime) {
  Ledger ledger(8);
  ledger.add(step(100, 180, 200));
  ledger.add(step(200, 280, 300));
  const LedgerTotals totals = ledger.totals();
  EXPECT_EQ(totals.busy_ns, 200);
  EXPECT_EQ(totals.bubble_ns, 0);
  EXPECT_EQ(totals.starved_ns, 0);
  EXPECT_EQ(totals.forward_ns[static_cast<std::size_t>(StepKind::kDecode)], 160);
  EXPECT_EQ(totals.sampling_ns[static_cast<std::size_t>(StepKind::kDecode)], 40);
}

TEST(LedgerTest, OverlappingIntervalsCountOnce) {
  Ledger ledger(8);
  ledger.add(step(100, 180, 200));
  ledger.add(step(150, 190, 260));
  EXPECT_EQ(ledger.totals().busy_ns, 160);
}

TEST(LedgerTest, AGapIsChargedToThePhasesThatOverlapIt) {
  Ledger ledger(8);
  ledger.add(step(100, 180, 200));
  ledger.add_phase(HostPhaseKind::kWait, 0, 50, 210);
  ledger.add_phase(HostPhaseKind::kCommit, 0, 210, 240);
  ledger.add_phase(HostPhaseKind::kPlan, 1, 240, 250);
  ledger.add_phase(HostPhaseKind::kLaunch, 1, 255, 290);
  ledger.add(step(280, 350, 360));
  const LedgerTotals totals = ledger.totals();
  EXPECT_EQ(totals.bubble_ns, 80);
  EXPECT_EQ(totals.bubble_by_phase_ns[kPhase(HostPhaseKind::kWait)], 10);
  EXPECT_EQ(totals.bubble_by_phase_ns[kPhase(HostPhaseKind::kCommit)], 30);
  EXPECT_EQ(totals.bubble_by_phase_ns[kPhase(HostPhaseKind::kPlan)], 10);
  EXPECT_EQ(totals.bubble_by_phase_ns[kPhase(HostPhaseKind::kLaunch)], 25);
  EXPECT_EQ(totals.bubble_by_phase_ns[kPhase(HostPhaseKind::kOther)], 5);
  EXPECT_EQ(totals.elapsed_ns(), 260);
}

TEST(LedgerTest, TimeWithNothingQueuedIsStarvedNotBubble) {
  Ledger ledger(8);
  ledger.add(step(100, 180, 200));
  ledger.add_phase(HostPhaseKind::kCommit, 0, 200, 220);
  ledger.add_phase(HostPhaseKind::kIdle, -1, 220, 900);
  ledger.add_phase(HostPhaseKind::kLaunch, 1, 900, 1000);
  ledger.add(step(1000, 1100, 1100));
  EXPECT_EQ(ledger.totals().starved_ns, 680);
  EXPECT_EQ(ledger.totals().bubble_ns, 120);
}

TEST(LedgerTest, ALateSamplingIsABubbleToo) {
  Ledger ledger(8);
  StepRecord record = step(100, 200, 260);
  record.sampling_begin_ns = 250;
  ledger.add_phase(HostPhaseKind::kFinalize, 0, 200, 250);
  ledger.add(record);
  EXPECT_EQ(ledger.totals().bubble_by_phase_ns[kPhase(HostPhaseKind::kFinalize)], 50);
}

TEST(LedgerTest, DeviceTimeIsBroughtToTheHostClockAndKeptCausal) {
  Ledger ledger(8);
  ledger.set_clock_offset_ns(1000);
  StepRecord record = step(100, 180, 200);
  record.launch_begin_ns = 1150;  // so the forward began at 1150 or later: the offset is too small
  record.wait_end_ns = 1300;
  ledger.add(record);
  EXPECT_EQ(ledger.records().front().forward_begin_ns, 1150);
  record.launch_begin_ns = 0;
  record.wait_end_ns = 1210;  // the sampling ended by then: the offset is too large
  ledger.add(record);
  EXPECT_EQ(ledger.records().back().sampling_end_ns, 1210);
}

TEST(LedgerTest, ZombieShareAndBytesCountDecodeRows) {
  Ledger ledger(8, {.weight_bytes = 1000, .kv_token_bytes = 10});
  StepRecord record = step(0, 10, 20);
  record.num_zombies = 1;
  record.num_cached_tokens = 7;
  ledger.add(record);
  record.kind = StepKind::kPrefill;
  ledger.add(record);
  EXPECT_DOUBLE_EQ(ledger.totals().zombie_share(), 0.25);
  EXPECT_EQ(ledger.totals().decode_bytes, 1070);
  const LedgerTotals totals = ledger.totals();
  const auto decode_ns = totals.forward_ns[2] + totals.sampling_ns[2];
  ASSERT_GT(decode_ns, 0);
  EXPECT_DOUBLE_EQ(totals.decode_gb_per_s(), 1070.0 / static_cast<double>(decode_ns));
}

TEST(LedgerTest, RowsAndZombiesOfAllDecodeStepsAddUp) {
  Ledger ledger(8);
  for (const int num_zombies : {1, 2, 0}) {
    StepRecord record = step(0, 10, 20);
    record.num_zombies = num_zombies;
    ledger.add(record);
  }
  EXPECT_EQ(ledger.totals().num_decode_rows, 12);
  EXPECT_EQ(ledger.totals().num_zombie_rows, 3);
}

TEST(LedgerTest, AfterARestartTheGapBeforeTheNextStepIsNotCounted) {
  Ledger ledger(8);
  ledger.add(step(100, 180, 200));
  ledger.restart();
  ledger.add(step(900, 980, 1000));
  ledger.add_phase(HostPhaseKind::kCommit, 1, 1000, 1010);
  ledger.add(step(1010, 1050, 1060));
  const LedgerTotals totals = ledger.totals();
  EXPECT_EQ(totals.busy_ns, 150);
  EXPECT_EQ(totals.bubble_ns, 10);
  EXPECT_EQ(totals.elapsed_ns(), 160);
}

TEST(LedgerTest, KeepsTheLastRecordsOnly) {
  Ledger ledger(2);
  for (std::int64_t i = 0; i < 5; ++i) {
    StepRecord record = step(100 * i, 100 * i + 50, 100 * i + 60);
    record.number = i;
    ledger.add(record);
  }
  const auto records = ledger.records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].number, 3);
  EXPECT_EQ(records[1].number, 4);
  ledger.restart();
  EXPECT_EQ(ledger.totals().steps(), 0);
  EXPECT_EQ(ledger.totals().elapsed_ns(), 0);
}

}  // namespace
}  // namespace gapless
