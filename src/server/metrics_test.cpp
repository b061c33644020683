#include "server/metrics.h"

#include <gtest/gtest.h>

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

TEST(ServerMetrics, BucketsAreCumulativeAndReasonsCounted) {
  ServerMetrics metrics;
  SkillResult result;
  result.skill = Skill::kDetect;
  result.finish_reason = FinishReason::kLength;
  result.metrics.input_tokens = 740;
  result.metrics.output_tokens = 3;
  result.metrics.ttft_ms = 15;
  result.metrics.stages[RequestStage::kDecode] = 2'500'000;
  metrics.count_result(result, 0.02);
  metrics.count_failure(Status(StatusCode::kCancelled, "x"));
  metrics.count_response(429);
  const std::string text = metrics.text(nullptr);
  for (const char* line :
       {"gapless_request_stage_seconds_sum{model_name=\"\",stage=\"decode\"} 0.0025\n",
        "gapless_request_stage_seconds_count{model_name=\"\",stage=\"decode\"} 1\n",
        "gapless_request_stage_seconds_sum{model_name=\"\",stage=\"device\"} 0\n",
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
    const std::size_t brace = line.find('{');
    ASSERT_NE(brace, std::string::npos) << line;
    EXPECT_TRUE(line.substr(0, brace).starts_with(families.back())) << line;
    const std::size_t value = line.rfind("} ");
    ASSERT_NE(value, std::string::npos) << line;
    EXPECT_NO_THROW((void)std::stod(line.substr(value + 2))) << line;
  }
  std::vector<std::string> sorted = families;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
}

}  // namespace
}  // namespace gapless
