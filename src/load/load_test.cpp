// The parts of the load client that need no server; tests/server/load_test.cpp drives one.
#include <gtest/gtest.h>

#include <set>

#include "base/base64.h"
#include "image/decode_image.h"
#include "load/answer_reader.h"
#include "load/load_summary.h"
#include "load/load_target.h"
#include "load/pictures.h"
#include "load/server_metrics.h"

namespace gapless {
namespace {

TEST(LoadTarget, Urls) {
  const auto parsed = parse_server_url("http://localhost:2020/v1/");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->host, "localhost");
  EXPECT_EQ(parsed->port, "2020");
  EXPECT_EQ(parsed->prefix, "");
  EXPECT_EQ(parse_server_url("http://h/gateway/v1")->prefix, "/gateway");
  EXPECT_EQ(parse_server_url("http://h")->port, "80");
  EXPECT_EQ(parse_server_url("http://[::1]:9")->host, "::1");
  EXPECT_EQ(parse_server_url("http://[::1]:9")->port, "9");
  for (const char* bad : {"", "localhost:1", "https://h", "http://", "http://:1", "http://h:"}) {
    EXPECT_FALSE(parse_server_url(bad).ok()) << bad;
  }
}

TEST(LoadTarget, OneRequestForEachPicture) {
  LoadWorkload workload;
  workload.pictures = {"one", "two"};
  workload.text = "What?";
  const auto requests = make_load_requests(*parse_server_url("http://h:1"), workload);
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->bytes.size(), 2u);
  EXPECT_TRUE(requests->bytes[0].starts_with("POST /v1/query HTTP/1.1\r\n"));
  EXPECT_NE(requests->bytes[1].find(encode_base64("two")), std::string::npos);
  workload.skill = "detect";
  EXPECT_FALSE(make_load_requests(*parse_server_url("http://h:1"), workload)->streams);
  workload.skill = "segment";
  EXPECT_FALSE(make_load_requests(*parse_server_url("http://h:1"), workload).ok());
}

TEST(LoadPictures, DifferInTheirPixelsAndHaveTheirSizes) {
  const std::vector<PictureSize> sizes = {*parse_picture_size("64x48"),
                                          *parse_picture_size("30x50")};
  for (const char* format_name : {"jpeg", "png"}) {
    SCOPED_TRACE(format_name);
    const PictureFormat format = *parse_picture_format(format_name);
    const auto pictures = make_pictures(200, sizes, 1, format);
    ASSERT_TRUE(pictures.ok());
    std::set<std::string> rasters;
    for (std::size_t i = 0; i < pictures->size(); ++i) {
      const auto image = decode_image(std::as_bytes(std::span((*pictures)[i])));
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      EXPECT_EQ(image->width, sizes[i % 2].width);
      EXPECT_EQ(image->height, sizes[i % 2].height);
      rasters.emplace(image->rgb.begin(), image->rgb.end());
    }
    EXPECT_EQ(rasters.size(), 200u) << "all pixels differ, not the files alone";
    EXPECT_EQ(*pictures, *make_pictures(200, sizes, 1, format)) << "the same in every run";
    EXPECT_NE(*pictures, *make_pictures(200, sizes, 2, format));
  }
  EXPECT_FALSE(parse_picture_format("gif").ok());
  for (const char* bad : {"", "x", "1x", "0x5", "5x5x", "100000x1", "60000x60000", "-1x5"}) {
    EXPECT_FALSE(parse_picture_size(bad).ok()) << bad;
  }
}

constexpr std::string_view kStream =
    "data: {\"chunk\":\"a \",\"completed\":false,\"token_index\":2}\n\n"
    ": ping\n\n"
    "data: {\"chunk\":\"b\",\"completed\":false,\"token_index\":3}\n\n"
    "data: {\"chunk\":\"\",\"completed\":true,\"answer\":\"a "
    "b\",\"metrics\":{\"output_tokens\":4}}\n\n";

TEST(AnswerReader, MoondreamStreamsInAnyPieces) {
  for (std::size_t piece : {1u, 7u, 1000u}) {
    AnswerReader reader(LoadApi::kMoondream, true);
    for (std::size_t at = 0; at < kStream.size(); at += piece)
      reader.feed(kStream.substr(at, piece));
    reader.end();
    EXPECT_TRUE(reader.complete());
    EXPECT_EQ(reader.answer(), "a b");
    EXPECT_EQ(reader.num_tokens(), 4);
  }
}

TEST(AnswerReader, WhatIsNotWholeIsNotComplete) {
  const std::size_t last_event = kStream.rfind("data:");
  for (const std::string& broken :
       {std::string(kStream.substr(0, last_event)),
        std::string(kStream.substr(0, kStream.size() - 1)), std::string(kStream) + "data: {}\n\n",
        std::string(kStream) + "data: {}", "noise\n\n" + std::string(kStream),
        "data: {\n\n" + std::string(kStream),
        "data: {\"chunk\":\"lost\"}\n\n" + std::string(kStream)}) {
    AnswerReader reader(LoadApi::kMoondream, true);
    reader.feed(broken);
    reader.end();
    EXPECT_FALSE(reader.complete()) << broken;
  }
  AnswerReader reader(LoadApi::kMoondream, true);
  reader.feed("data: {\"chunk\":\"\",\"completed\":true,\"error\":{\"message\":\"x\"}}\n\n");
  EXPECT_TRUE(reader.failed());
}

TEST(AnswerReader, OpenaiStreams) {
  AnswerReader reader(LoadApi::kOpenai, true);
  reader.feed(
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
      "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"completion_tokens\":5}}\n\n");
  EXPECT_FALSE(reader.complete());
  reader.feed("data: [DONE]\n\n");
  reader.end();
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(reader.answer(), "a");
  EXPECT_EQ(reader.num_tokens(), 5);
}

TEST(AnswerReader, WholeAnswers) {
  AnswerReader reader(LoadApi::kMoondream, false);
  reader.feed(R"({"objects":[{"x_min":0.5}],"metr)");
  reader.feed(R"(ics":{"output_tokens":7}})");
  reader.end();
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(reader.num_tokens(), 7);
  AnswerReader broken(LoadApi::kMoondream, false);
  broken.feed(R"({"objects":[)");
  broken.end();
  EXPECT_FALSE(broken.complete());
}

TEST(LoadSummary, NearestRankPercentiles) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles percentiles = percentiles_of(values);
  EXPECT_EQ(percentiles.p50, 50);
  EXPECT_EQ(percentiles.p90, 90);
  EXPECT_EQ(percentiles.p99, 99);
  EXPECT_EQ(percentiles_of({7}).p99, 7);
  EXPECT_EQ(percentiles_of({}).p50, 0);
}

TEST(LoadSummary, TimesCountFromTheIntendedArrivalAndRatesFromTheWindow) {
  LoadRun run;
  run.window_ns = 2'000'000'000;
  // Intended at 0, though sent later.
  run.answers.push_back({0, 500'000'000, 1'000'000'000, 10});
  run.answers.push_back({1'000'000'000, 1'250'000'000, 3'000'000'000, 10});  // ends too late
  const LoadSummary summary = summarise_load(run);
  EXPECT_EQ(summary.num_answers, 2);
  EXPECT_DOUBLE_EQ(summary.requests_per_s, 0.5);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 5);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.p50, 250);
  EXPECT_DOUBLE_EQ(summary.latency_ms.p99, 2000);
}

TEST(LoadSummary, TheWarmUpsRequestsCountInTheRatesTheyEndInOnly) {
  LoadRun run;
  run.window_begin_ns = 1'000'000'000;
  run.window_ns = 2'000'000'000;
  run.answers.push_back({0, 100'000'000, 900'000'000, 10});             // before the window
  run.answers.push_back({500'000'000, 600'000'000, 2'500'000'000, 6});  // ends in it
  run.answers.push_back({1'000'000'000, 1'250'000'000, 3'000'000'000, 8});
  run.answers.push_back({2'000'000'000, 2'250'000'000, 3'500'000'000, 10});  // ends behind it
  const LoadSummary summary = summarise_load(run);
  EXPECT_EQ(summary.num_answers, 2);
  EXPECT_DOUBLE_EQ(summary.requests_per_s, 1);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 7);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.p99, 250);
  EXPECT_DOUBLE_EQ(summary.latency_ms.p99, 2000);
  EXPECT_DOUBLE_EQ(summary.mean_ttft_ms, 200) << "of the three that the server counts, too";
}

TEST(ServerMetricsOf, SharesBetweenTwoReadings) {
  const auto reading = [](double busy, double preparing, double starved, double bubble) {
    return parse_server_gauges(
        fmt::format("# HELP x y\n"
                    "gapless_info{{model_name=\"m\",device=\"cuda:0\",device_name=\"A\"}} 1\n"
                    "gapless_device_seconds_total{{model_name=\"m\",state=\"busy\"}} {}\n"
                    "gapless_device_seconds_total{{model_name=\"m\",state=\"preparing\"}} {}\n"
                    "gapless_device_seconds_total{{model_name=\"m\",state=\"starved\"}} {}\n"
                    "gapless_device_seconds_total{{model_name=\"m\",state=\"bubble\"}} {}\n"
                    "process_resident_memory_bytes 1048576\n",
                    busy, preparing, starved, bubble));
  };
  const auto shares = device_shares(reading(1, 1, 1, 1), reading(7, 5, 2, 3));
  ASSERT_TRUE(shares);
  EXPECT_DOUBLE_EQ(shares->busy, 6.0 / 13);
  EXPECT_DOUBLE_EQ(shares->preparing, 4.0 / 13);
  EXPECT_DOUBLE_EQ(shares->starved, 1.0 / 13);
  EXPECT_DOUBLE_EQ(shares->bubble, 2.0 / 8);
  EXPECT_EQ(reading(1, 1, 1, 1).resident_bytes, 1048576);
  EXPECT_FALSE(device_shares(parse_server_gauges("vllm:x 1\n"), reading(1, 1, 1, 1)));
}

TEST(ServerMetricsOf, DevicesAreAddedUp) {
  const auto reading = [](const char* second_name) {
    return parse_server_gauges(fmt::format(
        "gapless_info{{model_name=\"m\",device=\"cuda:0\",device_name=\"A\"}} 1\n"
        "gapless_info{{model_name=\"m\",device=\"cuda:1\",device_name=\"{}\"}} 1\n"
        "gapless_device_seconds_total{{model_name=\"m\",device=\"cuda:0\",state=\"busy\"}} 3\n"
        "gapless_device_seconds_total{{model_name=\"m\",device=\"cuda:1\",state=\"busy\"}} 4\n"
        "gapless_steps_total{{model_name=\"m\",device=\"cuda:0\",kind=\"decode\"}} 10\n"
        "gapless_steps_total{{model_name=\"m\",device=\"cuda:1\",kind=\"decode\"}} 20\n"
        "gapless_step_seconds_total{{model_name=\"m\",device=\"cuda:0\",kind=\"decode\"}} 1\n"
        "gapless_step_seconds_total{{model_name=\"m\",device=\"cuda:1\",kind=\"decode\"}} 2\n",
        second_name));
  };
  const ServerGauges gauges = reading("A");
  EXPECT_EQ(gauges.device(), "2 x A");
  EXPECT_EQ(reading("B").device(), "A, B");
  EXPECT_EQ(ServerGauges().device(), "");
  EXPECT_DOUBLE_EQ(*gauges.busy_s, 7);
  EXPECT_DOUBLE_EQ(gauges.num_steps.at("decode"), 30);
  EXPECT_DOUBLE_EQ(gauges.step_s.at("decode"), 3);
}

TEST(ServerMetricsOf, WhatARequestAndAStepTookBetweenTwoReadings) {
  const auto reading = [](double read_s, double device_s, int requests, int steps) {
    return parse_server_gauges(fmt::format(
        "gapless_request_stage_seconds_sum{{model_name=\"m\",stage=\"read\"}} {0}\n"
        "gapless_request_stage_seconds_count{{model_name=\"m\",stage=\"read\"}} {2}\n"
        "gapless_request_stage_seconds_sum{{model_name=\"m\",stage=\"device\"}} {1}\n"
        "gapless_request_stage_seconds_count{{model_name=\"m\",stage=\"device\"}} {2}\n"
        "gapless_steps_total{{model_name=\"m\",kind=\"encode\"}} {3}\n"
        "gapless_steps_total{{model_name=\"m\",kind=\"decode\"}} {3}\n"
        "gapless_step_seconds_total{{model_name=\"m\",kind=\"encode\"}} {1}\n"
        "gapless_engine_thread_seconds_total{{model_name=\"m\",phase=\"plan\"}} {0}\n"
        "gapless_engine_thread_seconds_total{{model_name=\"m\",phase=\"commit\"}} {0}\n",
        read_s, device_s, requests, steps));
  };
  const ServerGauges before = reading(1, 2, 10, 100);
  const ServerGauges after = reading(1.5, 6, 20, 300);
  const std::vector<NamedMean> stages = mean_stages(before, after);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].name, "read");
  EXPECT_DOUBLE_EQ(stages[0].ms, 50);
  EXPECT_DOUBLE_EQ(stages[1].ms, 400);
  const std::vector<NamedMean> steps = mean_steps(before, after);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].name, "encode");
  EXPECT_DOUBLE_EQ(steps[0].ms, 20);
  EXPECT_DOUBLE_EQ(*host_us_per_step(before, after), 2500);
  EXPECT_TRUE(mean_stages(before, before).empty()) << "nobody asked";
  EXPECT_FALSE(host_us_per_step(ServerGauges(), after));
}

}  // namespace
}  // namespace gapless
