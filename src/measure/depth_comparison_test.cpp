// Short answers in virtual time, with an H200's step times.
#include "measure/depth_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "base/limits.h"
#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

using ::testing::HasSubstr;

constexpr std::array kDepths{1, 2};

// Moondream 2 on an H200: docs/benchmarks.md.
std::int64_t decode_ns(int rows) {
  return rows <= 1 ? 690'000 : rows <= 8 ? 1'030'000 : rows <= 32 ? 2'170'000 : 4'030'000;
}

FakeModelConfig h200() {
  FakeModelConfig config;
  config.max_context = 64;
  config.limits = {
      .max_seats = kDefaultSeats,
      .max_prefill_tokens = 4096,
      .max_prefill_sequences = 16,  // as many as tails of prefixes are copied in a step
      .num_pages = 1 + kDefaultSeats * 8,
      .max_pages_per_row = 4,
      .num_image_slots = 1,
      .max_page_deltas = 16 * 4};
  config.forward_ns = [](const StepShape& shape) {
    // 100 tokens behind the image's for each sequence.
    return shape.kind == StepKind::kDecode ? decode_ns(shape.num_rows)
                                           : 1'000'000 + std::int64_t{300'000} * shape.num_rows;
  };
  config.sampling_ns = [](const StepShape&) { return std::int64_t{10'000}; };
  return config;
}

StatusOr<std::vector<DepthRun>> compare(double mean_tokens, int streams,
                                        std::int64_t host_delay_ns = 10'000) {
  SimDevice device((SimConfig()));
  GAPLESS_ASSIGN_OR_RETURN(const auto model, FakeModel::create(device, h200()));
  Workload workload;
  workload.name = "plain";
  workload.mean_tokens = mean_tokens;
  workload.image = false;
  workload.context = 3 + static_cast<int>(mean_tokens / 2);
  GAPLESS_ASSIGN_OR_RETURN(
      const PromptSource prompts,
      PromptSource::create(device, model->info(), {kFakeCoordId, kFakeSizeId, kFakeStopId},
                           workload));
  LoopOptions options;
  options.foresees_limits = false;
  options.host_delay_ns = host_delay_ns;
  GAPLESS_ASSIGN_OR_RETURN(const auto loop,
                           Loop::create(device, *model, device.host_clock(), options));
  ClosedLoopOptions window;
  window.num_streams = streams;
  window.warm_up_steps = 300;
  window.window_steps = 1500;
  window.max_window_steps = 2000;
  auto runs = compare_depths(*loop, device.host_clock(), prompts, window, kDepths, 2);
  EXPECT_EQ(loop->counts().seats.rows_in_use, 0);
  EXPECT_EQ(model->num_faults(), 0);
  return runs;
}

// Where rows of a step end often, it is not worth launching the next one before they are known
// (pipeline/run_ahead.h). Always running ahead loses 10 to 14 % here.
TEST(DepthComparisonTest, ShortAnswersLoseNothingByPipelining) {
  for (const int streams : {2, 8, 32, 64}) {
    SCOPED_TRACE(streams);
    const auto runs = compare(3, streams);
    ASSERT_TRUE(runs.ok()) << runs.status().to_string();
    EXPECT_NEAR(runs->at(0).mean_tokens(), 3, 0.2);
    EXPECT_NEAR(runs->at(1).mean_tokens(), 3, 0.2);
    EXPECT_GT(gain_over(runs->at(1), runs->at(0)), -0.001);
    EXPECT_EQ(runs->at(1).forbidden_calls, 0);
  }
}

TEST(DepthComparisonTest, LongerAnswersGainWhatTheHostTakes) {
  for (const int streams : {8, 64}) {
    SCOPED_TRACE(streams);
    const auto runs = compare(38, streams, 200'000);
    ASSERT_TRUE(runs.ok()) << runs.status().to_string();
    // 0.2 ms a step, less the zombies.
    EXPECT_GT(gain_over(runs->at(1), runs->at(0)), streams == 8 ? 0.08 : 0.01);
    EXPECT_GT(runs->at(1).zombie_share(), 0.01);
  }
}

TEST(DepthComparisonTest, TablesNameEveryRun) {
  const auto runs = compare(3, 4);
  ASSERT_TRUE(runs.ok()) << runs.status().to_string();
  const boost::json::array json = to_json(*runs);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_FALSE(json[0].as_object().contains("gain"));
  EXPECT_TRUE(json[1].as_object().contains("gain"));
  EXPECT_EQ(json[1].at("tokens_per_s_of_each_repeat").as_array().size(), 2u);
  EXPECT_THAT(depth_table(*runs), HasSubstr("      4     2 |"));
}

}  // namespace
}  // namespace gapless
