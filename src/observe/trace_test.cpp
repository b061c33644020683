#include "observe/trace.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>

namespace gapless {
namespace {

StepRecord record_with_zombie() {
  StepRecord record;
  record.number = 5;
  record.num_rows = 8;
  record.num_zombies = 1;
  record.plan_begin_ns = 9'000;
  record.launch_begin_ns = 10'000;
  record.launch_end_ns = 12'000;
  record.forward_begin_ns = 11'000;
  record.forward_end_ns = 20'000;
  record.sampling_begin_ns = 20'000;
  record.sampling_end_ns = 21'500;
  record.wait_end_ns = 23'000;
  return record;
}

// The slice of that name, as the viewer would find it.
boost::json::object find_slice(const boost::json::value& trace, std::string_view name) {
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph").as_string() == "X" && event.at("name").as_string() == name) {
      return event.as_object();
    }
  }
  return {};
}

TEST(TraceTest, ShowsPhasesForwardsSamplingsCopiesAndZombies) {
  const std::vector<StepRecord> records = {record_with_zombie()};
  const std::vector<HostPhase> phases = {{HostPhaseKind::kCommit, 4, 8'000, 9'000}};
  const std::vector<IdlePart> idle_parts = {
      {DeviceActivity::kPreparing, HostPhaseKind::kIdle, 8'500, 9'500},
      {DeviceActivity::kBubble, HostPhaseKind::kLaunch, 9'500, 11'000}};
  const auto trace = boost::json::parse(chrome_trace({{"cpu", records, phases, idle_parts}}));
  for (const char* name : {"commit", "decode", "sampling", "inputs up", "outputs down",
                           "1 of 8 rows", "preparing", "bubble"}) {
    EXPECT_FALSE(find_slice(trace, name).empty()) << name;
  }
  const auto forward = find_slice(trace, "decode");
  EXPECT_DOUBLE_EQ(forward.at("ts").to_number<double>(), 3.0) << "from the earliest time, 8 us";
  EXPECT_DOUBLE_EQ(forward.at("dur").to_number<double>(), 9.0);
  EXPECT_EQ(forward.at("args").at("step").as_int64(), 5);
  const auto down = find_slice(trace, "outputs down");
  EXPECT_DOUBLE_EQ(down.at("ts").to_number<double>(), 13.5) << "from the end of the sampling";
  EXPECT_DOUBLE_EQ(down.at("dur").to_number<double>(), 1.5) << "until the host has them";
  EXPECT_EQ(find_slice(trace, "bubble").at("args").at("phase").as_string(), "launch");
  EXPECT_DOUBLE_EQ(find_slice(trace, "preparing").at("dur").to_number<double>(), 1.0);
}

TEST(TraceTest, TheGapsAreTheOnesThatTheLedgerCharged) {
  Ledger ledger(8);
  StepRecord record = record_with_zombie();
  ledger.add(record);
  ledger.begin_preparing(21'500);
  ledger.end_preparing(29'500);
  ledger.add_phase(HostPhaseKind::kIdle, -1, 21'500, 30'000);
  record.number = 6;
  record.forward_begin_ns = 30'000;
  record.forward_end_ns = record.sampling_begin_ns = record.sampling_end_ns = 31'000;
  record.wait_end_ns = 32'000;
  ledger.add(record);
  const auto trace = boost::json::parse(chrome_trace({trace_of(ledger, "cpu")}));
  EXPECT_DOUBLE_EQ(find_slice(trace, "preparing").at("dur").to_number<double>(), 8.0);
  EXPECT_DOUBLE_EQ(find_slice(trace, "starved").at("dur").to_number<double>(), 0.5);
  EXPECT_TRUE(find_slice(trace, "bubble").empty());
}

TEST(TraceTest, NothingBeginsBeforeZeroWithoutPhasesEither) {
  const auto trace = boost::json::parse(chrome_trace({{"cpu", {record_with_zombie()}, {}, {}}}));
  EXPECT_DOUBLE_EQ(find_slice(trace, "inputs up").at("ts").to_number<double>(), 1.0);
}

TEST(TraceTest, SeveralDevicesAreSeveralProcessesOfOneClock) {
  StepRecord later = record_with_zombie();
  for (std::int64_t* ns : {&later.plan_begin_ns, &later.launch_begin_ns, &later.launch_end_ns,
                           &later.forward_begin_ns, &later.forward_end_ns, &later.sampling_begin_ns,
                           &later.sampling_end_ns, &later.wait_end_ns}) {
    *ns += 50'000;
  }
  const auto trace = boost::json::parse(
      chrome_trace({{"cuda:0", {later}, {}, {}}, {"cuda:1", {record_with_zombie()}, {}, {}}}));
  std::vector<std::string> devices;
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("name") == "process_name") {
      devices.push_back(boost::json::serialize(event.at("pid")) + " " +
                        std::string(event.at("args").at("name").as_string()));
    } else if (event.at("name") == "decode") {
      const bool is_first = event.at("pid") == 1;
      EXPECT_DOUBLE_EQ(event.at("ts").to_number<double>(), is_first ? 52.0 : 2.0);
    }
  }
  EXPECT_EQ(devices, (std::vector<std::string>{"1 cuda:0", "2 cuda:1"}));
}

TEST(TraceTest, AnEmptyLedgerIsAnEmptyTrace) {
  const auto path = std::filesystem::temp_directory_path() / "gapless_trace_test.json";
  ASSERT_TRUE(write_chrome_trace({trace_of(Ledger(4), "cpu")}, path).ok());
  EXPECT_GT(std::filesystem::file_size(path), 0u);
  std::filesystem::remove(path);
  EXPECT_FALSE(write_chrome_trace({}, "/nonexistent/trace.json").ok());
}

}  // namespace
}  // namespace gapless
