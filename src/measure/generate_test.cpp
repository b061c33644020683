// The batch of long answers in virtual time.
#include "measure/generate.h"

#include <gtest/gtest.h>

#include <memory>

#include "sim/fake_model.h"
#include "sim/sim_device.h"

namespace gapless {
namespace {

constexpr std::int64_t kStepNs = 1'000'000;
constexpr std::int64_t kHostWorkNs = 300'000;
constexpr int kPromptTokens = 5;

FakeModelConfig long_context() {
  FakeModelConfig config = FakeModelConfig::small();
  config.limits.max_seats = 4;
  config.limits.num_pages = 256;
  config.forward_ns = [](const StepShape&) { return kStepNs; };
  config.sampling_ns = [](const StepShape&) { return std::int64_t{0}; };
  return config;
}

StatusOr<GenerateRun> generate(int depth, const GenerateWorkload& workload) {
  SimConfig config;
  config.times = SimTimes::free();
  SimDevice device(config);
  GAPLESS_ASSIGN_OR_RETURN(const auto model, FakeModel::create(device, long_context()));
  LoopOptions options;
  options.depth = depth;
  options.host_delay_ns = kHostWorkNs;
  GAPLESS_ASSIGN_OR_RETURN(const auto loop,
                           Loop::create(device, *model, device.host_clock(), options));
  auto run = run_generate(*loop, device.host_clock(), model->info(), workload);
  EXPECT_EQ(loop->counts().seats.rows_in_use, 0);
  return run;
}

TEST(GenerateTest, BlockingWaitsForTheHostInEveryStepAndPipeliningDoesNot) {
  const GenerateWorkload workload{
      .num_prompts = 3, .prompt_tokens = kPromptTokens, .new_tokens = 24};
  const auto blocking = generate(1, workload), pipelined = generate(2, workload);
  ASSERT_TRUE(blocking.ok()) << blocking.status().to_string();
  ASSERT_TRUE(pipelined.ok()) << pipelined.status().to_string();
  EXPECT_EQ(blocking->num_tokens, 3 * 24);
  EXPECT_EQ(pipelined->num_tokens, 3 * 24);
  // A prefill gives the first token, 23 decode steps the others; the last commit is behind the last step.
  const std::int64_t steps = blocking->totals.steps();
  EXPECT_EQ(steps, pipelined->totals.steps());
  EXPECT_GE(steps, 24);
  EXPECT_EQ(blocking->totals.busy_ns, steps * kStepNs);
  EXPECT_GE(blocking->host_ns, steps * kStepNs + 23 * kHostWorkNs);
  EXPECT_LE(pipelined->host_ns, steps * kStepNs + 2 * kHostWorkNs);
  EXPECT_LT(blocking->device_busy_share(), 0.8);
  EXPECT_GT(pipelined->device_busy_share(), 0.95);
  EXPECT_GT(pipelined->first_token_ns, 0);
  EXPECT_LT(pipelined->first_token_ns, pipelined->host_ns / 2);
}

TEST(GenerateTest, MorePromptsThanSeatsAreAllAnswered) {
  const auto run = generate(2, {.num_prompts = 9, .prompt_tokens = kPromptTokens, .new_tokens = 7});
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  EXPECT_EQ(run->num_tokens, 9 * 7);
}

TEST(GenerateTest, RefusesWhatTheContextDoesNotHold) {
  const auto run = generate(2, {.num_prompts = 1, .prompt_tokens = 5, .new_tokens = 1 << 20});
  EXPECT_EQ(run.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gapless
