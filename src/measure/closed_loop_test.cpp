// The whole chain of `gapless bench overlap` in virtual time: workload, closed loop, statistics,
// gains.
#include "measure/closed_loop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "measure/measured_run.h"
#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

constexpr std::int64_t kForwardNs = 1'000'000;
constexpr std::int64_t kSamplingNs = 100'000;
constexpr std::int64_t kHostNs = 400'000;

FakeModelConfig model_config() {
  FakeModelConfig config = FakeModelConfig::small();
  config.limits.max_seats = 8;
  config.limits.num_pages = 64;
  config.forward_ns = [](const StepShape&) { return kForwardNs; };
  config.sampling_ns = [](const StepShape&) { return kSamplingNs; };
  return config;
}

Workload short_answers() {
  Workload workload;
  workload.name = "plain";
  workload.mean_tokens = 10;
  workload.context = 20;
  workload.image = false;
  return workload;
}

StatusOr<ClosedLoopWindow> run(int depth, const Workload& workload, int num_streams) {
  SimConfig config;
  config.times = SimTimes::free();
  SimDevice device(config);
  GAPLESS_ASSIGN_OR_RETURN(const auto model, FakeModel::create(device, model_config()));
  GAPLESS_ASSIGN_OR_RETURN(
      const PromptSource prompts,
      PromptSource::create(device, model->info(), {kFakeCoordId, kFakeSizeId, kFakeStopId},
                           workload));
  LoopOptions options;
  options.depth = depth;
  options.host_delay_ns = kHostNs;
  options.foresees_limits = false;
  options.ledger_capacity = 1024;
  GAPLESS_ASSIGN_OR_RETURN(const auto loop,
                           Loop::create(device, *model, device.host_clock(), options));
  ClosedLoopOptions window;
  window.num_streams = num_streams;
  window.warm_up_steps = 10;
  window.window_steps = 600;
  window.max_window_steps = 1000;
  auto measured = run_closed_loop(*loop, device.host_clock(), prompts, window);
  EXPECT_EQ(loop->counts().seats.rows_in_use, 0);
  EXPECT_EQ(model->num_faults(), 0);
  // The warm-up is not in the window; steps in flight at its begin and end may reach beyond it.
  if (measured.ok()) {
    EXPECT_LE(measured->totals.elapsed_ns(),
              measured->host_ns + 2 * depth * (kForwardNs + kSamplingNs));
  }
  return measured;
}

MeasuredRun measured_run(int depth, const Workload& workload, int num_streams) {
  MeasuredRun measured{workload.name, 0, num_streams, depth};
  const auto window = run(depth, workload, num_streams);
  EXPECT_TRUE(window.ok()) << window.status().to_string();
  if (window.ok()) measured.add(*window);
  return measured;
}

TEST(ClosedLoopTest, BlockingPaysForTheHostAndPipeliningDoesNot) {
  for (const int streams : {1, 4}) {
    const MeasuredRun blocking = measured_run(1, short_answers(), streams);
    const MeasuredRun pipelined = measured_run(2, short_answers(), streams);
    EXPECT_DOUBLE_EQ(blocking.period_ms(), 1.5);
    EXPECT_DOUBLE_EQ(pipelined.period_ms(), 1.1);
    EXPECT_DOUBLE_EQ(pipelined.forward_ms(), 1.0);
    EXPECT_DOUBLE_EQ(pipelined.sampling_ms(), 0.1);
    EXPECT_EQ(blocking.steps.num_zombies, 0);
    EXPECT_GT(pipelined.steps.num_zombies, 0);
    EXPECT_EQ(pipelined.accounts.forbidden_calls, 0);
    EXPECT_NEAR(blocking.steps.mean_answer_tokens(), 10, 1.0);
    EXPECT_NEAR(pipelined.accounts.busy_share(), 1, 1e-9);
    EXPECT_EQ(blocking.accounts.guilty_phase(), HostPhaseKind::kCommit);
  }
}

// At one stream a zombie is a whole step of this device and nothing else differs, so a prediction
// that knows so is right.
TEST(ClosedLoopTest, DepthOnePredictsTheOtherDepths) {
  Workload workload = short_answers();
  workload.mean_tokens = 40;
  workload.context = 50;
  const std::vector<MeasuredRun> runs{measured_run(1, workload, 1), measured_run(2, workload, 1),
                                      measured_run(3, workload, 1)};
  const std::vector<OverlapGain> gains = overlap_gains(runs, /*dead_row_share=*/1);
  ASSERT_EQ(gains.size(), 2u);
  for (const OverlapGain& gain : gains) {
    SCOPED_TRACE(gain.depth);
    EXPECT_NEAR(gain.zombie_tax, (gain.depth - 1) / 40.0, 0.005);
    EXPECT_NEAR(gain.miss.median, 0, 0.015);
    EXPECT_DOUBLE_EQ(gain.forward_ms, 1.0);
    EXPECT_DOUBLE_EQ(gain.host_us, 400);
  }
  EXPECT_NEAR(gains[0].predicted.median, 1.5 / 1.1 * (1 - 1 / 40.0) - 1, 0.01);
}

// And one that believes that dead steps cost next to nothing is wrong by what they do cost, and
// says that the device is why. So the model can be wrong, and it shows.
TEST(ClosedLoopTest, AWrongAssumptionShowsAndIsNamed) {
  const std::vector<MeasuredRun> runs{measured_run(1, short_answers(), 1),
                                      measured_run(2, short_answers(), 1)};
  const std::vector<OverlapGain> gains = overlap_gains(runs, /*dead_row_share=*/0);
  ASSERT_EQ(gains.size(), 1u);
  EXPECT_LT(gains[0].miss.median, -0.08) << "one step of ten";
  EXPECT_NEAR(gains[0].by_device.median, gains[0].miss.median, 0.01);
  EXPECT_NEAR(gains[0].by_idle.median, 0, 0.01);
}

TEST(ClosedLoopTest, EveryWorkloadRuns) {
  for (const std::string& name : workload_names()) {
    auto workload = named_workload(name, short_answers());
    ASSERT_TRUE(workload.ok());
    // The same prompts, however long the answers.
    EXPECT_EQ(workload->context - std::lround(workload->mean_tokens / 2), 15) << name;
    if (workload->constraint != RowConstraint::kNone) continue;  // the small model has no automata
    const auto window = run(2, *workload, 4);
    ASSERT_TRUE(window.ok()) << name << ": " << window.status().to_string();
    EXPECT_GT(window->num_answers, 0) << name;
  }
}

// Pages are shared by what their hashes say, so whoever shares a picture shares pages.
TEST(PromptSourceTest, ClientsSharePicturesOnlyIfAskedTo) {
  SimDevice device((SimConfig()));
  const auto model = FakeModel::create(device, model_config());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  Workload workload = short_answers();
  workload.image = true;
  workload.context = 5 + 1 + (*model)->info().image_tokens + 1;
  for (const bool shared : {false, true}) {
    workload.shared_image = shared;
    const auto prompts = PromptSource::create(device, (*model)->info(),
                                              {kFakeCoordId, kFakeSizeId, kFakeStopId}, workload);
    ASSERT_TRUE(prompts.ok()) << prompts.status().to_string();
    const auto hash_of = [&](int client, std::int64_t answer) {
      const PreparedPrompt prompt = prompts->make(client, answer);
      EXPECT_EQ(prompt.images.size(), 1u);
      EXPECT_EQ(prompt.images.at(0).hash, prompt.images.at(0).prefix_hash);
      return prompt.images.at(0).hash;
    };
    EXPECT_EQ(hash_of(0, 0) == hash_of(1, 0), shared);
    EXPECT_EQ(hash_of(1, 0), hash_of(1, 7));
  }
}

// Rows whose tokens differ are what the count of a step's experts rests on.
TEST(PromptSourceTest, RandomTokensAreEachAnswersOwn) {
  SimDevice device((SimConfig()));
  const auto model = FakeModel::create(device, model_config());
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  Workload workload = short_answers();
  workload.context = 45;
  workload.random_tokens = true;
  const auto prompts = PromptSource::create(device, (*model)->info(),
                                            {kFakeCoordId, kFakeSizeId, kFakeStopId}, workload);
  ASSERT_TRUE(prompts.ok()) << prompts.status().to_string();
  const auto num_same = [](const PreparedPrompt& a, const PreparedPrompt& b) {
    int same = 0;
    for (std::size_t i = 1; i < a.inputs.size(); ++i) same += a.inputs[i].id == b.inputs[i].id;
    return same;
  };
  const PreparedPrompt prompt = prompts->make(3, 1);
  const int num_tokens = static_cast<int>(prompt.inputs.size());
  EXPECT_EQ(prompt.inputs.at(0).id, 0);
  EXPECT_GT(prompt.row.sampling.temperature, 0);
  EXPECT_EQ(num_same(prompt, prompts->make(3, 1)), num_tokens - 1);
  for (const auto& [client, answer] : {std::pair(4, 1), std::pair(3, 2)}) {
    const PreparedPrompt other = prompts->make(client, answer);
    EXPECT_LT(num_same(prompt, other), num_tokens / 2);
    EXPECT_NE(prompt.row.sampling.seed, other.row.sampling.seed);
  }
}

TEST(ClosedLoopTest, RefusesWhatDoesNotFit) {
  Workload workload = short_answers();
  workload.context = 5;
  EXPECT_EQ(run(1, workload, 1).status().code(), StatusCode::kInvalidArgument);
  workload.context = 1'000'000;
  EXPECT_EQ(run(1, workload, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(named_workload("plane", workload).ok());
}

}  // namespace
}  // namespace gapless
