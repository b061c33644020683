#include "bench_simulate_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <filesystem>
#include <vector>

#include "image/crop_tiles.h"
#include "measure/gpu_prediction.h"
#include "measure/result_file.h"
#include "sim/simulate_overlap.h"

namespace gapless {
namespace {

// The picture of the first token.
constexpr int kPictureWidth = 800, kPictureHeight = 600;

// One GPU, by its vendor's figures alone and where none of its multiprocessors does more than was seen.
struct PredictedGpu {
  GpuSpec gpu;
  MeasuredPath measured;
  GpuPrediction most, seen;

  bool path_has_run() const { return path_measured_as(measured.path) == path_of(gpu); }
};

StatusOr<int> crops_of_picture(const ModelConfig& config) {
  const VisionConfig& vision = config.vision;
  GAPLESS_ASSIGN_OR_RETURN(const Tiling tiling,
                           select_tiling(kPictureWidth, kPictureHeight,
                                         {.crop_size = vision.crop_size,
                                          .patch_size = vision.enc_patch_size,
                                          .overlap_margin = vision.overlap_margin,
                                          .max_crops = vision.max_crops}));
  return num_crops(tiling);
}

const OverlapCase* published(std::span<const OverlapCase> cases, const GpuSpec& gpu, int rows) {
  const auto found = std::find_if(cases.begin(), cases.end(), [&](const OverlapCase& one) {
    return one.gpu == gpu.name && one.streams == rows;
  });
  return found == cases.end() ? nullptr : &*found;
}

// "0.42", or "0.42 to 0.62" where the two differ.
std::string range(double least, double most, int decimals) {
  const std::string low = fmt::format("{:.{}f}", least, decimals);
  const std::string high = fmt::format("{:.{}f}", most, decimals);
  return low == high ? low : low + " to " + high;
}

void print(const PredictedGpu& one) {
  const GpuSpec& gpu = one.gpu;
  fmt::print(
      "{}: compute capability {}.{}, {} multiprocessors, {:.0f} GB/s, {:g} TFLOP/s, path {}\n",
      gpu.name, gpu.capability / 10, gpu.capability % 10, gpu.num_multiprocessors, gpu.gb_per_s,
      gpu.tflop_per_s, path_of(gpu));
  fmt::print("  shares of path {} on {} ({}){}\n", one.measured.path, one.measured.gpu.name,
             fmt::join(one.measured.files, ", "),
             one.path_has_run() ? "" : "; the GPU's own path has not run anywhere");
  const std::vector<OverlapCase> cases = article_cases();
  for (std::size_t i = 0; i < one.most.steps.size(); ++i) {
    const PredictedStep &most = one.most.steps[i], &seen = one.seen.steps[i];
    std::string article;
    if (const OverlapCase* given = published(cases, gpu, most.rows)) {
      article = fmt::format("; Photon's article: period {:.2f} ms, {:+.1f} %", given->period_ms,
                            given->article_observed);
    }
    fmt::print("  {:>2} rows: step {} ms, period {} ms, pipelining {} %{}\n", most.rows,
               range(most.step_ms, seen.step_ms, 2), range(most.period_ms, seen.period_ms, 2),
               range(100 * seen.gain, 100 * most.gain, 1), article);
  }
  fmt::print("  first token of a new {}x{} picture: {} ms\n", kPictureWidth, kPictureHeight,
             range(one.most.first_token_ms, one.seen.first_token_ms, 1));
}

boost::json::object to_json(const GpuPrediction& prediction) {
  boost::json::array steps;
  for (const PredictedStep& step : prediction.steps) {
    steps.push_back({{"rows", step.rows},
                     {"step_ms", rounded(step.step_ms, 4)},
                     {"period_ms", rounded(step.period_ms, 4)},
                     {"blocking_ms", rounded(step.blocking_ms, 4)},
                     {"gain_percent", rounded(100 * step.gain, 2)}});
  }
  return {{"steps", steps},
          {"encode_ms", rounded(prediction.encode_ms, 3)},
          {"prefill_ms", rounded(prediction.prefill_ms, 3)},
          {"first_token_ms", rounded(prediction.first_token_ms, 3)}};
}

boost::json::object to_json(const PredictedGpu& one) {
  boost::json::array photon, files(one.measured.files.begin(), one.measured.files.end());
  const std::vector<OverlapCase> cases = article_cases();
  for (const PredictedStep& step : one.most.steps) {
    if (const OverlapCase* given = published(cases, one.gpu, step.rows)) {
      photon.push_back({{"rows", step.rows},
                        {"period_ms", given->period_ms},
                        {"gain_percent", given->article_observed}});
    }
  }
  return {{"gpu", one.gpu.name},
          {"compute_capability",
           fmt::format("{}.{}", one.gpu.capability / 10, one.gpu.capability % 10)},
          {"multiprocessors", one.gpu.num_multiprocessors},
          {"gb_per_s", one.gpu.gb_per_s},
          {"tflop_per_s", one.gpu.tflop_per_s},
          {"path", path_of(one.gpu)},
          {"path_has_run", one.path_has_run()},
          {"shares_of",
           {{"path", one.measured.path}, {"device", one.measured.gpu.name}, {"files", files}}},
          {"by_data_sheet", to_json(one.most)},
          {"at_seen_rates", to_json(one.seen)},
          {"photon", photon}};
}

}  // namespace

Status run_simulate_gpu(const SimulateGpuOptions& options) {
  std::vector<GpuSpec> gpus(gpu_specs().begin(), gpu_specs().end());
  if (options.gpu != "all") {
    GAPLESS_ASSIGN_OR_RETURN(const GpuSpec gpu, find_gpu(options.gpu));
    gpus = {gpu};
  }
  if (!std::filesystem::is_directory(options.results)) {
    return invalid_argument(
        "--results {}: there is no such folder; what was measured lies in bench/results of "
        "the repository",
        options.results);
  }
  const ModelConfig config = moondream2_config();
  GAPLESS_ASSIGN_OR_RETURN(const int crops, crops_of_picture(config));
  boost::json::array rows;
  for (const GpuSpec& gpu : gpus) {
    GAPLESS_ASSIGN_OR_RETURN(const MeasuredPath measured,
                             load_measured_path(options.results, config, gpu));
    const GpuSpec slower = within_seen_rates(gpu, measured.gpu);
    const PredictedGpu one{gpu, measured, predict_gpu(gpu, measured, config, crops),
                           predict_gpu(slower, measured, config, crops)};
    print(one);
    rows.push_back(to_json(one));
  }
  if (options.json.empty()) return ok_status();
  return write_result(
      options.json,
      {.commit = options.commit,
       .device = "none: predicted",
       .model = "Moondream 2's description, bfloat16",
       .ceiling = "the vendors' figures"},
      {{"benchmark", "gpus-predicted"},
       {"spread", "by the data sheet, and where no multiprocessor does more than was seen"},
       {"picture", fmt::format("{}x{}", kPictureWidth, kPictureHeight)},
       {"crops", crops},
       {"gpus", rows}});
}

}  // namespace gapless
