#include "measure/gpu_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/file_bytes.h"
#include "base/json.h"
#include "measure/forward_work.h"
#include "measure/overlap_model.h"
#include "measure/window_figures.h"
#include "measure/workload.h"
#include "model/model_shape.h"
#include "model/model_summary.h"
#include "model/moondream/model_weights.h"

namespace gapless {
namespace {

constexpr int kRows[] = {1, 8, 32};
constexpr std::size_t kMaxResultBytes = 16 << 20;

// ---- What a step must move and a forward must do.

double step_bytes(const ModelConfig& config, int rows, double context) {
  const TextShape shape = text_shape(config);
  const TextWeights weights = describe_text_weights(config);
  return static_cast<double>(
      total_bytes(decode_step_traffic(shape, weights, DType::kBF16, PreparedFormat::kNative,
                                      KvFormat::kNative, rows, static_cast<int>(context + 0.5))));
}

// Milliseconds for so many units at so many 10^9 a second.
double ms_for(double units, double giga_per_s) {
  return units / giga_per_s / 1e6;
}

// ---- Result files.

struct ResultFile {
  std::string name;
  boost::json::value json;

  StatusOr<JsonObject> root() const { return JsonObject::of(json, name); }
};

StatusOr<ResultFile> read_result(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path path = folder / name;
  GAPLESS_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxResultBytes));
  GAPLESS_ASSIGN_OR_RETURN(boost::json::value json, parse_json(text, path.string()));
  return ResultFile{path.string(), std::move(json)};
}

StatusOr<double> number(const JsonObject& object, std::string_view key, bool may_be_zero = false) {
  GAPLESS_ASSIGN_OR_RETURN(const double value, object.number_or(key, -1));
  if (value > 0 || (may_be_zero && value == 0)) return value;
  return object.error(key, may_be_zero ? "a number of at least 0" : "a number above 0");
}

StatusOr<double> median(const JsonObject& object, std::string_view key) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject spread, object.object(key));
  return number(spread, "median");
}

// The first object of the list `key` that `wanted` takes; `what` names it in the error.
StatusOr<JsonObject> entry_of(const JsonObject& object, std::string_view key,
                              const std::string& what,
                              const std::function<bool(const JsonObject&)>& wanted) {
  GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* entries, object.array(key));
  for (const boost::json::value& entry : *entries) {
    GAPLESS_ASSIGN_OR_RETURN(JsonObject one,
                             JsonObject::of(entry, object.name(), std::string(key)));
    if (wanted(one)) return one;
  }
  return object.error(key, "a list with " + what);
}

bool has_integer(const JsonObject& object, std::string_view key, int value) {
  const boost::json::value* found = object.find(key);
  return found != nullptr && found->is_int64() && found->get_int64() == value;
}
bool has_text(const JsonObject& object, std::string_view key, std::string_view value) {
  const boost::json::value* found = object.find(key);
  return found != nullptr && found->is_string() && std::string_view(found->get_string()) == value;
}

// `decode`: of bench decode, or a path's of bench/paths.py, under `points`.
Status add_steps(const JsonObject& decode, std::string_view points, const JsonObject& overlap,
                 const ModelConfig& config, MeasuredPath& path) {
  for (const int rows : kRows) {
    GAPLESS_ASSIGN_OR_RETURN(
        const JsonObject point,
        entry_of(decode, points, fmt::format("{} rows", rows),
                 [&](const JsonObject& one) { return has_integer(one, "rows", rows); }));
    MeasuredStep step{.rows = rows};
    GAPLESS_ASSIGN_OR_RETURN(step.context, number(point, "mean_context"));
    GAPLESS_ASSIGN_OR_RETURN(const double forward_ms, median(point, "forward_ms"));
    GAPLESS_ASSIGN_OR_RETURN(const double step_ms, median(point, "step_ms"));
    GAPLESS_ASSIGN_OR_RETURN(const double period_ms, median(point, "period_ms"));
    step.bandwidth_share =
        ms_for(step_bytes(config, rows, step.context), path.gpu.gb_per_s) / forward_ms;
    step.sampling_ms = step_ms - forward_ms;
    step.idle_ms = std::max(0.0, period_ms - step_ms);
    GAPLESS_ASSIGN_OR_RETURN(
        const JsonObject blocking,
        entry_of(overlap, "runs", fmt::format("plain rows, {} streams, depth 1", rows),
                 [&](const JsonObject& one) {
                   return has_text(one, "workload", "plain") && has_integer(one, "streams", rows) &&
                          has_integer(one, "depth", 1);
                 }));
    GAPLESS_ASSIGN_OR_RETURN(const double blocking_ms, median(blocking, "period_ms"));
    GAPLESS_ASSIGN_OR_RETURN(const double own_forward_ms, median(blocking, "forward_ms"));
    GAPLESS_ASSIGN_OR_RETURN(const double own_sampling_ms, median(blocking, "sampling_ms"));
    step.host_ms = std::max(0.0, blocking_ms - own_forward_ms - own_sampling_ms);
    path.steps.push_back(step);
  }
  return ok_status();
}

// "7" of encodes, "1x770" of prefills; 0 for pictures or sequences together ("2x7").
int lone_size(std::string_view size, int& tokens) {
  const std::size_t by = size.find('x');
  const std::string first(size.substr(0, by));
  if (by != std::string_view::npos) tokens = std::atoi(std::string(size.substr(by + 1)).c_str());
  return std::atoi(first.c_str());
}

Status add_work(const JsonObject& forward, const ModelConfig& config, MeasuredPath& path) {
  const double giga_per_s = path.gpu.tflop_per_s * 1e3;
  for (const std::string_view key : {"encodes", "prefills"}) {
    GAPLESS_ASSIGN_OR_RETURN(const boost::json::array* points, forward.array(key));
    for (const boost::json::value& value : *points) {
      GAPLESS_ASSIGN_OR_RETURN(const JsonObject point,
                               JsonObject::of(value, forward.name(), std::string(key)));
      GAPLESS_ASSIGN_OR_RETURN(const std::string_view size, point.string("size"));
      GAPLESS_ASSIGN_OR_RETURN(const double ms, median(point, "ms"));
      int tokens = 0;
      const int count = lone_size(size, tokens);
      if (key == "encodes" && tokens == 0 && count > 0) {
        path.encodes.push_back({count, ms_for(encode_flop(config, 1, count), giga_per_s) / ms});
      } else if (key == "prefills" && count == 1 && tokens > 0) {
        path.prefill_tokens = tokens;
        path.prefill = {
            1, ms_for(prefill_flop(config, 1, tokens, config.prefix_len()), giga_per_s) / ms};
      }
    }
  }
  std::sort(path.encodes.begin(), path.encodes.end(),
            [](const MeasuredWork& a, const MeasuredWork& b) { return a.size < b.size; });
  if (path.encodes.empty()) return forward.error("encodes", "a list with one picture's crops");
  if (path.prefill.size == 0) return forward.error("prefills", "a list with one sequence");
  return ok_status();
}

// A lone client's three tokens about a new picture.
Status add_rest(const JsonObject& serve, MeasuredPath& path) {
  GAPLESS_ASSIGN_OR_RETURN(
      const JsonObject point,
      entry_of(serve, "points", "one client of 3 tokens", [](const JsonObject& one) {
        return has_integer(one, "concurrency", 1) && has_integer(one, "max_tokens", 3);
      }));
  GAPLESS_ASSIGN_OR_RETURN(const double first_token_ms, number(point, "mean_ttft_ms"));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject steps, point.object("mean_device_step_ms"));
  GAPLESS_ASSIGN_OR_RETURN(const double encode_ms, number(steps, "encode"));
  GAPLESS_ASSIGN_OR_RETURN(const double prefill_ms, number(steps, "prefill"));
  path.rest_ms = std::max(0.0, first_token_ms - encode_ms - prefill_ms);
  return ok_status();
}

Status read_gpu(const JsonObject& result, MeasuredPath& path) {
  GAPLESS_ASSIGN_OR_RETURN(const std::string_view device, result.string("device"));
  GAPLESS_ASSIGN_OR_RETURN(path.gpu, find_gpu(device));
  return ok_status();
}

// Under what name paths-h200.json has the path of `gpu`; empty: it does not.
StatusOr<std::string> measured_name(const JsonObject& result, const GpuSpec& gpu) {
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject paths, result.object("paths"));
  for (const std::string_view name : measured_names_of(gpu)) {
    if (paths.find(name) != nullptr) return std::string(name);
  }
  return std::string();
}

// Between the two measured sizes around it.
double share_at(const std::vector<MeasuredWork>& work, int size) {
  const auto above = std::find_if(work.begin(), work.end(),
                                  [&](const MeasuredWork& one) { return one.size >= size; });
  if (above == work.end()) return work.back().matrix_share;
  if (above == work.begin() || above->size == size) return above->matrix_share;
  const MeasuredWork& below = *std::prev(above);
  const double part = static_cast<double>(size - below.size) / (above->size - below.size);
  return below.matrix_share + part * (above->matrix_share - below.matrix_share);
}

}  // namespace

StatusOr<MeasuredPath> load_measured_path(const std::string& folder, const ModelConfig& config,
                                          const GpuSpec& gpu) {
  MeasuredPath path;
  GAPLESS_ASSIGN_OR_RETURN(const ResultFile overlap_file, read_result(folder, "overlap-h200.json"));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject overlap, overlap_file.root());
  GAPLESS_ASSIGN_OR_RETURN(const ResultFile serve_file, read_result(folder, "serve-h200.json"));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject serve, serve_file.root());
  GAPLESS_RETURN_IF_ERROR(add_rest(serve, path));
  const std::vector<std::string> of_the_host = {"overlap-h200.json", "serve-h200.json"};

  const std::string paths_name = "paths-h200.json";
  if (path_of(gpu) != "9.0a" &&
      std::filesystem::exists(std::filesystem::path(folder) / paths_name)) {
    GAPLESS_ASSIGN_OR_RETURN(const ResultFile file, read_result(folder, paths_name));
    GAPLESS_ASSIGN_OR_RETURN(const JsonObject result, file.root());
    GAPLESS_ASSIGN_OR_RETURN(path.path, measured_name(result, gpu));
    if (!path.path.empty()) {
      GAPLESS_ASSIGN_OR_RETURN(const JsonObject paths, result.object("paths"));
      GAPLESS_ASSIGN_OR_RETURN(const JsonObject own, paths.object(path.path));
      GAPLESS_RETURN_IF_ERROR(read_gpu(result, path));
      GAPLESS_RETURN_IF_ERROR(add_steps(own, "decode", overlap, config, path));
      GAPLESS_RETURN_IF_ERROR(add_work(own, config, path));
      path.files = {paths_name};
      path.files.insert(path.files.end(), of_the_host.begin(), of_the_host.end());
      return path;
    }
  }
  path.path = "9.0a";
  path.files = {"decode-h200.json", "forward-rest-h200.json"};
  GAPLESS_ASSIGN_OR_RETURN(const ResultFile decode_file, read_result(folder, path.files[0]));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject decode, decode_file.root());
  GAPLESS_ASSIGN_OR_RETURN(const ResultFile forward_file, read_result(folder, path.files[1]));
  GAPLESS_ASSIGN_OR_RETURN(const JsonObject forward, forward_file.root());
  GAPLESS_RETURN_IF_ERROR(read_gpu(decode, path));
  GAPLESS_RETURN_IF_ERROR(add_steps(decode, "points", overlap, config, path));
  GAPLESS_RETURN_IF_ERROR(add_work(forward, config, path));
  path.files.insert(path.files.end(), of_the_host.begin(), of_the_host.end());
  return path;
}

GpuPrediction predict_gpu(const GpuSpec& gpu, const MeasuredPath& measured,
                          const ModelConfig& config, int num_crops) {
  GpuPrediction prediction;
  std::vector<PeriodPoint> periods;
  for (const MeasuredStep& step : measured.steps) {
    const double bytes = step_bytes(config, step.rows, step.context);
    PredictedStep one{.rows = step.rows};
    one.step_ms = ms_for(bytes, gpu.gb_per_s * step.bandwidth_share) + step.sampling_ms;
    one.period_ms = one.step_ms + step.idle_ms;
    one.blocking_ms = one.step_ms + step.host_ms;
    periods.push_back({step.rows, one.period_ms});
    const double dead_row = kDeadRowShare * growing_share(periods, step.rows);
    one.gain = predicted_gain(one.blocking_ms, one.period_ms,
                              zombie_tax(2, Workload().mean_tokens, dead_row));
    prediction.steps.push_back(one);
  }
  const double giga_per_s = gpu.tflop_per_s * 1e3;
  prediction.encode_ms =
      ms_for(encode_flop(config, 1, num_crops), giga_per_s * share_at(measured.encodes, num_crops));
  prediction.prefill_ms =
      ms_for(prefill_flop(config, 1, measured.prefill_tokens, config.prefix_len()),
             giga_per_s * measured.prefill.matrix_share);
  prediction.first_token_ms = prediction.encode_ms + prediction.prefill_ms + measured.rest_ms;
  return prediction;
}

GpuSpec within_seen_rates(const GpuSpec& gpu, const GpuSpec& seen) {
  GpuSpec slower = gpu;
  const double ratio =
      static_cast<double>(gpu.num_multiprocessors) / static_cast<double>(seen.num_multiprocessors);
  slower.gb_per_s = std::min(gpu.gb_per_s, seen.gb_per_s * ratio);
  slower.tflop_per_s = std::min(gpu.tflop_per_s, seen.tflop_per_s * ratio);
  return slower;
}

}  // namespace gapless
