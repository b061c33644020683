#include "server/metrics.h"

#include <gtest/gtest.h>

#include <ctime>

namespace gapless {
namespace {

TEST(Histogram, BoundsAreInclusive) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 9.0}) histogram.observe(value);
  EXPECT_EQ(histogram.count_in(0), 2u);
  EXPECT_EQ(histogram.count_in(1), 2u);
  EXPECT_EQ(histogram.count_in(2), 1u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 14);
}

TEST(ServerMetrics, EverySkillIsCounted) {
  ServerMetrics metrics;
  std::size_t count = 0;
  for (const Skill skill : kSkills) {
    SkillResult result;
    result.skill = skill;
    ++count;
    for (std::size_t i = 0; i < count; ++i) metrics.count_result(result, 0);
  }
  const std::string text = metrics.text(nullptr);
  count = 0;
  for (const Skill skill : kSkills) {
    const std::string line = "gapless_requests_total{model_name=\"\",skill=\"" +
                             std::string(skill_name(skill)) + "\"} " + std::to_string(++count) +
                             "\n";
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(ServerMetrics, BucketsAreCumulativeAndReasonsCounted) {
  ServerMetrics metrics;
  SkillResult result;
  result.skill = Skill::kDetect;
  result.finish_reason = FinishReason::kLength;
  result.metrics.input_tokens = 740;
  result.metrics.output_tokens = 3;
  result.metrics.ttft_ms = 15;
  result.metrics.cached_tokens = 185;
  result.metrics.decode_time_ms = 60;
  result.metrics.stages[RequestStage::kDecode] = 2'500'000;
  result.metrics.stages[RequestStage::kQueue] = 100'000'000;
  result.metrics.stages[RequestStage::kPrepare] = 900'000'000;
  result.metrics.stages[RequestStage::kAdmit] = 25'000'000;
  result.metrics.stages[RequestStage::kDevice] = 15'000'000;
  metrics.count_result(result, 0.02);
  metrics.count_failure(Status(StatusCode::kCancelled, "x"));
  metrics.count_response(429);
  const std::string text = metrics.text(nullptr);
  for (const char* line :
       {"gapless_request_stage_seconds_sum{model_name=\"\",stage=\"decode\"} 0.0025\n",
        "gapless_request_stage_seconds_count{model_name=\"\",stage=\"decode\"} 1\n",
        "gapless_request_stage_seconds_sum{model_name=\"\",stage=\"emit\"} 0\n",
        "vllm:prefix_cache_queries_total{model_name=\"\"} 740\n",
        "vllm:prefix_cache_hits_total{model_name=\"\"} 185\n",
        "vllm:gpu_prefix_cache_hits_total{model_name=\"\"} 185\n",
        "vllm:gpu_prefix_cache_hit_rate{model_name=\"\"} 0.25\n",
        "vllm:request_queue_time_seconds_sum{model_name=\"\"} 0.125\n",
        "vllm:request_inference_time_seconds_sum{model_name=\"\"} 0.075\n",
        "vllm:request_time_per_output_token_seconds_sum{model_name=\"\"} 0.03\n",
        "vllm:prompt_tokens_total{model_name=\"\"} 740\n",
        "vllm:generation_tokens_total{model_name=\"\"} 3\n",
        "vllm:request_success_total{model_name=\"\",finished_reason=\"length\"} 1\n",
        "vllm:request_success_total{model_name=\"\",finished_reason=\"abort\"} 1\n",
        "gapless_requests_total{model_name=\"\",skill=\"detect\"} 1\n",
        "gapless_http_refused_total{model_name=\"\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"\",le=\"0.01\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"\",le=\"0.02\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"\",le=\"+Inf\"} 1\n",
        "gapless_ttft_seconds_count{model_name=\"\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(ServerMetrics, WhatIsAboveTheLastBoundIsInTheLastBucket) {
  ServerMetrics metrics;
  SkillResult result;
  result.metrics.ttft_ms = 1e9;
  metrics.count_result(result, 1e6);
  const std::string text = metrics.text(nullptr);
  for (const char* line : {"gapless_ttft_seconds_bucket{model_name=\"\",le=\"+Inf\"} 1\n",
                           "gapless_ttft_seconds_count{model_name=\"\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

double value_of(const std::string& text, const std::string& name) {
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

TEST(ServerMetrics, TheProcessIsDescribed) {
  const std::string text = "\n" + ServerMetrics().text(nullptr);
  EXPECT_GT(value_of(text, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(value_of(text, "process_virtual_memory_bytes"),
            value_of(text, "process_resident_memory_bytes"));
  EXPECT_GE(value_of(text, "process_cpu_seconds_total"), 0);
  EXPECT_GE(value_of(text, "process_open_fds"), 3);
  EXPECT_GE(value_of(text, "process_max_fds"), value_of(text, "process_open_fds"));
  const double now = static_cast<double>(std::time(nullptr));
  const double started = value_of(text, "process_start_time_seconds");
  EXPECT_GT(started, now - 86'400) << "today";
  EXPECT_LE(started, now + 2);
}

// Every line is a comment or "name{labels} value", and no family is announced twice.
TEST(ServerMetrics, TheFormatHolds) {
  const std::string text = ServerMetrics().text(nullptr);
  std::size_t begin = 0;
  std::vector<std::string> families;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("# TYPE ")) {
      families.push_back(line.substr(7, line.find(' ', 7) - 7));
      continue;
    }
    if (line.starts_with("# HELP ")) continue;
    EXPECT_TRUE(line.starts_with(families.back())) << line;
    const bool of_process = line.starts_with("process_");
    const std::size_t value = line.rfind(of_process ? " " : "} ");
    ASSERT_NE(value, std::string::npos) << line;
    EXPECT_EQ(line.find('{') == std::string::npos, of_process) << line;
    EXPECT_NO_THROW((void)std::stod(line.substr(value + (of_process ? 1 : 2)))) << line;
  }
  std::vector<std::string> sorted = families;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
}

}  // namespace
}  // namespace gapless
