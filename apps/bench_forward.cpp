// gapless bench forward: the device's time of whole encodes and prefills at the model's full shape,
// beside the arithmetic that they must do. A text model has no encodes.
#include <boost/json/array.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench_options.h"
#include "engine_options.h"
#include "measure/forward_work.h"
#include "measure/step_statistics.h"
#include "model/step_driver.h"

namespace gapless {
namespace {

const std::vector<std::string> kUsualEncodes{"1", "2x1", "5", "7", "13", "2x7", "2x13"};

struct ForwardOptions {
  BenchOptions bench;
  // Unset: kUsualEncodes, where the model takes pictures.
  std::optional<std::vector<std::string>> encodes;
  std::vector<int> prefills{1, 2, 4, 8};
  int tokens = 770;
  int repeats = 20;
  int rest_ms = 0;          // before each run
  double peak_tflop_s = 0;  // 0: unknown
};

struct ForwardPoint {
  std::string name;
  Spread ns;
  double flop = 0;

  double tflop_per_s() const { return flop / ns.median / 1e3; }
};

struct EncodeSize {
  int images = 1;
  int crops = 1;  // of each image
};

// "13" or "2x13".
StatusOr<EncodeSize> parse_encode(const std::string& text) {
  EncodeSize size;
  const char* begin = text.data();
  const char* end = begin + text.size();
  auto read = [&](int& value) {
    const auto [next, error] = std::from_chars(begin, end, value);
    begin = next;
    return error == std::errc() && value > 0;
  };
  bool good = read(size.crops);
  if (good && begin != end && *begin == 'x') {
    ++begin;
    size.images = size.crops;
    good = read(size.crops);
  }
  if (good && begin == end) return size;
  return invalid_argument("--crops: '{}' is neither CROPS nor IMAGESxCROPS", text);
}

// The most nearly square tiling of the crops behind the global one.
DriverImage image_of(std::span<const std::uint8_t> crops, int num_crops, int slot) {
  const int tiles = std::max(1, num_crops - 1);
  DriverImage image{.crops = crops, .tile_cols = tiles, .image_slot = slot};
  for (int rows = 1; rows * rows <= tiles; ++rows) {
    if (tiles % rows == 0) image.tile_rows = rows, image.tile_cols = tiles / rows;
  }
  return image;
}

StatusOr<ForwardPoint> time_encode(const ForwardOptions& options, LoadedModel& model,
                                   StepDriver& driver, const std::string& text) {
  GAPLESS_ASSIGN_OR_RETURN(const EncodeSize size, parse_encode(text));
  const StepLimits& limits = model.model->limits();
  if (size.images > limits.num_image_slots ||
      size.images * size.crops > std::max(limits.max_crops_per_encode, size.crops)) {
    return invalid_argument("--crops: {} is more than one launch takes here", text);
  }
  std::vector<std::uint8_t> crops(static_cast<std::size_t>(size.crops) *
                                  model.model->info().crop_bytes);
  std::mt19937 random(1);
  for (std::uint8_t& byte : crops) byte = static_cast<std::uint8_t>(random());
  std::vector<DriverImage> images;
  for (int i = 0; i < size.images; ++i) images.push_back(image_of(crops, size.crops, i));
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<double> times,
                           driver.time_encode(images, options.repeats));
  return ForwardPoint{.name = text,
                      .ns = spread_of(times),
                      .flop = encode_flop(model.config, size.images, size.crops)};
}

StatusOr<ForwardPoint> time_prefill(const ForwardOptions& options, LoadedModel& model,
                                    StepDriver& driver, int num_sequences) {
  const StepLimits& limits = model.model->limits();
  const StepModelInfo& info = model.model->info();
  if (num_sequences > limits.max_prefill_sequences || num_sequences > limits.max_seats ||
      num_sequences * options.tokens > limits.max_prefill_tokens ||
      options.tokens >= info.max_context) {
    return invalid_argument("--sequences: {} x {} tokens are more than one launch takes here",
                            num_sequences, options.tokens);
  }
  const bool takes_pictures = model.vision_language_model() != nullptr;
  const int prefix_len = takes_pictures ? std::min(model.config.prefix_len(), options.tokens) : 0;
  std::vector<DriverPrompt> prompts;
  for (int row = 0; row < num_sequences; ++row) {
    DriverPrompt prompt{.row = row, .prefix_len = prefix_len};
    prompt.state.max_generated = 1;
    for (int i = 0; i < options.tokens; ++i) {
      const bool is_image = i > 0 && i < prefix_len;
      prompt.inputs.push_back({.kind = is_image ? InputKind::kImage : InputKind::kText,
                               .id = is_image ? i - 1 : i % info.vocab});
    }
    prompts.push_back(std::move(prompt));
  }
  GAPLESS_ASSIGN_OR_RETURN(const std::vector<double> times,
                           driver.time_prefill(prompts, options.repeats));
  return ForwardPoint{
      .name = fmt::format("{}x{}", num_sequences, options.tokens),
      .ns = spread_of(times),
      .flop = takes_pictures
                  ? prefill_flop(model.config, num_sequences, options.tokens, prefix_len)
                  : text_prefill_flop(model.model->shape().text, num_sequences, options.tokens)};
}

void print_columns() {
  fmt::print("{:<8} {:>8} | {:>9} {:>20} | {:>8} {:>8} {:>6}\n", "", "size", "ms", "p10 .. p90",
             "TFLOP", "TFLOP/s", "peak");
}

void print_point(const char* kind, const ForwardPoint& point, double peak) {
  fmt::print("{:<8} {:>8} | {:>9.4f} {:>8.4f} .. {:>8.4f} | {:>8.3f} {:>8.1f} {:>6}\n", kind,
             point.name, point.ns.median / 1e6, point.ns.p10 / 1e6, point.ns.p90 / 1e6,
             point.flop / 1e12, point.tflop_per_s(),
             peak > 0 ? fmt::format("{:.1f}%", 100 * point.tflop_per_s() / peak) : "-");
  std::fflush(stdout);
}

boost::json::object to_json(const ForwardPoint& point, double peak) {
  const auto ms = [](double ns) { return rounded(ns / 1e6, 5); };
  boost::json::object json{
      {"size", point.name},
      {"ms",
       {{"median", ms(point.ns.median)}, {"p10", ms(point.ns.p10)}, {"p90", ms(point.ns.p90)}}},
      {"tflop", rounded(point.flop / 1e12, 5)},
      {"tflop_per_s", rounded(point.tflop_per_s(), 2)}};
  if (peak > 0) json["percent_of_ceiling"] = rounded(100 * point.tflop_per_s() / peak, 2);
  return json;
}

Status run_forward(const ForwardOptions& options) {
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model,
                           load_bench_model(options.bench));
  std::vector<std::string> encode_sizes;
  if (options.encodes) {
    GAPLESS_RETURN_IF_ERROR(expect_pictures(*model));
    encode_sizes = *options.encodes;
  } else if (model->vision_language_model() != nullptr) {
    encode_sizes = kUsualEncodes;
  }
  GAPLESS_ASSIGN_OR_RETURN(ResultHeader header, result_header(options.bench, *model));
  const double peak = options.peak_tflop_s;
  if (peak > 0) header.ceiling = fmt::format("matrix rate {} TFLOP/s", peak);
  GAPLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StepDriver> driver,
                           StepDriver::create(*model->device, *model->model));
  driver->rest_between_runs(std::chrono::milliseconds(options.rest_ms));
  fmt::print("{} on {}\n", header.model, header.device);
  print_columns();
  boost::json::array encodes, prefills;
  for (const std::string& size : encode_sizes) {
    GAPLESS_ASSIGN_OR_RETURN(const ForwardPoint point, time_encode(options, *model, *driver, size));
    print_point("encode", point, peak);
    encodes.push_back(to_json(point, peak));
  }
  for (const int sequences : options.prefills) {
    GAPLESS_ASSIGN_OR_RETURN(const ForwardPoint point,
                             time_prefill(options, *model, *driver, sequences));
    print_point("prefill", point, peak);
    prefills.push_back(to_json(point, peak));
  }
  if (options.bench.json.empty()) return ok_status();
  return write_result(options.bench.json, header,
                      {{"benchmark", "forward"},
                       {"spread", "p10 and p90 of the runs"},
                       {"repeats", options.repeats},
                       {"rest_ms", options.rest_ms},
                       {"encodes", encodes},
                       {"prefills", prefills}});
}

}  // namespace

void add_bench_forward_command(CLI::App& bench, Command& chosen) {
  auto options = std::make_shared<ForwardOptions>();
  CLI::App* command =
      bench.add_subcommand("forward", "Time and arithmetic of whole encodes and prefills");
  add_bench_options(*command, options->bench);
  command
      ->add_option(
          "--crops", options->encodes,
          "Encodes: crops of one image, or images x crops in one launch (2x13); by default "
          "several, where the model takes pictures")
      ->delimiter(',');
  command->add_option("--sequences", options->prefills, "Prefills: prompts in one launch")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--tokens", options->tokens,
                   "Length of a prompt: bos and image, where the model takes pictures, then text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Timed runs of each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--rest-ms", options->rest_ms,
                   "Pause before each run; without, long runs meet the device's power limit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--peak-tflops", options->peak_tflop_s,
                   "The device's matrix rate in TFLOP/s, the ceiling of both")
      ->check(CLI::NonNegativeNumber);
  command->callback(
      [options, &chosen] { chosen = [options] { return report(run_forward(*options)); }; });
}

}  // namespace gapless
