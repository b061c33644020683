#include "measure/gpu_prediction.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/file_bytes.h"
#include "base/json.h"
#include "kernels/cuda/cuda_path.h"

namespace gapless {
namespace {

const std::string kResults = GAPLESS_SOURCE_DIR "/bench/results";
const ModelConfig kConfig = moondream2_config();

GpuSpec gpu_named(std::string_view name) {
  return find_gpu(name).value();
}

boost::json::object result_file(const std::string& name) {
  return boost::json::parse(read_file(kResults + "/" + name, 16u << 20).value()).as_object();
}

double median(const boost::json::value& spread) {
  return spread.as_object().at("median").to_number<double>();
}

// A folder of its own with the result files that a prediction reads.
class GpuPredictionTest : public testing::Test {
 protected:
  GpuPredictionTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* name : {"decode", "forward-rest", "overlap", "serve"}) {
      const std::string file = std::string(name) + "-h200.json";
      std::filesystem::copy_file(kResults + "/" + file, folder_ / file);
    }
  }

  void write(const std::string& name, const boost::json::object& json) {
    std::ofstream(folder_ / name) << json_text(json);
  }
  StatusOr<MeasuredPath> load(std::string_view gpu) {
    return load_measured_path(folder_.string(), kConfig, gpu_named(gpu));
  }
  GpuPrediction predict(const GpuSpec& gpu) {
    return predict_gpu(gpu, load(gpu.name).value(), kConfig, 9);
  }

  std::filesystem::path folder_;
};

TEST(GpuSpecs, NamesAreFoundWithoutCaseAndSpaces) {
  for (const char* name : {"RTX 3090", "rtx3090", "NVIDIA GeForce RTX 3090"}) {
    EXPECT_EQ(gpu_named(name).name, "RTX 3090");
  }
  EXPECT_EQ(gpu_named("l40s").name, "L40S");
  for (const char* name : {"RTX 3090 Ti", "L40", "A100X", ""}) {
    const auto found = find_gpu(name);
    ASSERT_FALSE(found.ok()) << name;
    for (const GpuSpec& gpu : gpu_specs()) {
      EXPECT_NE(found.status().message().find(gpu.name), std::string::npos) << name;
    }
  }
}

TEST(GpuSpecs, PathsAreThoseOfTheBackend) {
  for (const GpuSpec& gpu : gpu_specs()) {
    const auto best = std::find_if(
        cuda::kCudaPaths.begin(), cuda::kCudaPaths.end(), [&](const cuda::CudaPath& path) {
          return gpu.capability >= path.min_capability && gpu.capability <= path.max_capability;
        });
    EXPECT_EQ(path_of(gpu), best->name) << gpu.name;
  }
}

// With its own shares the H200 gets its measured figures back.
TEST_F(GpuPredictionTest, TheMeasuredGpuGetsItsFiguresBack) {
  const MeasuredPath measured = load("H200").value();
  EXPECT_EQ(measured.path, "9.0a");
  EXPECT_EQ(measured.gpu.name, "H200");
  const GpuPrediction prediction = predict(gpu_named("H200"));
  const boost::json::object decode = result_file("decode-h200.json");
  const boost::json::object overlap = result_file("overlap-h200.json");
  ASSERT_EQ(prediction.steps.size(), 3u);
  for (const PredictedStep& step : prediction.steps) {
    SCOPED_TRACE(step.rows);
    for (const auto& value : decode.at("points").as_array()) {
      const auto& point = value.as_object();
      if (point.at("rows") != step.rows) continue;
      EXPECT_NEAR(step.step_ms, median(point.at("step_ms")), 1e-4);
      EXPECT_NEAR(step.period_ms, median(point.at("period_ms")), 1e-4);
      // The bytes are the model's, not the file's.
      const MeasuredStep& own =
          measured.steps[static_cast<std::size_t>(&step - prediction.steps.data())];
      EXPECT_NEAR(own.bandwidth_share * 4.8 * median(point.at("forward_ms")) * 1e9,
                  point.at("bytes_per_step").to_number<double>(), 1e-3 * 2.8e9);
    }
    double periods[2] = {};
    for (const auto& value : overlap.at("runs").as_array()) {
      const auto& run = value.as_object();
      if (run.at("workload") == "plain" && run.at("streams") == step.rows) {
        periods[run.at("depth").to_number<int>() - 1] = median(run.at("period_ms"));
      }
    }
    // Of another run of the same host, whose steps and idle times differ by some microseconds.
    EXPECT_NEAR(step.gain, periods[0] / periods[1] - 1, 0.01);
  }
  const boost::json::object forward = result_file("forward-rest-h200.json");
  for (const auto& value : forward.at("encodes").as_array()) {
    const auto& point = value.as_object();
    if (point.at("size") != "13") continue;
    EXPECT_NEAR(predict_gpu(gpu_named("H200"), measured, kConfig, 13).encode_ms,
                median(point.at("ms")), 1e-4);
  }
  EXPECT_NEAR(prediction.prefill_ms, median(forward.at("prefills").as_array()[0].at("ms")), 1e-4);
  // A picture of 800x600 has 9 crops; encode and prefill are of another run than this figure.
  const double first_token = result_file("serve-h200.json")
                                 .at("points")
                                 .as_array()[0]
                                 .at("mean_ttft_ms")
                                 .to_number<double>();
  EXPECT_NEAR(prediction.first_token_ms, first_token, 0.03 * first_token);
}

TEST_F(GpuPredictionTest, MoreBandwidthShortensStepsAloneAndMoreRateTheFirstToken) {
  const GpuSpec before = gpu_named("RTX 4090");
  GpuSpec faster = before;
  faster.gb_per_s *= 2;
  const GpuPrediction slow = predict(before), fast = predict(faster);
  for (std::size_t i = 0; i < slow.steps.size(); ++i) {
    const MeasuredStep& own = load("RTX 4090")->steps[i];
    EXPECT_NEAR(fast.steps[i].step_ms - own.sampling_ms,
                (slow.steps[i].step_ms - own.sampling_ms) / 2, 1e-9);
    // The same host time is more of a shorter step.
    EXPECT_GT(fast.steps[i].gain, slow.steps[i].gain);
    if (i > 0) {
      EXPECT_GT(slow.steps[i].step_ms, slow.steps[i - 1].step_ms);
    }
  }
  EXPECT_EQ(fast.first_token_ms, slow.first_token_ms);
  faster = before;
  faster.tflop_per_s *= 2;
  EXPECT_NEAR(predict(faster).encode_ms, slow.encode_ms / 2, 1e-9);
  EXPECT_NEAR(predict(faster).prefill_ms, slow.prefill_ms / 2, 1e-9);
  EXPECT_EQ(predict(faster).steps[0].step_ms, slow.steps[0].step_ms);
  EXPECT_GT(predict_gpu(before, load("RTX 4090").value(), kConfig, 13).encode_ms, slow.encode_ms);
}

TEST_F(GpuPredictionTest, NoMultiprocessorDoesMoreThanWasSeen) {
  const GpuSpec seen = gpu_named("H200");
  EXPECT_EQ(within_seen_rates(seen, seen).gb_per_s, seen.gb_per_s);
  EXPECT_EQ(within_seen_rates(gpu_named("L4"), seen).gb_per_s, 300);
  const GpuSpec b200 = within_seen_rates(gpu_named("B200"), seen);
  EXPECT_NEAR(b200.gb_per_s, 4800.0 * 148 / 132, 1e-9);
  EXPECT_NEAR(b200.tflop_per_s, 989.0 * 148 / 132, 1e-9);
}

TEST_F(GpuPredictionTest, APathThatHasRunIsTakenByItsOwnFigures) {
  for (const char* gpu : {"RTX 3090", "RTX 5090", "L4"}) EXPECT_EQ(load(gpu)->path, "9.0a") << gpu;
  const boost::json::object decode = result_file("decode-h200.json");
  const boost::json::object forward = result_file("forward-rest-h200.json");
  boost::json::array slower = decode.at("points").as_array();
  for (auto& point : slower) {
    for (const char* key : {"forward_ms", "step_ms", "period_ms"}) {
      boost::json::value& ms = point.as_object().at(key).as_object().at("median");
      ms = ms.to_number<double>() * 1.25;
    }
  }
  const boost::json::object own = {
      {"decode", slower}, {"encodes", forward.at("encodes")}, {"prefills", forward.at("prefills")}};
  write("paths-h200.json",
        {{"device", "NVIDIA H200"}, {"paths", {{"8.0", own}, {"8.6", own}, {"9.0", own}}}});
  EXPECT_EQ(load("RTX 3090")->path, "8.6");  // 99 KB
  EXPECT_EQ(load("A100")->path, "8.0");
  EXPECT_EQ(load("RTX 5090")->path, "9.0");  // 12.0 has not run
  EXPECT_EQ(load("L4")->path, "8.6");        // 8.9 has not: what is nearest to it
  EXPECT_EQ(path_measured_as("8.6"), path_of(gpu_named("RTX 3090")));
  EXPECT_EQ(path_measured_as("12.0"), path_of(gpu_named("RTX 5090")));
  EXPECT_NE(path_measured_as("8.6"), path_of(gpu_named("L4")));
  EXPECT_EQ(load("H200")->path, "9.0a");
  EXPECT_NEAR(load("A100")->steps[0].bandwidth_share * 1.25, load("H200")->steps[0].bandwidth_share,
              1e-9);
  EXPECT_EQ(load("A100")->files[0], "paths-h200.json");
}

TEST_F(GpuPredictionTest, ErrorsNameTheFileAndTheField) {
  const auto expect_error = [&](const char* file, const std::string& wanted) {
    const auto loaded = load("A100");
    ASSERT_FALSE(loaded.ok()) << file;
    EXPECT_NE(loaded.status().message().find(file), std::string::npos) << loaded.status().message();
    EXPECT_NE(loaded.status().message().find(wanted), std::string::npos)
        << loaded.status().message();
  };
  boost::json::object decode = result_file("decode-h200.json");
  decode.at("points").as_array().erase(decode.at("points").as_array().begin() + 1);
  write("decode-h200.json", decode);
  expect_error("decode-h200.json", "8 rows");
  decode = result_file("decode-h200.json");
  decode.at("points").as_array()[0].as_object()["forward_ms"] = {{"median", 0}};
  write("decode-h200.json", decode);
  expect_error("decode-h200.json", "median");
  decode = result_file("decode-h200.json");
  decode["device"] = "CPU";
  write("decode-h200.json", decode);
  expect_error("", "CPU");
  std::filesystem::remove(folder_ / "serve-h200.json");
  expect_error("serve-h200.json", "");
  write("paths-h200.json", {});
  std::ofstream(folder_ / "serve-h200.json") << "{";
  expect_error("serve-h200.json", "not valid JSON");
}

}  // namespace
}  // namespace gapless
